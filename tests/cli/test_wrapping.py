"""Messages wrap at words; paths, numbers with their units and commands stay in one piece."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend.cli.tables import Page
from ctxextend.cli.wrapping import wrap
from tests.helpers import pico
from tests.helpers.terminal import on_terminal

COMMAND = [sys.executable, "-m", "ctxextend"]
LONG_PATH = "/a/folder/that/is-much-longer/than_one_line.of/the/terminal/model.safetensors"

MakePico = Callable[..., pico.Pico]


@pytest.mark.parametrize(
    "command",
    [
        "ctxextend resize my-model --to 4096 --method bands:sigma=4 --data 'a text.jsonl'",
        "python -c 'import transformers; transformers.GPT2LMHeadModel.from_pretrained(\"x\")'",
        "pip install 'ctxextend[train]' \"transformers<5\" tensorflow tf-keras torch",
        "torchrun --nproc-per-node 2 -m ctxextend train longer --data TEXT --fsdp",
    ],
)
def test_wrap_keeps_a_command_on_one_line(command: str) -> None:
    lines = wrap(f"Do this before you go on: {command}, and then something else.", 40)
    (line,) = (line for line in lines if command in line)
    assert line.strip() == f"{command},"


def test_wrap_ends_a_command_where_the_sentence_goes_on() -> None:
    lines = wrap("Use ctxextend train DIR --data TEXT or ctxextend evaluate DIR and see.", 44)
    assert lines == [
        "Use ctxextend train DIR --data TEXT or",
        "  ctxextend evaluate DIR and see.",
    ]


def test_wrap_does_not_take_the_name_of_the_program_for_a_command() -> None:
    text = "This file was written by ctxextend for a model which is not here any more at all."
    assert max(map(len, wrap(text, 40))) <= 40


def test_wrap_splits_no_path_and_no_number_from_its_unit() -> None:
    lines = wrap(f"Only {LONG_PATH} has 4.25 ± 0.01 of 12 % in it.", 40)
    assert f"  {LONG_PATH}" in lines
    assert any("4.25 ± 0.01" in line and "12 %" in line for line in lines)


def resize_on_terminal(columns: int, output: str) -> str:
    flags = ["resize", "tiny-gpt2", "--to", "512", "-o", output]
    variables = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    return on_terminal([*COMMAND, *flags], variables)


@pytest.mark.parametrize("columns", [60, 80])
def test_resize_wraps_its_messages_at_words_on_a_terminal(columns: int) -> None:
    shown = resize_on_terminal(columns, "longer")
    lines = shown.rpartition("\x1b[2K")[2].splitlines()  # after the bar
    next_commands = lines[lines.index("Next:") + 1 :]
    messages = lines[: lines.index("Next:")]
    assert columns - 12 < max(map(len, messages)) <= columns
    assert "ctxextend verify longer" in map(str.strip, next_commands)
    assert any(line.endswith("""GPT2LMHeadModel.from_pretrained("longer")'""") for line in lines)

    command = [*COMMAND, "resize", "tiny-gpt2", "--to", "512", "-o", "piped"]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    piped = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    sentence = next(line for line in piped.stderr.splitlines() if line.startswith("Not yet"))
    assert sentence in " ".join(" ".join(messages).split())


def test_resize_wraps_the_plan_of_a_dry_run_on_a_terminal() -> None:
    flags = ["resize", "tiny-gpt2", "--to", "512", "--dry-run"]
    shown = on_terminal([*COMMAND, *flags], os.environ | {"COLUMNS": "60", "NO_COLOR": "1"})
    assert max(map(len, shown.splitlines())) <= 60
    assert "transformer.wpe.weight in model.safetensors" in shown


def test_errors_wrap_at_the_width_that_columns_states() -> None:
    folder = Path("a-folder-with-a-long-name/and-another-folder-in-it")
    folder.mkdir(parents=True)
    done = subprocess.run(
        [*COMMAND, "inspect", str(folder)],
        env=os.environ | {"COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    path, *others = sorted(done.stderr.splitlines(), key=len, reverse=True)
    assert path.endswith(str(folder))  # in one piece
    assert len(others) >= 3
    assert max(map(len, others)) <= 60


# Tables

ROWS = [
    ("tokenizer_config.json", "model_max_length of the tokenizer", "512"),
    ("a-model/with-a-folder/config.json", "max_position_embeddings", "512"),
]


def table_of(width: int) -> list[str]:
    page = Page(width)
    page.table(["file", "what it states", "value"], ROWS, left=(0, 1), wrap=True)
    return ["".join(text for text, _ in line).rstrip() for line in page.lines]


@pytest.mark.parametrize("width", [80, 70, 60, 50, 40])
def test_table_splits_no_file_name(width: int) -> None:
    lines = table_of(width)
    for file, _, _ in ROWS:
        assert any(re.search(rf"(^|\s){re.escape(file)}($|\s)", line) for line in lines)
    assert max(map(len, lines)) <= width


def test_table_wraps_prose_before_names() -> None:
    assert table_of(67) == [
        "file                               what it states             value",
        "tokenizer_config.json              model_max_length of the      512",
        "                                   tokenizer",
        "a-model/with-a-folder/config.json  max_position_embeddings      512",
    ]


def test_table_that_is_too_wide_shows_its_rows_as_lists() -> None:
    assert table_of(44) == [
        "tokenizer_config.json",
        "  what it states: model_max_length of the",
        "    tokenizer",
        "  value: 512",
        "a-model/with-a-folder/config.json",
        "  what it states: max_position_embeddings",
        "  value: 512",
    ]
