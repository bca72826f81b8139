"""`train`, `run` and `compare` stopped and failed at system calls that change files.

Some of them here, and all of them in `make test-slow`.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import trainings
from tests.faults.nursery import Ended, Nursery, open_nursery
from tests.faults.tracing import Call, calls, needs_strace, some, traced
from tests.pico import contents, tensor_bytes

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]

OUTPUT = Path("out")
# What a training writes while it takes steps.
WRITTEN_BY_STEPS = ("out.training/saves/", "out.training/saves>")
TRAIN = ("train", "source", "--data", "book.txt", "--steps", 3, "--save-every", 1, "--batch-size", 4, "-o", OUTPUT)

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


class Training(NamedTuple):
    """A training that nothing stops."""

    nursery: Nursery  # of processes that have trained before
    tensors: Tensors  # what it gives
    calls: list[Call]  # by which it does


@pytest.fixture(scope="module")
def training(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    folder = tmp_path_factory.mktemp("nursery")
    shutil.copytree(gpt2, folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trainings.write_book()
        first = (folder / value if value in ("source", "book.txt") else value for value in TRAIN[:-1])
        with open_nursery(*first, folder / "first", "--quiet") as nursery:
            found = changing_calls(nursery, *TRAIN)
            yield Training(nursery, tensor_bytes(OUTPUT), found)


@pytest.fixture(autouse=True)
def _source(gpt2: Path, book: None) -> None:
    """Put a source beside the text in the test's folder."""
    shutil.copytree(gpt2, "source")


def changing_calls(nursery: Nursery, *arguments: object) -> list[Call]:
    """Run a command to its end; return the calls by which it changes files, but for what it prints."""
    return [call for call in calls(nursery, *arguments) if not call.given.startswith(("1<", "2<"))]


def check_again(nursery: Nursery, arguments: Sequence[object], wanted: Tensors) -> None:
    """See that the next run ends as if none had been stopped before it, clears what that one left, and clear it."""
    force = ["--force"] if OUTPUT.exists() else []
    again = nursery.run(*arguments, "--resume", *force)
    assert again.code == 0, again
    assert tensor_bytes(OUTPUT) == wanted
    assert {path.name for path in Path().iterdir()} - {"recipe.yaml"} == {"book.txt", "out", "source"}
    shutil.rmtree(OUTPUT)


def check_killed(nursery: Nursery, arguments: Sequence[object], wanted: Tensors, found: list[Call]) -> None:
    """Kill a command at each of some calls; see that it leaves its whole output or none, and goes on."""
    before = contents(Path("source"))
    for call in found:
        ended, _ = traced(nursery, arguments, f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, call
        assert contents(Path("source")) == before, call
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == wanted, call
        check_again(nursery, arguments, wanted)


def test_train_killed_anywhere_goes_on_from_its_last_save(training: Training) -> None:
    check_killed(training.nursery, TRAIN, training.tensors, some(training.calls, 0, 60))


def test_run_killed_anywhere_goes_on_from_its_last_save(training: Training) -> None:
    train = "{data: book.txt, steps: 2, save_every: 1, batch_size: 4}"
    Path("recipe.yaml").write_text(f"source: source\nresize: {{to: 40, method: copy}}\ntrain: {train}\noutput: out")
    found = changing_calls(training.nursery, "run", "recipe.yaml")
    wanted = tensor_bytes(OUTPUT)
    shutil.rmtree(OUTPUT)
    check_killed(training.nursery, ("run", "recipe.yaml"), wanted, some(found, 30, 100))


def test_train_stopped_anywhere_goes_on_from_there(training: Training) -> None:
    for call in some(training.calls, 7, 90):
        ended, _ = traced(training.nursery, TRAIN, f"{call.name}:signal=TERM:when={call.k}")
        assert ended.code == 143 or (ended.code == 0 and OUTPUT.exists()), (call, ended)
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == training.tensors, call
        check_again(training.nursery, TRAIN, training.tensors)


def says_what_is_left(ended: Ended) -> bool:
    """Whether a command reports the last complete state, the disk space of a state, and how to resume."""
    states = r"the previous state, out\.training/saves/checkpoint-\d, is complete|no earlier state exists"
    previous = re.search(rf"({states})\.", ended.stderr)
    space = re.search(r"A saved state needs [\d,]+ bytes, and out\.training/saves has [\d,]+ free", ended.stderr)
    return bool(previous and space and "Free disk space, then resume with --resume." in ended.stderr)


@pytest.mark.parametrize(("error", "first"), [("ENOSPC", 12), ("EIO", 26)])
def test_train_where_a_call_fails_says_so_and_goes_on(error: str, first: int, training: Training) -> None:
    for call in some(training.calls, first, 80):
        ended, _ = traced(training.nursery, TRAIN, f"{call.name}:error={error}:when={call.k}")
        if ended.code == 0:
            assert tensor_bytes(OUTPUT) == training.tensors, call
        else:
            assert ended.code == 1, (call, ended)
            assert "Error: " in ended.stderr, (call, ended)
            assert "Traceback" not in ended.stderr, (call, ended)
            assert not OUTPUT.exists(), call
            assert says_what_is_left(ended) == any(name in call.given for name in WRITTEN_BY_STEPS), (call, ended)
        check_again(training.nursery, TRAIN, training.tensors)


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


def is_whole(page: Path) -> bool:
    """Whether it is a whole page, whatever time the comparison took."""
    return page.read_bytes().startswith(b"<!DOCTYPE html>") and page.read_bytes().rstrip().endswith(b"</html>")


def test_compare_killed_anywhere_leaves_the_old_page_or_the_new(training: Training) -> None:
    found, page = changing_calls(training.nursery, *COMPARE), Path("page.html")
    for call in some(found, 2, 8):
        page.write_bytes(b"old")
        ended, _ = traced(training.nursery, COMPARE, f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, call
        assert page.read_bytes() == b"old" or is_whole(page), call
        assert training.nursery.run(*COMPARE).code == 0, call
        assert is_whole(page), call
        assert sorted(path.name for path in Path().iterdir()) == ["book.txt", "page.html", "source"]
