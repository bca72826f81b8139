import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxextend.checkpoints.folder import open_checkpoint
from ctxextend.checkpoints.length_limits import limit_edits
from ctxextend.checkpoints.source import Source
from tests import pico

TOKENIZER = {
    "version": "1.0",
    "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0},
    "model": {"type": "WordLevel", "vocab": {"a": 0}},
}


def edits(folder: Path, before: int = 16, after: int = 64) -> dict[str, tuple[Any, Any]]:
    checkpoint = open_checkpoint(Source(str(folder), "folder", folder, folder.name))
    return {f"{edit.file} {edit.key}": (edit.before, edit.after) for edit in limit_edits(checkpoint, before, after)}


@pytest.fixture
def folder(make_pico: Callable[..., pico.Pico]) -> Path:
    return make_pico("bert").folder


@pytest.mark.parametrize("stated", [16, 10**30, 1e30, 4])
def test_limit_edits_sets_the_tokenizers_limit_whatever_it_was(stated: float, folder: Path) -> None:
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=stated)
    assert edits(folder) == {"tokenizer_config.json model_max_length": (stated, 64)}


def test_limit_edits_states_a_limit_where_the_tokenizer_has_none(folder: Path) -> None:
    pico.edit_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    assert edits(folder) == {"tokenizer_config.json model_max_length": (None, 64)}


def test_limit_edits_raises_truncation_and_frees_padding(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    assert edits(folder) == {
        "tokenizer.json truncation.max_length": (8, 64),
        "tokenizer.json padding.strategy": ({"Fixed": 8}, "BatchLongest"),
    }


def test_limit_edits_leaves_unset_truncation_and_free_padding_alone(folder: Path) -> None:
    assert edits(folder) == {}  # without any side file
    free = TOKENIZER | {"truncation": None, "padding": {"strategy": "BatchLongest"}}
    (folder / "tokenizer.json").write_text(json.dumps(free))
    assert edits(folder) == {}


def test_limit_edits_sets_the_sentence_encoders_limit_where_it_has_one(folder: Path) -> None:
    path = folder / "sentence_bert_config.json"
    path.write_text('{"max_seq_length": 8, "do_lower_case": false}')
    assert edits(folder) == {"sentence_bert_config.json max_seq_length": (8, 64)}
    path.write_text('{"max_seq_length": null}')
    assert edits(folder) == {}


def test_limit_edits_of_a_shorter_table_lowers_only_what_is_above(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=16)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    assert edits(folder, after=16) == {}
    assert edits(folder, after=10) == {
        "tokenizer_config.json model_max_length": (16, 10),
        "sentence_bert_config.json max_seq_length": (12, 10),
    }
    assert set(edits(folder, after=4)) == {
        "tokenizer_config.json model_max_length",
        "sentence_bert_config.json max_seq_length",
        "tokenizer.json truncation.max_length",
        "tokenizer.json padding.strategy",
    }


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_limit_edits_knows_every_name_of_the_sentence_encoders_file(name: str, folder: Path) -> None:
    (folder / f"sentence_{name}_config.json").write_text('{"max_seq_length": 8}')
    assert edits(folder) == {f"sentence_{name}_config.json max_seq_length": (8, 64)}
