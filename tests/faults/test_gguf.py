"""`resize` of a GGUF file, killed, interrupted or failing at system calls that change a file."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.fork_server import ForkServer, open_fork_server
from tests.helpers.gguf_files import LENGTH, WIDTH, write_gguf
from tests.helpers.outcomes import leftovers, run_with_signal
from tests.helpers.tracing import calls, needs_strace, sample, traced

OUTPUT = Path("to/out.gguf")
RESIZE = ("resize", "base.gguf", "--to", 4 * LENGTH, "-o", OUTPUT)
SPARSE_BYTES = 1 << 30


@pytest.fixture(scope="module")
def gguf_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server that has already resized a GGUF file."""
    folder = tmp_path_factory.mktemp("server")
    base = write_gguf(folder / "base.gguf")
    arguments = ("resize", base, "--to", 2 * LENGTH, "-o", folder / "out.gguf", "--quiet")
    with open_fork_server(*arguments) as server:
        yield server


@pytest.fixture
def base(_empty_folder: None) -> bytes:
    """The content of ``base.gguf`` in the test's folder."""
    return write_gguf(Path("base.gguf")).read_bytes()


def expected(server: ForkServer) -> bytes:
    """Resize without faults, remove the output, and return its content."""
    done = server.run(*RESIZE)
    assert done.code == 0, done.stderr
    content = OUTPUT.read_bytes()
    remove_output()
    return content


def remove_output() -> None:
    for path in (*OUTPUT.parent.glob("*"), *OUTPUT.parent.glob(".*")):
        path.unlink()
    if OUTPUT.parent.exists():
        OUTPUT.parent.rmdir()


@pytest.mark.usefixtures("sweep")
@needs_strace
def test_resize_of_a_gguf_file_killed_at_any_call_leaves_no_or_complete_output(
    gguf_server: ForkServer, base: bytes
) -> None:
    new = expected(gguf_server)
    outcomes = set()
    write_calls = calls(gguf_server, *RESIZE)
    for call in [*sample(write_calls[:-2], 0, 2), *write_calls[-2:]]:
        remove_output()
        done = run_with_signal(gguf_server, call, RESIZE, "KILL")
        assert done.code == -9, call
        assert Path("base.gguf").read_bytes() == base, call
        outcomes.add(OUTPUT.exists())
        if OUTPUT.exists():
            assert OUTPUT.read_bytes() == new, call
        force = ["--force"] if OUTPUT.exists() else []
        retry = gguf_server.run(*RESIZE, *force)
        assert retry.code == 0, (call, retry)
        assert OUTPUT.read_bytes() == new, call
        assert leftovers() == [], call
    assert outcomes == {True, False}


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize(("signal", "code"), [("TERM", 143), ("INT", 130)])
def test_resize_of_a_gguf_file_interrupted_at_any_call_leaves_nothing(
    signal: str, code: int, gguf_server: ForkServer, base: bytes
) -> None:
    new = expected(gguf_server)
    for call in sample(calls(gguf_server, *RESIZE), 1, 3):
        remove_output()
        done = run_with_signal(gguf_server, call, RESIZE, signal)
        assert done.code == code, (call, done)
        assert leftovers() == [], call
        if OUTPUT.exists():
            assert OUTPUT.read_bytes() == new, call
        assert OUTPUT.parent.exists() == OUTPUT.exists(), call
        assert Path("base.gguf").read_bytes() == base, call


@pytest.mark.usefixtures("sweep")
@needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_resize_of_a_gguf_file_leaves_the_old_output_if_a_call_fails(
    error: str, gguf_server: ForkServer, base: bytes
) -> None:
    new = expected(gguf_server)
    arguments = (*RESIZE, "--force")
    OUTPUT.parent.mkdir()
    OUTPUT.write_bytes(base)
    for call in sample(calls(gguf_server, *arguments), 0, 2):
        OUTPUT.write_bytes(base)
        done, log = traced(gguf_server, arguments, f"{call.name}:error={error}:when={call.k}")
        assert "(INJECTED)" in log, call
        assert "Traceback" not in done.stderr, (call, done)
        assert leftovers() == [], call
        assert OUTPUT.read_bytes() in (base, new), call
        if done.code == 0:
            assert OUTPUT.read_bytes() == new, call


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files")
@pytest.mark.parametrize("architecture", ["llama", "bert"])
def test_memory_does_not_grow_with_the_file(architecture: str, _empty_folder: None) -> None:
    table = None
    if architecture == "bert":
        table = np.ones((LENGTH, WIDTH), np.float32)
    write_gguf(Path("base.gguf"), architecture, table=table)
    small = peak_memory("base.gguf")
    write_sparse(Path("base.gguf"), architecture, table=table)
    assert Path("base.gguf").stat().st_size > SPARSE_BYTES
    assert peak_memory("base.gguf") < small + (32 << 20)
    assert Path("big.gguf").stat().st_size > SPARSE_BYTES


def write_sparse(path: Path, architecture: str, *, table: NDArray[Any] | None) -> None:
    """Write a file whose last tensor has `SPARSE_BYTES` of zeros, which take no space."""
    tensors = {"small": np.ones(1, np.float32), "large": np.zeros(1, np.float32)}
    content = write_gguf(path, architecture, table=table, tensors=tensors).read_bytes()
    described = b"large" + struct.pack("<IQ", 1, 1)
    assert content.count(described) == 1
    larger = b"large" + struct.pack("<IQ", 1, SPARSE_BYTES // 4)
    path.write_bytes(content.replace(described, larger))
    with path.open("r+b") as file:
        file.truncate(len(content) + SPARSE_BYTES)


def peak_memory(path: str) -> int:
    """Return the peak memory of a resize in a separate process, in bytes."""
    code = (
        "import resource, sys; from ctxextend import resize; "
        f"resize(sys.argv[1], {4 * LENGTH}, output='big.gguf', force=True); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return 1024 * int(done.stdout)
