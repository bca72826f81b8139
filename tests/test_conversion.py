"""What is taken without Typer's conversion is what Typer would have made of it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.cli.app import app_of
from ctxextend.cli.conversion import UNLIKE, _taken, convert_less

COMMANDS = typer.main.get_command(app_of()).commands  # type: ignore[attr-defined]
TYPED = ["", "0", "7", "-3", "+4", " 5", "5 ", "1_0", "٣", "1e3", "0.5", ".5", "1.", "nan", "inf", "1" * 30, "0x10"]
TYPED += ["copy", "COPY", "new", "positions", "fp16", "auto", "true", "tiny-gpt2", "a b", "-", "~", "ä", "1e400"]


def parameters() -> Iterator[Any]:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            yield pytest.param(parameter, id=f"{name} {parameter.name}")


def by_typer(parameter: Any, value: Any) -> Any:
    """What Typer makes of a value, or `UNLIKE` where it refuses it."""
    try:
        return type(parameter).process_value(parameter, typer.Context(COMMANDS["resize"]), value)
    except typer.TyperException:
        return UNLIKE


@pytest.mark.parametrize("parameter", list(parameters()))
def test_values_taken_are_those_of_typer(parameter: Any, tmp_path: Path) -> None:
    several = parameter.multiple or parameter.nargs == -1
    for typed in (None, True, *TYPED, str(tmp_path), str(tmp_path / "nothing")):
        value = (typed, typed) if several and typed is not None else typed
        taken = _taken(parameter, value)
        assert taken is UNLIKE or repr(taken) == repr(by_typer(parameter, value)), typed


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=8) | st.integers().map(str) | st.floats().map(str))
def test_numbers_taken_are_those_of_typer(typed: str) -> None:
    for command, name in (("resize", "to"), ("resize", "seed"), ("resize", "alpha"), ("train", "lr")):
        parameter = next(one for one in COMMANDS[command].params if one.name == name)
        taken = _taken(parameter, typed)
        assert taken is UNLIKE or repr(taken) == repr(by_typer(parameter, typed))


@pytest.mark.parametrize("typed", ["512", "-1.5"])
def test_plain_numbers_are_taken(typed: str) -> None:
    name = "to" if typed.isdigit() else "lr"
    parameter = next(one for one in COMMANDS["resize" if name == "to" else "train"].params if one.name == name)
    assert repr(_taken(parameter, typed)) == repr(type(parameter.type_descriptor.annotation(0))(typed))


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "tiny-gpt2", "--width", "80"],
        ["resize", "tiny-gpt2", "--to", "512", "--method", "linear", "-o", "nowhere/out", "--dry-run"],
        ["verify", "tiny-gpt2", "tiny-gpt2"],
        ["methods"],
        ["families", "--json"],
    ],
)
def test_small_commands_start_without_what_is_slow_to_import(arguments: list[str], tmp_path: Path) -> None:
    slow = {"pydantic", "torch", "transformers", "numpy.ma", "importlib.metadata", "huggingface_hub", "matplotlib"}
    program = (
        "import sys\n"
        "from ctxextend.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"found = {slow!r} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_convert_less_leaves_parameters_of_another_typer_alone() -> None:
    class Parameter:
        type_descriptor = object()

        def process_value(self, context: Any, value: Any) -> Any:
            return value

    parameter = Parameter()
    convert_less([parameter])
    assert "process_value" not in vars(parameter)
