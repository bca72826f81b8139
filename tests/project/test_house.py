"""The structure of the package: modules that a command uses, and settings that are defined once."""

import sys
import threading
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

from ctxextend import resize
from ctxextend.cli.app import build_app
from tests.helpers.repository import PACKAGE

OPEN_FUNCTIONS = ("open_checkpoint", "identify_model")


def trace(*command: str) -> tuple[list[str], list[int]]:
    """Return the modules that a command calls, and the number of calls to `OPEN_FUNCTIONS`."""
    modules, calls = set[str](), Counter[str]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & CO_OPTIMIZED  # not the body of a module or class
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            modules.add(code.co_filename.removeprefix(f"{PACKAGE}/"))
            calls[code.co_name] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        done = CliRunner().invoke(build_app(), command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert done.exit_code == 0, done.output
    return sorted(modules), [calls[name] for name in OPEN_FUNCTIONS]


def test_resize_uses_few_modules_and_opens_the_checkpoint_once() -> None:
    modules, calls = trace("resize", "tiny-gpt2", "--to", "512")
    assert len(modules) <= 81, modules
    assert calls == [1, 1]


@pytest.fixture
def book() -> str:
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel, Trainer  # noqa: F401 - slow under a profile

    Path("book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    return "book.txt"


def test_train_uses_few_modules_and_opens_the_checkpoint_once(book: str) -> None:
    resize("tiny-gpt2", 256, output="longer")
    modules, calls = trace("train", "longer", "--data", book, "--steps", "1", "--batch-size", "1")
    assert len(modules) <= 81, modules
    assert calls == [1, 1]
