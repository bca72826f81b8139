"""Models with attention windows in `train` and `evaluate`, and the teacher of a twin."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from ctxextend import convert, evaluate
from tests.helpers.trainings import (
    make_encoder,
    succeed,
    write_book,
)
from tests.helpers.word_tokenizer import text_of

WINDOW = 8
NEW = 32
SEARCH = Path("search")
ROWS = "embeddings.position_embeddings.weight"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A sentence encoder with attention windows, next to a book."""
    source = make_encoder(tmp_path / "source")
    write_book()
    output = tmp_path / "encoder"
    convert(source, "window", NEW, attention_window=WINDOW, output=output)
    return output


def write_search_set() -> None:
    SEARCH.mkdir()
    documents = [text_of([*range(start, start + 24)] * 2) for start in range(4)]
    queries = [text_of([start, start + 1]) for start in range(4)]
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [{"_id": f"{name[0]}{i}", "text": text} for i, text in enumerate(texts)]
        (SEARCH / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (SEARCH / "qrels.tsv").write_text("\n".join(f"q{number}\tc{number}\t1" for number in range(4)))


@pytest.mark.parametrize(
    "flags",
    [
        ("--data", "book.txt", "--trainable", "all"),  # distilled from the base's chunks
        ("--data", "book.txt", "--contrastive", "passages", "--window", 12),
    ],
)
def test_train_of_a_sentence_encoder_with_windows(flags: tuple[Any, ...], encoder: Path) -> None:
    settings = ("--steps", 2, "--batch-size", 4, "--save", "last", "-o", "trained")
    succeed("train", encoder, *flags, *settings)
    before = load_file(next(encoder.rglob("model.safetensors")))
    after = load_file(next(Path("trained").rglob("model.safetensors")))
    assert before.keys() == after.keys()
    assert not torch.equal(before[ROWS], after[ROWS])
    loaded = SentenceTransformer("trained", device="cpu")
    assert loaded.max_seq_length == NEW
    assert loaded.encode([text_of([*range(20)])]).std() > 0


def test_evaluate_compares_a_model_with_windows_with_chunks_of_its_base(encoder: Path) -> None:
    write_search_set()
    result = evaluate(encoder, search=SEARCH)
    assert result.base is not None
    assert result.base.max_len == 16
    read = {score.reading: score.tokens for score in result.scores if score.name == "nDCG@10"}
    assert read["same_text"] == read["one_pass"] == NEW
    assert read["chunks"] > NEW
