"""Settings: declared once, read once."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.errors import ResizeError
from ctxextend.kinds import TableName
from ctxextend.recipe import KEYS
from ctxextend.settings import (
    CheckpointRef,
    Convert,
    Resize,
    Train,
    flag_of,
    option_of,
    ordered_fields,
)
from ctxextend.tables import methods


def test_a_setting_is_a_flag_a_keyword_and_a_recipe_key() -> None:
    (command,) = build_app(["resize"]).registered_commands
    assert command.callback is not None
    flags = inspect.signature(command.callback).parameters
    keywords = inspect.signature(ctxextend.resize).parameters
    for item in ordered_fields(Resize):
        option = option_of(item)
        assert item.name in flags
        assert (item.name in keywords) == option.in_python
        assert (f"resize.{item.name}" in KEYS) == option.in_recipe
        assert flag_of(item).startswith("--")


def test_all_invalid_values_are_reported_at_once() -> None:
    with pytest.raises(ResizeError) as error:
        Resize("long", method="magic", keep_first=-1, budget=5)
    errors = [error.value, *error.value.others]
    assert {found.setting for found in errors} == {"to", "method", "keep_first", "budget"}


def test_settings_can_be_replaced() -> None:
    settings = Resize(64, method="bands:keep-first=2")
    assert settings.keep_first == 2
    assert replace(settings, to=96).choice == settings.choice
    assert replace(settings, keep_first=1).choice.keep_first == 1


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("wpe", TableName("wpe", None, 0)),
        ("wpe:n_positions", TableName("wpe", "n_positions", 0)),
        ("wpe:text.n_positions:2", TableName("wpe", "text.n_positions", 2)),
        ("wpe::2", TableName("wpe", None, 2)),
    ],
)
def test_a_table_is_named_with_its_key_and_reserved_rows(text: str, table: TableName) -> None:
    assert CheckpointRef("m", table=text).table == table
    assert CheckpointRef("m", table=str(table)).table == table


@pytest.mark.parametrize("text", ["", ":key", "wpe:key:two", "wpe:key:2:3"])
def test_a_table_needs_its_form(text: str) -> None:
    with pytest.raises(ResizeError, match="--table must be NAME:KEY:RESERVED"):
        CheckpointRef("m", table=text)


@pytest.mark.parametrize(
    ("create", "flag"),
    [
        (lambda: Resize(64, edit_only=True, link=True), "--link"),
        (lambda: Convert("rotary"), "--scheme"),
        (lambda: Convert("window", 64, attention_window=9), "--attention-window"),
        (lambda: Train("a.txt", 1, window=64, seq_len=32), "--window"),
        (lambda: CheckpointRef("m", table="wpe", model_type="gpt2"), "--table"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(create: Any, flag: str) -> None:
    with pytest.raises(ResizeError, match=f"^{flag} "):
        create()


def test_a_resize_parses_its_method_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[str]()
    parse = methods.parse_method

    def count(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(methods, "parse_method", count)
    ctxextend.resize("tiny-gpt2", 256, "bands:gain=1.2", output=tmp_path / "out")
    assert parsed == ["bands:gain=1.2"]
