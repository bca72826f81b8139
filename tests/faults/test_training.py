"""`train`, `run` and `compare` stopped and failed at system calls that change files.

Some of them here, and all of them in `make test-slow`.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import trainings
from tests.faults.nursery import Ended, Nursery, open_nursery
from tests.faults.tracing import Call, calls, needs_strace, some, traced
from tests.pico import contents, tensor_bytes

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]

OUTPUT, WORK = Path("out"), Path("out.training")
# What a training writes while it takes steps.
WRITTEN_BY_STEPS = ("out.training/saves/", "out.training/saves>")
TRAIN = ("train", "source", "--data", "book.txt", "--steps", 3, "--save-every", 1, "--batch-size", 4, "-o", OUTPUT)

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


@pytest.fixture(scope="module")
def training(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes that have trained before."""
    folder = tmp_path_factory.mktemp("nursery")
    shutil.copytree(gpt2, folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trainings.write_book()
        first = (folder / value if value in ("source", "book.txt", OUTPUT) else value for value in TRAIN)
        with open_nursery(*first, "--quiet") as nursery:
            yield nursery


@pytest.fixture(scope="module")
def undisturbed(training: Nursery, gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensors, list[Call]]:
    """What the training gives that is never stopped, and the calls by which it does."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(gpt2, folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trainings.write_book()
        found = calls(training, *TRAIN)
    return tensor_bytes(folder / OUTPUT), [call for call in found if not is_print(call)]


@pytest.fixture
def trained(undisturbed: tuple[Tensors, list[Call]], gpt2: Path, book: None) -> Tensors:
    """What the training gives that is never stopped; its source lies in the test's folder."""
    shutil.copytree(gpt2, "source")
    return undisturbed[0]


@pytest.fixture
def made(undisturbed: tuple[Tensors, list[Call]]) -> list[Call]:
    """The calls of a training that is not stopped."""
    return undisturbed[1]


def clear() -> None:
    """Remove all that a run left."""
    for path in Path().iterdir():
        if path.name.startswith((OUTPUT.name, f".{OUTPUT.name}")):
            shutil.rmtree(path)


def check_again(nursery: Nursery, wanted: Tensors) -> None:
    """See that the next run ends as if none had been stopped before it, and clears what that one left."""
    force = ["--force"] if OUTPUT.exists() else []
    again = nursery.run(*TRAIN, "--resume", *force)
    assert again.code == 0, again
    assert tensor_bytes(OUTPUT) == wanted
    assert sorted(path.name for path in Path().iterdir()) == ["book.txt", "out", "source"]


def is_print(call: Call) -> bool:
    return call.name == "write" and call.given.startswith(("1<", "2<"))


def is_known(ended: Ended) -> bool:
    """Whether a command failed in good order."""
    return ended.code == 1 and "Error: " in ended.stderr and "Traceback" not in ended.stderr


def test_train_killed_anywhere_goes_on_from_its_last_save(
    training: Nursery, trained: Tensors, made: list[Call]
) -> None:
    before = contents(Path("source"))
    for call in some(made, 0, 60):
        ended, _ = traced(training, TRAIN, f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, call
        assert contents(Path("source")) == before, call
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == trained, call
        check_again(training, trained)
        clear()


def test_train_stopped_anywhere_goes_on_from_there(training: Nursery, trained: Tensors, made: list[Call]) -> None:
    for call in some(made, 7, 90):
        ended, _ = traced(training, TRAIN, f"{call.name}:signal=TERM:when={call.k}")
        assert ended.code == 143 or (ended.code == 0 and OUTPUT.exists()), (call, ended)
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == trained, call
        check_again(training, trained)
        clear()


def says_what_is_left(ended: Ended) -> bool:
    """Whether a command says which save is whole, what a save needs, and how to go on."""
    whole = re.search(
        r"(the save before it, out\.training/saves/checkpoint-\d, is whole|there was none before it)\.", ended.stderr
    )
    room = re.search(r"A save needs [\d,]+ bytes, and out\.training/saves has [\d,]+ free", ended.stderr)
    return bool(whole and room and "Free some space, then go on with --resume" in ended.stderr)


@pytest.mark.parametrize(("error", "first"), [("ENOSPC", 12), ("EIO", 26)])
def test_train_where_a_call_fails_says_so_and_goes_on(
    error: str, first: int, training: Nursery, trained: Tensors, made: list[Call]
) -> None:
    for call in some(made, first, 80):
        ended, _ = traced(training, TRAIN, f"{call.name}:error={error}:when={call.k}")
        if ended.code == 0:
            assert tensor_bytes(OUTPUT) == trained, call
        else:
            assert is_known(ended), (call, ended)
            assert not OUTPUT.exists(), call
            assert says_what_is_left(ended) == any(name in call.given for name in WRITTEN_BY_STEPS), (call, ended)
            check_again(training, trained)
        clear()


RECIPE = """
source: source
resize: {to: 40, method: copy}
train: {data: book.txt, steps: 2, save_every: 1, batch_size: 4}
output: out
"""


def test_run_killed_anywhere_goes_on_from_its_last_save(training: Nursery, gpt2: Path, book: None) -> None:
    shutil.copytree(gpt2, "source")
    Path("recipe.yaml").write_text(RECIPE)
    found = [call for call in calls(training, "run", "recipe.yaml") if not is_print(call)]
    wanted = tensor_bytes(OUTPUT)
    for call in some(found, 30, 100):
        clear()
        ended, _ = traced(training, ("run", "recipe.yaml"), f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, call
        assert not OUTPUT.exists() or tensor_bytes(OUTPUT) == wanted, call
        force = ["--force"] if OUTPUT.exists() else []
        assert training.run("run", "recipe.yaml", "--resume", *force).code == 0, call
        assert tensor_bytes(OUTPUT) == wanted
        assert sorted(path.name for path in Path().iterdir()) == ["book.txt", "out", "recipe.yaml", "source"]


COMPARE = ("compare", "source", "--to", 40, "--data", "book.txt", "--methods", "copy,last", "--report", "page.html")


def is_whole(page: Path) -> bool:
    """Whether it is a whole page, whatever time the comparison took."""
    return page.read_bytes().startswith(b"<!DOCTYPE html>") and page.read_bytes().rstrip().endswith(b"</html>")


def test_compare_killed_anywhere_leaves_the_old_page_or_the_new(training: Nursery, gpt2: Path, book: None) -> None:
    shutil.copytree(gpt2, "source")
    found = [call for call in calls(training, *COMPARE) if not is_print(call)]
    page = Path("page.html")
    for call in some(found, 2, 8):
        page.write_bytes(b"old")
        ended, _ = traced(training, COMPARE, f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, call
        assert page.read_bytes() == b"old" or is_whole(page), call
        assert training.run(*COMPARE).code == 0, call
        assert is_whole(page), call
        assert sorted(path.name for path in Path().iterdir()) == ["book.txt", "page.html", "source"]
