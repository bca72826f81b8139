"""Errors name arguments to a caller from Python, and flags on the command line."""

import ast
import inspect
import pickle
import re

import pytest

import ctxextend
from ctxextend.cli.app import command_flags
from ctxextend.errors import ResizeError, arguments_renamed, flag_name, on_the_command_line
from ctxextend.python_words import (
    ARGUMENTS,
    FLAG_WITH_VALUE,
    OTHER_NAMES,
    SENTENCE_WORDS,
    SWITCHES,
    VALUES,
    in_words_of_python,
)
from tests.helpers.repository import PACKAGE
from tests.helpers.trainings import invoke

# Words after a flag, in texts of the package, that are its value and not a part of the sentence.
TYPED_VALUES = {
    "2x",
    "4x",
    "all",
    "all-but-positions",
    "articles.jsonl",
    "auto",
    "bands",
    "book.txt",
    "fp32",
    "bf16",
    "gguf",
    "gpt2",
    "keep",
    "limits",
    "linear",
    "llama.cpp",
    "position",
    "positions",
    "retrieval",
    "rotary",
    "shift",
    "theta",
    "vllm",
    "yarn",
    "yarn:beta-fast=16,beta-slow=2",
    "source=BASE",
    "train.data=PATH",
    "provenance=null",
}


def functions() -> list[inspect.Signature]:
    """Return the signatures of the public functions that have flags."""
    found = []
    for name in ctxextend.__all__:
        member = getattr(ctxextend, name)
        if inspect.isfunction(member):
            found.append(inspect.signature(member))
    return found


def test_arguments_are_those_of_the_public_functions_that_have_a_flag() -> None:
    names = set[str]()
    switches = set[str]()
    for signature in functions():
        for parameter in signature.parameters.values():
            names.add(flag_name(parameter.name))
            if isinstance(parameter.default, bool):
                switches.add(flag_name(parameter.name))
    flags = {flag for listed in command_flags().values() for flag in listed}
    assert {f"--{name}" for name in ARGUMENTS} == names & flags - {f"--{flag}" for flag in VALUES}
    assert {f"--{name}" for name in SWITCHES} == switches & flags
    for flag, argument in OTHER_NAMES.items():
        assert f"--{flag}" in flags
        assert flag_name(argument) in names


def test_words_after_a_flag_in_texts_of_the_package_are_a_sentence_or_known_values() -> None:
    found = set[str]()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            for match in FLAG_WITH_VALUE.finditer(node.value):
                flag, value = match.groups()
                if flag in ARGUMENTS - SWITCHES and value and value.islower():
                    found.add(value.rstrip("`"))
    assert found - SENTENCE_WORDS <= TYPED_VALUES
    assert SENTENCE_WORDS.isdisjoint(TYPED_VALUES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--to must be positive, got 0.", "to must be positive, got 0."),
        ("--to 512: too long.", "to=512: too long."),
        ("Use --to 4x or fewer.", 'Use to="4x" or fewer.'),
        ("--method yarn: no pairs.", 'method="yarn": no pairs.'),
        ("Use --method bands:gain=1.5.", 'Use method="bands:gain=1.5".'),
        ("Remove --verify.", "Remove verify=True."),
        ("Pass --base MODEL.", "Pass base=MODEL."),
        ("--keep-first 5 and --drop-last 2", "keep_first=5 and drop_last=2"),
        ("Try --data a.txt --data b.txt.", 'Try data=["a.txt", "b.txt"].'),
        ("--pairs and --contrastive apply", 'contrastive="pairs" and contrastive="passages" apply'),
        ("Use --method linear --data TEXT.", 'Use method="linear", data=TEXT.'),
        ("Use --method yarn or switch.", 'Use method="yarn" or "switch".'),
        (
            "Use --method a or b or c, or pass --trained-length 8.",
            'Use method="a" or "b" or "c", or pass trained_length=8.',
        ),
        ("Unknown method 'linear --to 5'.", "Unknown method 'linear --to 5'."),
        ("--variant '../x' must be a name.", "variant='../x' must be a name."),
        ("--to, --drop-last do not apply.", "to, drop_last do not apply."),
        ("--for vllm states it", 'runtime="vllm" states it'),
        ("--set train.steps=5 or --steps", 'changes=["train.steps=5"] or steps'),
        ("See ctxextend inspect DIR --part encoder.", "See ctxextend inspect DIR --part encoder."),
        (
            "Start torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp, or remove --fsdp.",
            "Start torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp, or remove fsdp=True.",
        ),
        ("Use pip install --upgrade gguf.", "Use pip install --upgrade gguf."),
        ("Raise --lr (1e-4 is low).", "Raise lr (1e-4 is low)."),
    ],
)
def test_in_words_of_python_names_arguments_and_keeps_commands(text: str, expected: str) -> None:
    assert in_words_of_python(text, {}) == expected
    error = ResizeError(text, text)
    assert error.message == error.hint == expected
    with on_the_command_line():
        assert error.message == error.hint == text


def test_resize_names_arguments_in_its_errors() -> None:
    with pytest.raises(ResizeError, match=r"^to must be an integer, got 512\.0\.$"):
        ctxextend.resize("tiny-gpt2", to=512.0)  # type: ignore[arg-type]
    with pytest.raises(ResizeError) as caught:
        ctxextend.resize("tiny-gpt2", to=512, method="linear", keep_first=256)
    error = caught.value
    left = "none of the 128 learned positions is left as a source."
    assert error.message == f'keep_first=256 with method="linear": {left}'
    assert error.hint == "Use keep_first=64."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_compare_names_its_own_arguments_in_errors() -> None:
    with pytest.raises(ResizeError, match=r'^methods="linear" has no setting '):
        ctxextend.compare("tiny-gpt2", "4x", "text.txt", methods="linear:alpha=1")


def test_commands_name_flags_in_their_errors() -> None:
    done = invoke("resize", "tiny-gpt2", "--to", 512, "--method", "linear", "--keep-first", 256)
    assert "--keep-first 256 with --method linear: none" in done.stderr
    assert "keep_first" not in done.stderr


def test_arguments_renamed_applies_to_errors_of_its_block_only() -> None:
    with pytest.raises(ResizeError, match=r"^other=5 is wrong\.$"), arguments_renamed(to="other"):
        raise ResizeError("--to 5 is wrong.")
    assert str(ResizeError("--to 5 is wrong.")) == "to=5 is wrong."


def test_dir_lists_the_public_names_only() -> None:
    names = dir(ctxextend)
    assert names == sorted(ctxextend.__all__)
    for name in names:
        assert re.fullmatch(r"[A-Za-z]\w*|__version__", name)
        assert getattr(ctxextend, name) is not None
