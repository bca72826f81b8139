"""Sources that change while they are read: resizing fails, or reads one version completely."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import pico
from tests.helpers.fork_server import ForkServer, open_fork_server
from tests.helpers.outcomes import RESIZE, expected_output, leftovers, read_output, remove_output
from tests.helpers.pico import contents
from tests.helpers.tracing import calls, needs_strace, sample, traced

pytestmark = [needs_strace, pytest.mark.usefixtures("sweep")]

READ_CALLS = ("openat", "read", "pread64", "copy_file_range", "newfstatat", "getdents64")


def other_source(source: Path) -> Path:
    """Write another checkpoint whose files have equal sizes and different content."""
    other = Path("other")
    shutil.copytree(source, other)
    for path in other.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    for path in other.glob("*.bin"):
        tensors = torch.load(path)
        changed = {name: tensor + 1 for name, tensor in tensors.items()}
        torch.save(changed, path)
    config = other / "config.json"
    text = config.read_text().replace('"n_head": 2', '"n_head": 4')
    config.write_text(text)
    return other


def replace() -> None:
    Path("source").rename("gone")
    shutil.copytree("other", "source")


def delete() -> None:
    Path("source").rename("gone")


def overwrite() -> None:
    for path in Path("other").rglob("*"):
        if path.is_file():
            shutil.copyfile(path, "source" / path.relative_to("other"))


def shorten() -> None:
    for path in weights():
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 8)


def empty() -> None:
    for path in weights():
        os.truncate(path, 0)


def weights() -> list[Path]:
    paths = Path("source").iterdir()
    return [path for path in paths if path.suffix in (".safetensors", ".bin")]


# Changes of a source by weights format; each at every 24th or 64th read, from a different first
# one.
CHANGES: dict[str, tuple[Callable[[], None], ...]] = {
    "safetensors": (replace, delete, overwrite, shorten),
    "torch": (delete, overwrite, empty),
}
STEPS = {"safetensors": 24, "torch": 64}


def make_torch_source(folder: Path) -> Path:
    """Write a GPT-2 with torch.save."""
    pico.make(folder, "gpt2")
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="module")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has already resized a PyTorch file, and so has imported torch."""
    folder = tmp_path_factory.mktemp("torch")
    source = make_torch_source(folder / "source")
    first = folder / "first"
    with open_fork_server("resize", source, "--to", 20, "-o", first, "--quiet") as server:
        yield server


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(("safetensors", change) for change in CHANGES["safetensors"]),
        *(("torch", change) for change in CHANGES["torch"]),
    ],
)
def test_resize_of_a_changing_source_fails_or_reads_one_version(
    kind: str, change: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    if kind == "torch":
        server: ForkServer = request.getfixturevalue("torch_server")
        source = make_torch_source(Path("source"))
    else:
        server = request.getfixturevalue("server")
        source = request.getfixturevalue("source")
    before = contents(source)
    first = expected_output(server, 32)
    other_source(source)
    source.rename("kept")
    shutil.copytree("other", "source")
    shutil.rmtree("expected-32")
    second = expected_output(server, 32)
    assert first != second
    restore_source(before)
    all_reads = calls(server, *RESIZE, names=READ_CALLS)
    reads = [call for call in all_reads if "source" in call.arguments]
    first_read = CHANGES[kind].index(change)
    sampled = sample(reads, first_read, STEPS[kind])
    outcomes = set()
    # Always include the last read, after which no change can matter.
    for call in dict.fromkeys([*sampled, reads[-1]]):
        restore_source(before)
        injection = f"{call.name}:signal=STOP:when={call.k}"
        done, _ = traced(server, RESIZE, injection, names=READ_CALLS, while_stopped=change)
        assert "Traceback" not in done.stderr, (call, done)
        assert leftovers() == [], call
        if done.code:
            assert done.code == 1, (call, done)
            assert read_output() is None, (call, done)
            assert "Error: " in done.stderr
        else:
            assert read_output() in (first, second), call
        outcomes.add(done.code)
    assert outcomes == {0, 1}


def restore_source(content: dict[str, bytes]) -> None:
    remove_output()
    for name in ("source", "gone"):
        shutil.rmtree(name, ignore_errors=True)
    for name, data in content.items():
        path = Path("source") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
