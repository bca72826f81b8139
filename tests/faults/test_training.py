"""Faults at system calls of `train`, `run` and `compare` that change files.

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
    "--save-every",
    1,
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
        first = (
            folder / value if value in ("source", "book.txt") else value for value in TRAIN[:-1]
        )
        with open_fork_server(*first, folder / "first", "--quiet") as server:
            found = changing_calls(server, *TRAIN)
            yield Training(server, tensor_bytes(OUTPUT), found)


@pytest.fixture(autouse=True)
def _source(gpt2: Path, book: None) -> None:
    """Copy a source into the test's folder, which contains the text."""
    shutil.copytree(gpt2, "source")


def changing_calls(server: ForkServer, *arguments: object) -> list[Call]:
    """Run a command and return its calls that change files, except those that print."""
    return [
        call for call in calls(server, *arguments) if not call.arguments.startswith(("1<", "2<"))
    ]


def check_resumes(server: ForkServer, arguments: Sequence[object], expected: Tensors) -> None:
    """Check that the next run gives the expected output without leftovers; delete it."""
    force = ["--force"] if OUTPUT.exists() else []
    retry = server.run(*arguments, "--resume", *force)
    assert retry.code == 0, retry
    assert tensor_bytes(OUTPUT) == expected
    assert {path.name for path in Path().iterdir()} - {"recipe.yaml"} == {
        "book.txt",
        "out",
        "source",
    }
    shutil.rmtree(OUTPUT)


def check_killed(
    server: ForkServer, arguments: Sequence[object], expected: Tensors, found: list[Call]
) -> None:
    """Kill a command at each call; check that its output is complete or none, and it resumes."""
    before = contents(Path("source"))
    for call in found:
        done, _ = traced(server, arguments, f"{call.name}:signal=KILL:when={call.k}")
        assert done.code == -9, call
        assert contents(Path("source")) == before, call
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == expected, call
        check_resumes(server, arguments, expected)


def test_train_killed_at_any_call_resumes_from_its_last_save(training: Training) -> None:
    check_killed(training.server, TRAIN, training.tensors, sample(training.calls, 0, 120))


def test_run_killed_at_any_call_resumes_from_its_last_save(training: Training) -> None:
    train = "{data: book.txt, steps: 2, save_every: 1, batch_size: 4}"
    Path("recipe.yaml").write_text(
        f"source: source\nresize: {{to: 40, method: copy}}\ntrain: {train}\noutput: out"
    )
    found = changing_calls(training.server, "run", "recipe.yaml")
    expected = tensor_bytes(OUTPUT)
    shutil.rmtree(OUTPUT)
    check_killed(training.server, ("run", "recipe.yaml"), expected, sample(found, 30, 200))


def test_train_interrupted_at_any_call_resumes(training: Training) -> None:
    for call in sample(training.calls, 7, 180):
        done, _ = traced(training.server, TRAIN, f"{call.name}:signal=TERM:when={call.k}")
        assert done.code == 143 or (done.code == 0 and OUTPUT.exists()), (call, done)
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == training.tensors, call
        check_resumes(training.server, TRAIN, training.tensors)


def reports_how_to_resume(done: Completed) -> bool:
    """Whether a command reports the last complete state, its space, and how to resume."""
    complete = r"the previous state, out\.training/saves/checkpoint-\d, is complete"
    previous = re.search(rf"({complete}|no earlier state exists)\.", done.stderr)
    space = re.search(
        r"A saved state needs [\d,]+ bytes, and out\.training/saves has [\d,]+ free", done.stderr
    )
    return bool(previous and space and "Free disk space, then resume with --resume." in done.stderr)


@pytest.mark.parametrize(("error", "first"), [("ENOSPC", 12), ("EIO", 26)])
def test_train_reports_a_failing_call_and_resumes(
    error: str, first: int, training: Training
) -> None:
    for call in sample(training.calls, first, 160):
        done, _ = traced(training.server, TRAIN, f"{call.name}:error={error}:when={call.k}")
        if done.code == 0:
            assert tensor_bytes(OUTPUT) == training.tensors, call
        else:
            assert done.code == 1, (call, done)
            assert "Error: " in done.stderr, (call, done)
            assert "Traceback" not in done.stderr, (call, done)
            assert not OUTPUT.exists(), call
            assert reports_how_to_resume(done) == any(
                name in call.arguments for name in STEP_PATHS
            ), (call, done)
        check_resumes(training.server, TRAIN, training.tensors)


COMPARE = (
    "compare",
    "source",
    "--to",
    40,
    "--data",
    "book.txt",
    "--method",
    "copy",
    "--method",
    "last",
    "--report",
    "page.html",
)


def is_complete(page: Path) -> bool:
    """Whether a page is complete; its content depends on timings."""
    return page.read_bytes().startswith(b"<!DOCTYPE html>") and page.read_bytes().rstrip().endswith(
        b"</html>"
    )


def test_compare_killed_at_any_call_leaves_the_old_or_the_new_page(training: Training) -> None:
    found = changing_calls(training.server, *COMPARE)
    page = Path("page.html")
    for call in sample(found, 2, 16):
        page.write_bytes(b"old")
        done, _ = traced(training.server, COMPARE, f"{call.name}:signal=KILL:when={call.k}")
        assert done.code == -9, call
        assert page.read_bytes() == b"old" or is_complete(page), call
        assert training.server.run(*COMPARE).code == 0, call
        assert is_complete(page), call
        assert sorted(path.name for path in Path().iterdir()) == ["book.txt", "page.html", "source"]
