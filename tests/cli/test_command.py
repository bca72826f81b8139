"""What all commands share: help, repeated flags, completion, output in pipes and terminals."""

import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ctxextend.cli.app import build_app, summary
from ctxextend.settings import Heading
from tests.helpers.terminal import on_terminal

APP: Any = get_command(build_app())
COMMANDS: dict[str, Any] = APP.commands
PROGRAM = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'ctxextend'; from ctxextend.__main__ import main; main()",
]
EXAMPLE = re.compile(r"^  (ctxextend .*)$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def help_of(*arguments: str, columns: int = 80, flag: str = "--help") -> str:
    done = CliRunner().invoke(
        build_app(), [*arguments, flag], prog_name="ctxextend", env={"COLUMNS": str(columns)}
    )
    assert done.exit_code == 0
    return done.stdout


def widest(text: str) -> int:
    """Return the number of characters of the longest line."""
    return max(map(len, text.splitlines()))


def flags_of(name: str) -> set[str]:
    """Return the long flags of a command."""
    flags = set()
    for parameter in COMMANDS[name].params:
        flags |= {option for option in parameter.opts if option.startswith("--")}
    return flags


def test_help_of_the_app_fits_one_screen_with_one_line_per_command() -> None:
    text = help_of()
    lines = text.splitlines()
    assert len(lines) <= 27
    assert widest(text) <= 80
    for name, command in COMMANDS.items():
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.split() == [name, *summary(command).split()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_is_plain_text_of_80_columns_with_every_flag(name: str) -> None:
    text = help_of(name, flag="--help-all")
    assert text.isascii()
    assert widest(text) <= 80
    assert "x>=" not in text
    for flag in flags_of(name):
        assert flag in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_35_lines_and_names_help_all_if_that_lists_more(name: str) -> None:
    text = help_of(name)
    every = help_of(name, flag="--help-all")
    *shown, last = text.splitlines()
    assert len(shown) < 36
    if f"\n{Heading.ADVANCED}:\n" not in every:
        assert text == every
        return
    assert last == f"All options: ctxextend {name} --help-all"
    assert every.startswith("\n".join(shown).rstrip())
    assert every.count("\n  -") > text.count("\n  -")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_two_to_four_examples_that_are_valid(name: str) -> None:
    examples = EXAMPLE.findall(help_of(name))
    assert 2 <= len(examples) <= 4
    for example in examples:
        program, command, *arguments = shlex.split(example)
        assert program == "ctxextend"
        assert command == name
        COMMANDS[name].make_context(name, arguments)  # raises on a usage error


def environment(**changes: str) -> dict[str, str]:
    kept = dict(os.environ)
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        kept.pop(name, None)
    return kept | changes


DRY_RUN = shlex.split("resize tiny-gpt2 --to 1024 --method linear --keep-first 1 --dry-run")


@pytest.mark.parametrize(
    "changes",
    [{"TERM": "xterm", "FORCE_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ids=["colour", "C locale"],
)
def test_output_in_a_pipe_is_plain_text_in_every_environment(changes: dict[str, str]) -> None:
    invoked = CliRunner().invoke(build_app(), DRY_RUN, prog_name="ctxextend", env={"COLUMNS": ""})
    done = subprocess.run(
        [*PROGRAM, *DRY_RUN],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert done.stdout == invoked.stdout
    assert done.stderr == invoked.stderr
    assert done.stderr.isascii()


def test_help_on_a_terminal_is_the_same_text_in_colour() -> None:
    output = on_terminal([*PROGRAM, "resize", "-h"], environment(TERM="xterm", COLUMNS="80"))
    assert "\x1b[1mOptions\x1b[0m:\n" in output
    assert "\x1b[36m-q, --quiet\x1b[0m  " in output
    assert COLOUR.sub("", output) == help_of("resize")


# ---- completion


def completions(typed: str) -> list[str]:
    """Return bash completions of the last word of a command; a trailing space starts a new word."""
    count = len(typed.split(" "))
    request = {
        "_CTXEXTEND_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ctxextend {typed}",
        "COMP_CWORD": str(count),
    }
    done = subprocess.run(
        PROGRAM, env=os.environ | request, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_completion_offers_every_command_and_flag() -> None:
    assert set(completions("")) == set(COMMANDS)
    assert set(completions("resize --")) == flags_of("resize") | {"--help", "--help-all"}
