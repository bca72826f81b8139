"""Behaviour shared by all commands: help, repeated flags, completion, and output in pipes and
terminals.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ctxextend.cli.app import build_app, help_sections, summary
from ctxextend.cli.options import PANELS
from ctxextend.tables.methods import METHODS
from tests.helpers.terminal import on_terminal

APP: Any = get_command(build_app())
COMMANDS: dict[str, Any] = APP.commands
PROGRAM = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'ctxextend'; from ctxextend.cli.app import main; main()",
]
EXAMPLE = re.compile(r"^  (ctxextend .*)$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def help_of(*arguments: str, columns: int = 80) -> str:
    done = CliRunner().invoke(
        build_app(), [*arguments, "--help"], prog_name="ctxextend", env={"COLUMNS": str(columns)}
    )
    assert done.exit_code == 0
    return done.stdout


def test_help_of_the_app_fits_one_screen_with_one_line_per_command() -> None:
    lines = help_of().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for name, command in COMMANDS.items():
        assert [line.split() for line in lines if line.startswith(f"  {name} ")] == [
            [name, *summary(command).split()]
        ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_a_summary_then_examples_then_options(name: str) -> None:
    text = help_of(name)
    usage, empty, first, blank, heading, *_ = text.splitlines()
    assert usage.startswith(f"Usage: ctxextend {name} [OPTIONS]")
    assert (empty, first, blank, heading) == ("", summary(COMMANDS[name]), "", "Examples:")
    last = text.rindex(EXAMPLE.findall(text)[-1])
    context = APP.make_context("ctxextend", [name])
    groups = help_sections(
        COMMANDS[name],
        COMMANDS[name].make_context(name, [], parent=context, resilient_parsing=True),
    )
    assert all(text.index(f"\n{group}:\n") > last for group in groups)
    assert list(groups) == [panel for panel in PANELS if panel in groups]
    assert "x>=" not in text
    assert name != "resize" or len(text.splitlines()) <= 43
    flags = [
        option
        for parameter in COMMANDS[name].params
        for option in parameter.opts
        if option.startswith("--")
    ]
    assert all(flag in text for flag in flags)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    examples = EXAMPLE.findall(text)
    assert 2 <= len(examples) <= 4
    for example in examples:
        program, command, *arguments = shlex.split(example)
        assert (program, command) == ("ctxextend", name)
        COMMANDS[name].make_context(name, arguments)  # raises on a usage error
    narrow = help_of(name, columns=40)
    assert EXAMPLE.findall(narrow) == examples
    rest = [
        line
        for line in narrow.splitlines()
        if not EXAMPLE.match(line) and not line.startswith("Usage:")
    ]
    assert max(map(len, rest)) <= 40
    assert "".join(narrow.split()) == "".join(text.split())


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NO_COLOR", "COLUMNS", "TERM"}
    }
    return kept | changes


DRY_RUN = [
    "resize",
    "tiny-gpt2",
    "--to",
    "1024",
    "--method",
    "linear",
    "--keep-first",
    "1",
    "--dry-run",
]


def test_output_in_a_pipe_is_plain_text_in_every_environment() -> None:
    expected = (
        CliRunner().invoke(build_app(), DRY_RUN, prog_name="ctxextend", env={"COLUMNS": ""}).stdout
    )
    assert expected.isascii()
    for changes in ({"TERM": "xterm", "FORCE_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        done = subprocess.run(
            [*PROGRAM, *DRY_RUN],
            env=environment(**changes),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == (expected, "")


def test_help_on_a_terminal_is_the_same_text_in_colour() -> None:
    output = on_terminal([*PROGRAM, "resize", "-h"], environment(TERM="xterm", COLUMNS="80"))
    assert "\x1b[1mOptions\x1b[0m:\n" in output
    assert "\x1b[36m-q, --quiet\x1b[0m  " in output
    assert COLOUR.sub("", output) == help_of("resize")
    plain = on_terminal([*PROGRAM, "--help"], environment(COLUMNS="80", NO_COLOR="1", TERM="xterm"))
    assert plain == help_of()


def test_methods_wraps_to_the_terminal() -> None:
    output = COLOUR.sub(
        "", on_terminal([*PROGRAM, "methods"], environment(TERM="xterm", COLUMNS="40"))
    )
    assert max(map(len, output.splitlines())) <= 40
    piped = CliRunner().invoke(build_app(), ["methods"], env={"COLUMNS": ""}).stdout
    assert 60 < max(map(len, piped.splitlines())) <= 80
    assert "".join(output.split()) == "".join(piped.split())


@pytest.mark.parametrize(
    ("arguments", "data", "length"),
    [
        ("m --data a --data b", "a b", ""),
        ("--data a m", "a", ""),
        ("--data=a m --length 8 --length 16 --data b", "a b", "8 16"),
    ],
)
def test_repeated_flags_collect_their_values(arguments: str, data: str, length: str) -> None:
    given = COMMANDS["evaluate"].make_context("evaluate", arguments.split()).params
    assert given["source"] == "m"
    assert (given["data"], given["length"] or []) == (
        data.split(),
        [int(value) for value in length.split()],
    )


# ---- completion


def completions(typed: str) -> list[str]:
    """Return bash completions of the last word of a command line; a trailing space starts a new
    word.
    """
    count = str(len(typed.split(" ")))
    request = {
        "_CTXEXTEND_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ctxextend {typed}",
        "COMP_CWORD": count,
    }
    done = subprocess.run(
        PROGRAM, env=os.environ | request, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_completion_offers_every_command_and_flag() -> None:
    assert set(completions("")) == set(COMMANDS)
    flags = {
        flag
        for parameter in COMMANDS["resize"].params
        for flag in parameter.opts
        if flag.startswith("--")
    }
    assert set(completions("resize --")) == flags | {"--help"}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("resize ti", ["tiny-gpt2"]),
        ("resize mo", []),  # the shell offers files
        ("resize tiny-gpt2 --to 512 --method ", list(METHODS)),
        ("resize tiny-gpt2 --model-type roberta", ["roberta", "roberta-prelayernorm"]),
        ("families bart led bert-", ["bert-generation"]),
    ],
)
def test_completion_offers_known_names(typed: str, expected: list[str]) -> None:
    assert completions(typed) == expected


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (
            "ctxextend resize models/b\tmod\t--to 5",
            "ctxextend resize models/bert/model.safetensors --to 5",
        ),
        (
            "ctxextend resize tiny-gpt2 --meth\tsin\t",
            "ctxextend resize tiny-gpt2 --method sinusoidal",
        ),
    ],
)
def test_completion_on_a_terminal_completes_the_line(typed: str, line: str, tmp_path: Path) -> None:
    for folder in ("models/bert", "models/gpt2"):
        Path(folder).mkdir(parents=True)
    Path("models/bert/model.safetensors").touch()
    # bash must find this ctxextend
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "COLUMNS": "200",
    }
    install = ["bash", "-c", "ctxextend --install-completion; true"]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout
    keys = (
        f"{typed}\x01echo \nexit\n".encode()
    )  # ^A moves to the start of the line: echo the command, do not run it
    output = on_terminal(["bash", "--noprofile", "-i"], environment, keys)
    assert line in [output_line.strip() for output_line in output.splitlines()]
