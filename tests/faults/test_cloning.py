"""File systems with reflinks: no more is allocated than planned, with the same output."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.disks import mounted, new_blocks
from ctxextend import plan_resize, resize
from tests.helpers import pico
from tests.helpers.fork_server import ForkServer
from tests.helpers.outcomes import (
    RESIZE,
    expected_output,
    leftovers,
    read_output,
    remove_output,
)
from tests.helpers.pico import contents
from tests.helpers.tracing import Call, calls, needs_strace, sample, traced

BLOCK = 4096
MEBIBYTE = 1 << 20
# XFS needs at least 300 MiB.
DISK = 320 * MEBIBYTE
WEIGHTS = 24 * MEBIBYTE
HOLE = 2 * MEBIBYTE
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint aligned to blocks, and one of two shards with holes and dropped tensors."""
    folder = tmp_path_factory.mktemp("sources")
    checkpoint = pico.make(folder / "aligned", "gpt2", vocab_size=997)
    aligned = checkpoint.folder
    path = aligned / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"zz": numbers(WEIGHTS)}, path)
    ragged = Path(shutil.copytree(aligned, folder / "ragged"))
    (ragged / "model.safetensors").unlink()
    first = load_file(path)
    first["transformer.h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)
    first["transformer.h.0.attn.masked_bias"] = np.full((), -1e4, np.float32)
    first["a"] = numbers(MEBIBYTE + 12)
    first["zz"] = with_hole(4 * MEBIBYTE)
    second = {"y": with_hole(3 * MEBIBYTE)}
    weight_map = dict[str, str]()
    for name, shard in zip(SHARDS, (first, second), strict=True):
        save_file(shard, ragged / name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    pico.write_json(ragged / "model.safetensors.index.json", index)
    return folder


def numbers(size: int) -> Any:
    integers = np.arange(size // 4, dtype=np.int32)
    return integers.view(np.float32)


def with_hole(size: int) -> Any:
    tensor = numbers(size)
    tensor[size // 16 :][: HOLE // 4] = 0
    return tensor


@pytest.fixture(scope="module", params=["xfs", "btrfs"])
def disk(
    request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A small disk with reflinks and both checkpoints."""
    with ExitStack() as stack:
        try:
            mount_point = tmp_path_factory.mktemp("disk")
            folder = stack.enter_context(mounted(mount_point, request.param, DISK))
        except OSError as error:
            pytest.skip(str(error))
        folders = [str(sources / "aligned"), str(sources / "ragged")]
        command = ["cp", "-r", "--sparse=always", *folders, str(folder)]
        subprocess.run(command, check=True)
        subprocess.run(["sync", "-f", folder], check=True)
        yield folder


@pytest.fixture
def work_folder(disk: Path, _empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate folder per test on that disk, as current folder."""
    folder = disk / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["aligned", "ragged"])
def test_resize_with_reflinks_shares_unchanged_blocks(
    name: str, disk: Path, work_folder: Path
) -> None:
    plan = plan_resize(disk / name, to=144)
    result = plan.execute(work_folder / "out")
    new = new_blocks(result.output)
    assert new < plan.output.bytes_to_write - WEIGHTS / 4
    if name == "aligned":  # only the new table is allocated, up to some metadata
        assert result.bytes_written > WEIGHTS
        assert new < 144 * pico.WIDTH * 4 + MEBIBYTE


COPY_FILE_RANGE = os.copy_file_range


def short_copy_file_range(source: int, destination: int, count: int, offset_src: int) -> int:
    return COPY_FILE_RANGE(source, destination, min(count, 1_000_003), offset_src=offset_src)


def unsupported_copy_file_range(*_: Any, **__: Any) -> int:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


MODES = {
    "reflink": COPY_FILE_RANGE,
    "short reflinks": short_copy_file_range,
    "copy": unsupported_copy_file_range,
}


@pytest.mark.parametrize("name", ["aligned", "ragged"])
def test_resize_writes_the_same_bytes_with_and_without_reflinks(
    name: str,
    disk: Path,
    work_folder: Path,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = resize(sources / name, to=33, output=tmp_path / "copied")
    expected = weights(copied.output)
    for mode, copy_range in MODES.items():
        monkeypatch.setattr(os, "copy_file_range", copy_range)
        result = resize(disk / name, to=33, output=work_folder / mode)
        assert weights(result.output) == expected, mode

    before = tensors(sources / name)
    after = tensors(work_folder / "reflink")
    dropped = set(before) - set(after)
    assert dropped == {name for name in before if name.endswith((".attn.bias", ".masked_bias"))}
    table = after.pop("transformer.wpe.weight")
    assert len(table) == 33
    for name, values in after.items():
        assert np.array_equal(values.view(np.int32), before[name].view(np.int32))


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if "safetensors" in name}


def tensors(folder: Path) -> dict[str, Any]:
    found = dict[str, Any]()
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def trace_copies(
    server: ForkServer, disk: Path
) -> tuple[list[Call], dict[str, bytes], dict[str, bytes]]:
    """Return the copy and sync calls of a run, and the content of its source and its output."""
    source = shutil.copytree(disk / "ragged", "source")
    before = contents(Path(source))
    new = expected_output(server, 32)
    copying = [call for call in calls(server, *RESIZE) if call.name in ("copy_file_range", "fsync")]
    reflinks = [call for call in copying if call.name == "copy_file_range"]
    assert len(reflinks) > 8
    return copying, before, new


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("disk", ["xfs"], indirect=True)
@needs_strace
def test_resize_copies_if_reflinks_fail(server: ForkServer, disk: Path, work_folder: Path) -> None:
    write_calls, before, new = trace_copies(server, disk)
    write_calls = [call for call in write_calls if call.name == "copy_file_range"]
    for error, first in {"ENOSPC": 1, "EIO": 2, "EOPNOTSUPP": 3}.items():
        for call in sample(write_calls, first, 4):
            remove_output()
            fault = f"{call.name}:error={error}:when={call.k}"
            done, log = traced(server, RESIZE, fault)
            assert "(INJECTED)" in log, call
            assert done.code == 0, (call, done)
            assert read_output() == new, (call, done)
            assert contents(Path("source")) == before, call
            assert leftovers() == [], call
