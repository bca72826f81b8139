"""Faults at system calls of `train` and `run` that change files.

`make test` tries a sample, and `make test-slow` all of them.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers import trainings
from tests.helpers.fork_server import Completed, ForkServer, open_fork_server
from tests.helpers.pico import contents, tensor_bytes
from tests.helpers.tracing import Call, calls, needs_strace, sample, traced

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]

OUTPUT = Path("out")
# Paths that a training run writes during its steps.
STEP_PATHS = ("out.training/saves/", "out.training/saves>")
TRAIN = (
    "train",
    "source",
    "--data",
    "book.txt",
    "--steps",
    3,
    "--batch-size",
    4,
    "-o",
    OUTPUT,
)

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


class Training(NamedTuple):
    """An uninterrupted training run."""

    server: ForkServer  # has already trained
    tensors: Tensors  # of its output
    calls: list[Call]  # that change files


@pytest.fixture(scope="module")
def training(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(gpt2, folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trainings.write_book()
        first: list[object] = []
        for value in TRAIN[:-1]:
            is_input = value in ("source", "book.txt")
            first.append(folder / str(value) if is_input else value)
        with open_fork_server(*first, folder / "first", "--quiet") as server:
            found = changing_calls(server, *TRAIN)
            yield Training(server, tensor_bytes(OUTPUT), found)


@pytest.fixture(autouse=True)
def _source(gpt2: Path, book: None) -> None:
    """Copy a source into the test's folder, which contains the text."""
    shutil.copytree(gpt2, "source")


def changing_calls(server: ForkServer, *arguments: object) -> list[Call]:
    """Run a command and return its calls that change files, except those that print."""
    printed = ("1<", "2<")
    return [call for call in calls(server, *arguments) if not call.arguments.startswith(printed)]


def check_resumes(server: ForkServer, arguments: Sequence[object], expected: Tensors) -> None:
    """Check that the next run gives the expected output without leftovers; delete it."""
    force = ["--force"] if OUTPUT.exists() else []
    retry = server.run(*arguments, "--resume", *force)
    assert retry.code == 0, retry
    assert tensor_bytes(OUTPUT) == expected
    names = {path.name for path in Path().iterdir()}
    assert names - {"recipe.yaml"} == {"book.txt", "out", "source"}
    shutil.rmtree(OUTPUT)


def check_killed(
    server: ForkServer, arguments: Sequence[object], expected: Tensors, found: list[Call]
) -> None:
    """Kill a command at each call; check that its output is complete or none, and it resumes."""
    before = contents(Path("source"))
    for call in found:
        fault = f"{call.name}:signal=KILL:when={call.k}"
        done, _ = traced(server, arguments, fault)
        assert done.code == -9, call
        assert contents(Path("source")) == before, call
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == expected, call
        check_resumes(server, arguments, expected)


def test_train_killed_at_any_call_resumes_from_its_last_save(training: Training) -> None:
    chosen = sample(training.calls, 0, 120)
    check_killed(training.server, TRAIN, training.tensors, chosen)


def test_run_killed_at_any_call_resumes_from_its_last_save(training: Training) -> None:
    train = "{data: book.txt, steps: 2, batch_size: 4}"
    Path("recipe.yaml").write_text(
        f"source: source\nresize: {{to: 40, method: copy}}\ntrain: {train}\noutput: out"
    )
    found = changing_calls(training.server, "run", "recipe.yaml")
    expected = tensor_bytes(OUTPUT)
    shutil.rmtree(OUTPUT)
    chosen = sample(found, 30, 200)
    check_killed(training.server, ("run", "recipe.yaml"), expected, chosen)


def test_train_interrupted_at_any_call_resumes(training: Training) -> None:
    for call in sample(training.calls, 7, 180):
        fault = f"{call.name}:signal=TERM:when={call.k}"
        done, _ = traced(training.server, TRAIN, fault)
        if done.code != 143:
            assert done.code == 0, (call, done)
            assert OUTPUT.exists(), (call, done)
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == training.tensors, call
        check_resumes(training.server, TRAIN, training.tensors)


def reports_how_to_resume(done: Completed) -> bool:
    """Whether a command reports the last complete state, its space, and how to resume."""
    complete = r"the previous state, out\.training/saves/checkpoint-\d, is complete"
    previous = rf"({complete}|no earlier state exists)\."
    space = r"A saved state needs [\d,]+ bytes, and out\.training/saves has [\d,]+ free"
    hint = r"Free disk space, then resume with --resume\."
    return all(re.search(part, done.stderr) for part in (previous, space, hint))


@pytest.mark.parametrize(("error", "first"), [("ENOSPC", 12), ("EIO", 26)])
def test_train_reports_a_failing_call_and_resumes(
    error: str, first: int, training: Training
) -> None:
    for call in sample(training.calls, first, 160):
        fault = f"{call.name}:error={error}:when={call.k}"
        done, _ = traced(training.server, TRAIN, fault)
        if done.code == 0:
            assert tensor_bytes(OUTPUT) == training.tensors, call
        else:
            assert done.code == 1, (call, done)
            assert "Error: " in done.stderr, (call, done)
            assert "Traceback" not in done.stderr, (call, done)
            assert not OUTPUT.exists(), call
            is_step = any(name in call.arguments for name in STEP_PATHS)
            assert reports_how_to_resume(done) == is_step, (call, done)
        check_resumes(training.server, TRAIN, training.tensors)
