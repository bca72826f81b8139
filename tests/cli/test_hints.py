"""Hints name flags that the command has, or say which command has them."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import ctxextend
from ctxextend.cli.app import COMMANDS, build_app, command_flags
from ctxextend.cli.hints import FLAG, in_words_of, recipe_keys
from ctxextend.python_words import COMMAND_LINE
from tests.helpers.trainings import invoke

PACKAGE = Path(str(ctxextend.__file__)).parent
# Flags of other programs: runtimes, exporters, torchrun and cp.
OTHER_PROGRAMS = {
    "--max-model-len",
    "--hf-overrides",
    "--context-length",
    "--chunked-prefill-size",
    "--disable-radix-cache",
    "--json-model-override-args",
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
FLAGS = command_flags()
KNOWN = {flag for flags in FLAGS.values() for flag in flags}


def docstrings_in(tree: ast.Module) -> set[ast.expr]:
    """Return the expressions that start a body: docstrings, and other values that do nothing."""
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            found.add(body[0].value)
    return found


@cache
def texts() -> list[tuple[str, str]]:
    """Return each string of the package that names a flag, with its module.

    Docstrings are left out: they are for readers of the code.
    """
    found = list[tuple[str, str]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = docstrings_in(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or node in docstrings:
                continue
            if isinstance(node.value, str) and FLAG.search(node.value):
                found.append((module, node.value))
    return found


def unexplained(command: str, hint: str) -> list[str]:
    """Return the flags of a hint that neither its command has nor a sentence places elsewhere."""
    explained = {*FLAGS[command]}
    for line in COMMAND_LINE.finditer(hint):
        explained.update(FLAG.findall(line[0]))
    for sentence in re.findall(r"([^.]*) (?:is a flag|are flags) of ctxextend", hint):
        explained.update(FLAG.findall(sentence))
    return [flag for flag in FLAG.findall(hint) if flag in KNOWN and flag not in explained]


def test_every_flag_in_a_text_of_the_package_exists() -> None:
    flags = list[str]()
    for module, text in texts():
        for flag in FLAG.findall(text):
            assert flag in KNOWN | OTHER_PROGRAMS, module
            flags.append(flag)
    assert len(flags) > 200


@pytest.mark.parametrize("command", COMMANDS)
def test_in_words_of_places_every_flag_of_every_text(command: str) -> None:
    for module, text in texts():
        hint = in_words_of(command, text, FLAGS)
        assert unexplained(command, hint) == [], (module, text)


@pytest.mark.parametrize(
    ("command", "hint", "expected"),
    [
        ("train", "Use a shorter --seq-len.", "Use a shorter --seq-len."),
        (
            "resize",
            "Use a shorter --seq-len or --window.",
            "Use a shorter --seq-len or --window. --seq-len and --window are flags of ctxextend "
            "train and compare.",
        ),
        (
            "verify",
            "Pass text with --train.",
            "Pass text with --train. --train is a flag of ctxextend resize and convert.",
        ),
        (
            "compare",
            "Use `ctxextend evaluate MODEL --base B`.",
            "Use `ctxextend evaluate MODEL --base B`.",
        ),
        ("inspect", "Start it with --nproc-per-node 2.", "Start it with --nproc-per-node 2."),
        (
            "run",
            "Use a shorter --seq-len.",
            "Use a shorter train.seq_len. These are keys of the recipe: override one with --set "
            "KEY=VALUE.",
        ),
        ("run", "Replace it with --force.", "Replace it with --force."),
    ],
)
def test_in_words_of_says_where_other_flags_belong(command: str, hint: str, expected: str) -> None:
    assert in_words_of(command, hint, FLAGS) == expected


def test_recipe_keys_are_those_of_the_steps() -> None:
    assert recipe_keys("--keep-first") == ["resize.keep_first"]
    assert recipe_keys("--data") == ["train.data", "evaluate.data"]
    assert recipe_keys("--revision") == ["revision"]
    assert recipe_keys("--quick") == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("verify new base", "Pass the base checkpoint with --base base."),
        ("verify new --deep base", "Pass the base checkpoint with --base base."),
        (
            "evaluate new book.txt",
            "Pass text with --data book.txt, or the base checkpoint with --base book.txt.",
        ),
        ("evaluate new --data a b", "Repeat the flag for several values: --data a --data b."),
        (
            "train new book.txt --steps 3",
            "Pass text with --data book.txt, or the base checkpoint with --base book.txt.",
        ),
        (
            "train new --steps 3 --eval-data a b",
            "Repeat the flag for several values: --eval-data a --eval-data b.",
        ),
        ("resize m out --to 9", "Pass the output folder with --output out."),
        ("convert m out --to 9 --scheme rotary", "Pass the output folder with --output out."),
        (
            "run r.yaml again",
            "Change a value of the recipe with --set KEY=VALUE, or pass the output folder with "
            "--output",
        ),
        ("recipes a b", "Print one recipe at a time."),
        ("demo out", "To keep the trained checkpoint, pass a folder with --output out."),
    ],
)
def test_unexpected_arguments_are_understood_per_command(arguments: str, hint: str) -> None:
    done = invoke(*arguments.split())
    assert done.exit_code == 2
    assert hint in done.stderr


def test_compare_accepts_several_models() -> None:
    arguments = "compare m --to 9 --method a b --quick --data t"
    done = invoke(*arguments.split())
    assert "Unexpected argument" not in done.stderr


MISUSE = [
    "resize tiny-gpt2 --to 4096 --train short.txt --steps 1",
    "resize tiny-gpt2 --to 256 --train no-such.txt --steps 1",
    "resize tiny-gpt2 --to 256 --tune short.txt",
    "resize tiny-gpt2 --to 256 --tune short.txt --hold-out 64",
    "resize tiny-gpt2 --to 256 --part encoder",
    "resize tiny-gpt2 --to 256 --method linear --keep-first 200",
    "convert tiny-gpt2 --scheme rotary --to 4096 --train short.txt --steps 1",
    "train tiny-gpt2 --data short.txt --steps 1 --seq-len 4096",
    "train tiny-gpt2 --data short.jsonl --steps 1",
    "verify tiny-gpt2",
    "inspect nothing --subfolder here",
    "evaluate tiny-gpt2 --data short.jsonl",
    "evaluate tiny-gpt2 --data short.txt --length 4096",
    "compare tiny-gpt2 --to 4096 --data short.txt",
    "compare tiny-gpt2 --to 256 --data short.jsonl",
    "compare tiny-gpt2 tiny-gpt2 --data short.txt --length 4096",
    "compare tiny-gpt2 --to 256 --data short.txt --method linear:keep-first=200",
    "run recipe.yaml",
    "run recipe.yaml --set train.seq_len=9999",
]


@pytest.mark.parametrize("arguments", MISUSE)
def test_errors_of_typical_misuse_name_flags_of_the_command(arguments: str) -> None:
    command, *_ = arguments.split()
    Path("short.txt").write_text("A short text. " * 40)
    Path("short.jsonl").write_text('{"words": "one"}\n')
    Path("recipe.yaml").write_text(
        "source: tiny-gpt2\nresize:\n  to: 4096\ntrain:\n  data: [short.txt]\n  steps: 1\n"
    )
    done = invoke(*arguments.split())
    assert done.exit_code in (1, 2), done.output
    _, _, error = done.stderr.rpartition("Error: ")
    _, _, hint = error.partition("\n")
    assert unexplained(command, hint) == []


def test_resize_with_training_names_its_flag_of_the_text() -> None:
    Path("short.txt").write_text("A short text. " * 40)
    done = invoke("resize", "tiny-gpt2", "--to", 4096, "--train", "short.txt", "--steps", 1)
    assert "Pass more text with --train, " in done.stderr
    assert "--data" not in done.stderr


def test_help_examples_use_flags_of_their_command() -> None:
    group: Any = get_command(build_app())
    for name, command in group.commands.items():
        described = command.callback.__doc__
        examples = re.findall(rf"^ +ctxextend {name}( .*|)$", described, re.MULTILINE)
        assert examples, name
        for example in examples:
            for flag in FLAG.findall(example):
                assert flag in FLAGS[name]


def test_help_of_resize_starts_with_what_is_recommended() -> None:
    shown = invoke("resize", "--help").stdout
    examples = re.findall(r"^ +(ctxextend resize .*)$", shown, re.MULTILINE)
    assert examples[0] == "ctxextend resize gpt2 --to 4096"
    for example in examples:
        assert "--method" not in example


@pytest.mark.parametrize("name", ["evaluate", "run"])
def test_in_words_of_keeps_commands_with_dots_in_names(name: str) -> None:
    command = (
        "ctxextend resize ./my.model --to N --tensor enc.pos_embed.weight --config-key n_positions"
    )
    flags = {
        "evaluate": ["--data"],
        "run": ["--set"],
        "resize": ["--to", "--tensor", "--config-key"],
    }
    assert in_words_of(name, f"Specify it: {command}", flags) == f"Specify it: {command}"
    hint = in_words_of(name, f"Specify it: {command}. Or pass --to 8", flags)
    assert hint.startswith(f"Specify it: {command}. Or pass ")


def test_recipe_keys_are_those_of_recipe_files() -> None:
    assert recipe_keys("--trained-length") == ["resize.trained_length"]
    assert recipe_keys("--to") == ["convert.to", "resize.to"]
