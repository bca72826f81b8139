"""A source that is replaced, deleted or written to while it is read: an error, or one whole content, no mixture."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import pico
from tests.faults.nursery import Nursery, open_nursery
from tests.faults.outcomes import RESIZE, found, leftovers, made, put_none
from tests.faults.tracing import calls, needs_strace, some, traced
from tests.pico import contents

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]

READING = ("openat", "read", "pread64", "copy_file_range", "newfstatat", "getdents64")


def other_source(source: Path) -> Path:
    """Another checkpoint whose files are as long, each with another content."""
    other = Path("other")
    shutil.copytree(source, other)
    for path in other.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    for path in other.glob("*.bin"):
        torch.save({name: tensor + 1 for name, tensor in torch.load(path).items()}, path)
    path = other / "config.json"
    path.write_text(path.read_text().replace('"n_head": 2', '"n_head": 4'))
    return other


def replaced() -> None:
    Path("source").rename("gone")
    shutil.copytree("other", "source")


def deleted() -> None:
    Path("source").rename("gone")


def overwritten() -> None:
    for path in Path("other").rglob("*"):
        if path.is_file():
            shutil.copyfile(path, "source" / path.relative_to("other"))


def shortened() -> None:
    for path in weights():
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 8)


def emptied() -> None:
    for path in weights():
        os.truncate(path, 0)


def weights() -> list[Path]:
    return [path for path in Path("source").iterdir() if path.suffix in (".safetensors", ".bin")]


# How a source changes, by what holds its weights; each at every tenth or twentieth read, beginning with another.
CHANGES: dict[str, tuple[Callable[[], None], ...]] = {
    "safetensors": (replaced, deleted, overwritten, shortened),
    "torch": (deleted, overwritten, emptied),
}
STEPS = {"safetensors": 10, "torch": 20}


def make_torch_source(folder: Path) -> Path:
    """A GPT-2 as torch.save writes it."""
    pico.make(folder, "gpt2")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="module")
def resizing_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Processes that have resized a torch file before, and so have imported torch."""
    folder = tmp_path_factory.mktemp("torch")
    made = make_torch_source(folder / "source")
    with open_nursery("resize", made, "--to", 20, "-o", folder / "first", "--quiet") as nursery:
        yield nursery


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind in CHANGES for change in CHANGES[kind]])
def test_resize_of_a_source_that_changes_is_an_error_or_whole(
    kind: str, change: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    if kind == "torch":
        resizing: Nursery = request.getfixturevalue("resizing_torch")
        source = make_torch_source(Path("source"))
    else:
        resizing, source = request.getfixturevalue("resizing"), request.getfixturevalue("source")
    before, first = contents(source), made(resizing, 32)
    other_source(source)
    source.rename("kept")
    shutil.copytree("other", "source")
    shutil.rmtree("peace-32")
    second = made(resizing, 32)
    assert first != second
    reset(before)
    reads = [call for call in calls(resizing, *RESIZE, of=READING) if "source" in call.given]
    outcomes = set()
    # The last always: behind it nothing is read that could be missed.
    for call in dict.fromkeys([*some(reads, CHANGES[kind].index(change), STEPS[kind]), reads[-1]]):
        reset(before)
        injection = f"{call.name}:signal=STOP:when={call.k}"
        ended, _ = traced(resizing, RESIZE, injection, of=READING, meanwhile=change)
        assert "Traceback" not in ended.stderr, (call, ended)
        assert leftovers() == [], call
        if ended.code:
            assert (ended.code, found()) == (1, None), (call, ended)
            assert "Error: " in ended.stderr
        else:
            assert found() in (first, second), call
        outcomes.add(ended.code)
    assert outcomes == {0, 1}


def reset(content: dict[str, bytes]) -> None:
    put_none()
    for name in ("source", "gone"):
        shutil.rmtree(name, ignore_errors=True)
    for name, data in content.items():
        path = Path("source") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
