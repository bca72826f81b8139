"""`train --dry-run`: what it states and checks."""

from pathlib import Path

import pytest

from tests.helpers import pico
from tests.helpers.trainings import NEW, invoke, make_resized

pytestmark = pytest.mark.usefixtures("book")


def test_train_dry_run_states_what_would_be_trained_and_writes_nothing(tmp_path: Path) -> None:
    source = make_resized(tmp_path / "gpt2", "gpt2")
    working_folder = pico.contents(Path.cwd())
    model_folder = pico.contents(tmp_path)
    flags = ("--data", "book.txt", "--steps", 4, "--lora", 2, "--dry-run")
    done = invoke("train", source, *flags)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "trained     positions, adapters of rank 2",
        f"steps       4 steps of 8 sequences of {NEW} tokens",
    ]
    assert pico.contents(Path.cwd()) == working_folder
    assert pico.contents(tmp_path) == model_folder
