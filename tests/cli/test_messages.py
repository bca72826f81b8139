"""Messages: one line each, with flags and commands that exist."""

import ast
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ctxextend.cli.app import build_app
from tests.helpers.repository import PACKAGE
from tests.helpers.terminal import on_terminal
from tests.helpers.trainings import command_flags

COMMAND = [sys.executable, "-m", "ctxextend"]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")
# Flags of other programs: runtimes, exporters and cp.
OTHER_PROGRAMS = {
    "--max-model-len",
    "--context-length",
    "--chunked-prefill-size",
    "--disable-radix-cache",
    "--model-path",
    "--model-id",
    "--embeddings",
    "--rope-freq-base",
    "--rope-scale",
    "--rope-scaling",
    "--yarn-orig-ctx",
    "--yarn-beta-fast",
    "--yarn-beta-slow",
    "--outfile",
    "--local-dir",  # hf download
    "--merge",  # llama-gguf-split
    "--upgrade",  # pip
    "--model",
    "--onnx",
    "--recipe",
    "--task",
    "--nproc-per-node",
    "--reflink",
    "--force-reinstall",
    "--help",
    "--help-all",
    "--version",
    # of programs that export checkpoints
    "--hf-path",
    "--mlx-path",
}


def docstrings_in(tree: ast.Module) -> set[ast.expr]:
    """Return the expressions that start a body: docstrings, and other values that do nothing."""
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            found.add(body[0].value)
    return found


def test_every_flag_in_a_text_of_the_package_exists() -> None:
    known = {flag for flags in command_flags().values() for flag in flags}
    flags = list[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = docstrings_in(tree)  # for readers of the code
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if node in docstrings:
                continue
            for flag in FLAG.findall(node.value):
                assert flag in known | OTHER_PROGRAMS, path
                flags.append(flag)
    assert len(flags) > 200


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ("qqq", ["Error: No such command 'qqq'.", "See ctxextend --help."]),
        (
            "methds",
            ["Error: No such command 'methds'. Did you mean 'methods'?", "See ctxextend --help."],
        ),
        (
            "resize m --too 5",
            [
                "Error: No such option: --too (Possible options: --for, --method, --to)",
                "See ctxextend resize --help.",
            ],
        ),
        ("resize m", ["Error: Missing option '--to'.", "See ctxextend resize --help."]),
    ],
)
def test_an_error_is_a_message_and_a_hint(arguments: str, lines: list[str]) -> None:
    done = CliRunner().invoke(build_app(), arguments.split(), prog_name="ctxextend")
    assert done.exit_code in (1, 2)
    assert done.stderr.splitlines() == lines


def test_resize_prints_the_same_messages_on_a_terminal_and_in_a_pipe() -> None:
    resize = [*COMMAND, "resize", "tiny-gpt2", "--to", "512", "-o"]
    shown = on_terminal([*resize, "longer"], os.environ | {"COLUMNS": "60", "TERM": "xterm"})
    lines = shown.rpartition("\x1b[2K")[2].splitlines()  # after the bar
    next_commands = lines[lines.index("Next:") + 1 :]
    assert "  ctxextend verify longer" in next_commands

    variables = os.environ | {"COLUMNS": "60"}
    command = [*resize, "piped"]
    piped = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    (sentence,) = (line for line in piped.stderr.splitlines() if line.startswith("Not yet"))
    assert sentence in lines
