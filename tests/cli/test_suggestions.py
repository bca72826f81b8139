"""Commands and flags typed by other names are understood by meaning."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ctxextend.cli.app import COMMANDS, build_app, command_flags
from ctxextend.cli.suggestions import COMMANDS_BY_MEANING, MEANINGS, OF_THE_MODEL, suggest_flag

FLAGS = command_flags()
ALL_FLAGS = {flag for flags in FLAGS.values() for flag in flags}


def run(arguments: str) -> Result:
    return CliRunner().invoke(build_app(), arguments.split(), prog_name="ctxextend")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("extend gpt2 --to 4096", "ctxextend resize gpt2 --to 4096"),
        ("expand gpt2", "ctxextend resize gpt2"),
        ("extend gpt2 4k", "ctxextend resize gpt2 --to 4k"),
        ("serve gpt2 4x --for vllm", "ctxextend flags gpt2 --to 4x --for vllm"),
        ("tutorial gpt2", "ctxextend demo"),
        ("check gpt2", "ctxextend inspect gpt2 --check"),
        ("eval gpt2 --data a.txt", "ctxextend evaluate gpt2 --data a.txt"),
        ("finetune gpt2", "ctxextend train gpt2"),
        ("serve gpt2 --to 4k", "ctxextend flags gpt2 --to 4k"),
        ("diff a --base b", "ctxextend verify a --base b"),
        ("list", "ctxextend families"),
        ("show gpt2", "ctxextend inspect gpt2"),
        ("info gpt2", "ctxextend inspect gpt2"),
        ("help", "ctxextend --help"),
        ("help resize", "ctxextend resize --help"),
        ("help nothing", "ctxextend --help"),
        ("version", "ctxextend --version"),
        ("resise gpt2", "ctxextend resize gpt2"),
        ("methds", "ctxextend methods"),
    ],
)
def test_unknown_commands_are_understood_with_what_follows(typed: str, meant: str) -> None:
    done = run(typed)
    assert done.exit_code == 2
    name, *_ = typed.split()
    assert done.stderr.splitlines() == [
        f"Error: Unknown command {name}.",
        f"Did you mean: {meant}",
    ]


def test_a_puzzling_command_names_the_help() -> None:
    assert run("qqq").stderr == "Error: Unknown command qqq.\nSee ctxextend --help.\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train m --learning-rate 1", "--lr"),
        ("train m --learning_rate 1", "--lr"),
        ("resize m --max-len 9", "--to"),
        ("resize m --max-length 9", "--to"),
        ("resize m --length 9", "--to"),
        ("resize m --max-position-embeddings 9", "--to"),
        ("resize m --ctx 9", "--to"),
        ("convert m --context 9", "--to"),
        ("evaluate m --max-length 9", "--length"),
        ("train m --max-length 9", "--seq-len"),
        ("resize m --out x", "--output"),
        ("resize m --output-dir x", "--output"),
        ("train m --dataset x", "--data"),
        ("evaluate m --text x", "--data"),
        ("train m --train-data x", "--data"),
        ("convert m --dataset x", "--train"),
        ("resize m --overwrite", "--force"),
        ("resize m --yes", "--force"),
        ("train m --rank 8", "--lora"),
        ("resize m --type bert", "--model-type"),
        ("resize m --keep_first 3", "--keep-first"),
        ("resize m --Force", "--force"),
        ("resize m --too 3", "--to"),
    ],
)
def test_unknown_flags_are_understood(typed: str, meant: str) -> None:
    done = run(typed)
    command, _, flag, *_ = typed.split()
    assert done.exit_code == 2
    assert done.stderr == f"Error: Unknown option {flag}.\nDid you mean {meant}?\n"
    assert meant in FLAGS[command]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("resize m --epochs 2", "--epochs is a flag of ctxextend train."),
        ("resize m --lr 1", "--lr is a flag of ctxextend train and compare."),
        ("resize m --learning-rate 1", "--lr is a flag of ctxextend train and compare."),
        ("verify m --max-len 5", "--to is a flag of ctxextend resize, convert, flags and compare."),
        ("resize --model m --to 5", "The model is an argument: ctxextend resize MODEL"),
        ("run r.yaml --steps 4", "Set it in the recipe, or with --set train.steps=VALUE"),
        ("run r.yaml --learning-rate 4", "Set it in the recipe, or with --set train.lr=VALUE"),
    ],
)
def test_flags_that_a_command_lacks_are_placed(typed: str, hint: str) -> None:
    done = run(typed)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[1:] == [hint]


def test_every_meaning_is_of_a_flag_or_a_command_that_exists() -> None:
    for row in MEANINGS:
        assert {*row.flags} <= ALL_FLAGS
    for command, *_ in COMMANDS_BY_MEANING.values():
        assert command in COMMANDS or command in ("--help", "--version")
    assert not {*COMMANDS_BY_MEANING} & {*COMMANDS}
    typed = [name for row in MEANINGS for name in row.typed]
    assert len(typed) == len({*typed})


def test_suggestions_name_only_flags_of_the_command() -> None:
    for row in MEANINGS:
        for name in (*row.typed, *OF_THE_MODEL):
            for command in COMMANDS:
                hint = suggest_flag(command, f"--{name}", (), FLAGS) or ""
                for flag in re.findall(r"Did you mean (--[a-z-]+)\?", hint):
                    assert flag in FLAGS[command]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("resize tiny-gpt2 to 512", "Did you mean: ctxextend resize tiny-gpt2 --to 512"),
        ("convert m --scheme rope --to 9", "Did you mean rotary?"),
        ("evaluate m --device gpu", "Did you mean cuda?"),
        ("inspect m --format github", "Add --check."),
        ("inspect models--me--llama", "Pass the Hub id: ctxextend inspect me/llama"),
    ],
)
def test_errors_say_what_is_meant(arguments: str, hint: str) -> None:
    done = run(arguments)
    assert done.exit_code in (1, 2)
    assert done.stderr.splitlines()[1:] == [hint]


def test_a_missing_model_is_compared_with_the_folders_next_to_it() -> None:
    for name in ("tiny-gpt2-512", "models/bert-512"):
        Path(name).mkdir(parents=True)
        Path(name, "config.json").write_text("{}")
    assert "Did you mean tiny-gpt2-512?" in run("inspect tiny-gpt2-513").stderr
    assert "Did you mean models/bert-512?" in run("inspect models/bert-513").stderr


def test_help_all_of_the_app_is_its_help() -> None:
    assert run("--help-all").stdout == run("--help").stdout


def test_compare_of_several_models_without_text_names_a_whole_command() -> None:
    done = run("compare a b")
    assert done.exit_code == 2
    assert done.stderr == (
        "Error: compare needs text for several models, and --data is missing.\n"
        "Pass text: ctxextend compare a b --data TEXT\n"
    )
