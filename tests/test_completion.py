import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ctxextend.cli.app import app_of
from ctxextend.tables.methods import METHODS
from tests.terminal import on_terminal

PROGRAM = [sys.executable, "-c", "import sys; sys.argv[0] = 'ctxextend'; from ctxextend.cli.app import main; main()"]
COMMANDS: dict[str, Any] = get_command(app_of()).commands  # type: ignore[attr-defined]
# A shell that finds this interpreter's ctxextend, and a home of the test's own.
SCRIPTS = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def ask(**environment: str) -> str:
    done = subprocess.run(PROGRAM, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout


def offered(typed: str) -> list[str]:
    """What bash is told to offer for the last word of what was typed; a space behind it begins another."""
    words = typed.split(" ")
    count = str(len(words))
    return ask(_CTXEXTEND_COMPLETE="complete_bash", COMP_WORDS=f"ctxextend {typed}", COMP_CWORD=count).split()


def test_completion_offers_every_command_and_flag() -> None:
    assert set(offered("")) == set(COMMANDS)
    flags = {flag for parameter in COMMANDS["resize"].params for flag in parameter.opts if flag.startswith("--")}
    assert set(offered("resize --")) == flags | {"--help"}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("resize ti", ["tiny-gpt2"]),
        ("resize mo", []),  # left to the shell
        ("resize tiny-gpt2 --to 512 --method ", list(METHODS)),
        ("resize tiny-gpt2 --family roberta", ["roberta", "roberta-prelayernorm"]),
        ("families bart led bert-", ["bert-generation"]),
    ],
)
def test_completion_offers_what_has_names(typed: str, expected: list[str]) -> None:
    assert offered(typed) == expected


def in_bash(lines: str, home: Path) -> str:
    environment = os.environ | SCRIPTS | {"HOME": str(home)}
    done = subprocess.run(["bash", "-c", lines], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_install_completion_knows_the_shell_it_runs_in_and_works_there(tmp_path: Path) -> None:
    assert "bash completion installed" in in_bash("ctxextend --install-completion; true", tmp_path)
    ask_bash = (
        ". ~/.bashrc; COMP_WORDS=(ctxextend resize ti); COMP_CWORD=2; "
        '_ctxextend_completion ctxextend; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert in_bash(ask_bash, tmp_path) == "tiny-gpt2\n"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("ctxextend resize models/b\tmod\t--to 5", "ctxextend resize models/bert/model.safetensors --to 5"),
        ("ctxextend resize tiny-gpt2 --meth\tsin\t", "ctxextend resize tiny-gpt2 --method sinusoidal"),
    ],
)
def test_completion_on_a_terminal_types_what_was_meant(typed: str, line: str, tmp_path: Path) -> None:
    for folder in ("models/bert", "models/gpt2"):
        Path(folder).mkdir(parents=True)
    Path("models/bert/model.safetensors").touch()
    in_bash("ctxextend --install-completion; true", tmp_path)
    environment = os.environ | SCRIPTS | {"HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "200"}
    # The line is not run but echoed: ^A goes to its beginning.
    keys = f"{typed}\x01echo \nexit\n".encode()
    shown = on_terminal(["bash", "--noprofile", "-i"], environment, keys)
    assert line in [shown_line.strip() for shown_line in shown.splitlines()]
