import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxextend.checkpoints.folder import open_checkpoint
from ctxextend.checkpoints.source import Source
from ctxextend.families.lookup import find_architecture
from ctxextend.limits.length_edits import LengthChange, LimitChange, generation_edits, limit_edits
from tests.helpers import pico

TOKENIZER = {
    "version": "1.0",
    "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0},
    "model": {"type": "WordLevel", "vocab": {"a": 0}},
}


def edits(folder: Path, before: int = 16, after: int = 64) -> dict[str, tuple[Any, Any]]:
    checkpoint = open_checkpoint(Source(str(folder), "folder", folder, folder.name))
    change = LimitChange(
        before=before,
        after=after,
        fix_limits=False,
        keeps_fixed_padding=False,
    )
    edits = list(limit_edits(checkpoint, "", change))
    (location,) = find_architecture(checkpoint.config).locations
    edits += generation_edits(checkpoint, LengthChange(location, before, after), fix_limits=False)
    return {f"{edit.file} {edit.key}": (edit.before, edit.after) for edit in edits}


@pytest.fixture
def folder(make_pico: Callable[..., pico.Pico]) -> Path:
    return make_pico("bert").folder


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "BertTokenizer"},
            {"model_max_length": (None, 64)},
        ),
        (
            "tokenizer.json",
            TOKENIZER,
            {"truncation.max_length": (8, 64), "padding.strategy": ({"Fixed": 8}, "BatchLongest")},
        ),
        (
            "tokenizer.json",
            TOKENIZER | {"truncation": None, "padding": {"strategy": "BatchLongest"}},
            {},
        ),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 8, "do_lower_case": False},
            {"max_seq_length": (8, 64)},
        ),
        ("sentence_xlm-roberta_config.json", {"max_seq_length": 8}, {"max_seq_length": (8, 64)}),
        ("sentence_bert_config.json", {"max_seq_length": None}, {}),
        ("generation_config.json", {"max_length": 8}, {}),
    ],
)
def test_limit_edits_of_a_longer_table(
    file: str, content: Any, expected: dict[str, Any], folder: Path
) -> None:
    (folder / file).write_text(json.dumps(content))
    named = {f"{file} {key}": values for key, values in expected.items()}
    assert edits(folder) == named


@pytest.mark.parametrize("stated", [16, 10**30, 1e30, 4])
def test_limit_edits_raise_every_limit_of_a_tokenizer(stated: float, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    assert edits(folder) == {"tokenizer_config.json model_max_length": (stated, 64)}


def test_limit_edits_of_a_shorter_table_lower_only_larger_limits(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=16)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    pico.edit_json(folder / "generation_config.json", max_length=11)
    assert edits(folder, after=16) == {}
    assert edits(folder, after=10) == {
        "tokenizer_config.json model_max_length": (16, 10),
        "sentence_bert_config.json max_seq_length": (12, 10),
        "generation_config.json max_length": (11, 10),
    }
    assert set(edits(folder, after=4)) == {
        "tokenizer_config.json model_max_length",
        "sentence_bert_config.json max_seq_length",
        "generation_config.json max_length",
        "tokenizer.json truncation.max_length",
        "tokenizer.json padding.strategy",
    }
