"""Disks that share blocks between files: no more is allocated than the plan says, and all else is as on others."""

import errno
import json
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
from tests import pico
from tests.faults.nursery import Nursery
from tests.faults.outcomes import OUTPUT, RESIZE, found, leftovers, made, put_none
from tests.faults.tracing import Call, calls, needs_strace, some, traced
from tests.pico import contents

BLOCK, MEBIBYTE = 4096, 1 << 20
# The smallest that XFS has is 300 MiB.
DISK, WEIGHTS = 320 * MEBIBYTE, 24 * MEBIBYTE
HOLE = 2 * MEBIBYTE
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints: one of whole blocks, and one of two shards, with holes, that loses a few bytes in its middle."""
    folder = tmp_path_factory.mktemp("sources")
    whole = pico.make(folder / "whole", "gpt2", vocab_size=997).folder
    path = whole / "model.safetensors"
    save_file(load_file(path) | {"zz": numbers(WEIGHTS)}, path)
    ragged = Path(shutil.copytree(whole, folder / "ragged"))
    (ragged / "model.safetensors").unlink()
    masks = {"bias": np.ones((1, 1, 16, 16), np.float32), "masked_bias": np.full((), -1e4, np.float32)}
    first = load_file(path) | {f"transformer.h.0.attn.{name}": mask for name, mask in masks.items()}
    shards = (first | {"a": numbers(MEBIBYTE + 12), "zz": holed(4 * MEBIBYTE)}, {"y": holed(3 * MEBIBYTE)})
    for name, tensors in zip(SHARDS, shards, strict=True):
        save_file(tensors, ragged / name)
    weight_map = {tensor: name for name, tensors in zip(SHARDS, shards, strict=True) for tensor in tensors}
    (ragged / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def numbers(size: int) -> Any:
    return np.arange(size // 4, dtype=np.int32).view(np.float32)


def holed(size: int) -> Any:
    tensor = numbers(size)
    tensor[size // 16 :][: HOLE // 4] = 0
    return tensor


@pytest.fixture(scope="module", params=["xfs", "btrfs"])
def disk(request: pytest.FixtureRequest, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk that can clone, with the checkpoints on it."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(mounted(tmp_path_factory.mktemp("disk"), request.param, DISK))
        except OSError as error:
            pytest.skip(str(error))
        subprocess.run(["cp", "-r", "--sparse=always", sources / "whole", sources / "ragged", folder], check=True)
        subprocess.run(["sync", "-f", folder], check=True)
        yield folder


@pytest.fixture
def room(disk: Path, _empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on it of the test's own, which is the current one."""
    folder = disk / "room"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["whole", "ragged"])
def test_resize_on_a_disk_that_clones_allocates_what_the_plan_says(name: str, disk: Path, room: Path) -> None:
    plan = plan_resize(disk / name, to=144)
    allocated = plan.bytes_to_write - plan.bytes_shareable
    result = plan.execute(room / "out")
    slack = BLOCK * 2 * len(contents(result.output))
    assert allocated - slack < new_blocks(result.output) < allocated + slack
    assert plan.bytes_shareable > WEIGHTS / 4
    if name == "whole":  # whose new table is all that is allocated, give or take
        assert result.bytes_written > WEIGHTS
        assert allocated < 144 * pico.WIDTH * 4 + MEBIBYTE


COPY_FILE_RANGE = os.copy_file_range


def shortened(source: int, destination: int, count: int, offset_src: int) -> int:
    return COPY_FILE_RANGE(source, destination, min(count, 1_000_003), offset_src=offset_src)


def refused(*_: Any, **__: Any) -> int:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


MODES = {"cloned": COPY_FILE_RANGE, "cloned in part": shortened, "in blocks": refused}


@pytest.mark.parametrize("name", ["whole", "ragged"])
def test_resize_writes_the_same_bytes_by_every_way(
    name: str, disk: Path, room: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = weights(resize(sources / name, to=33, output=tmp_path / "copied").output)
    for way, copy_range in MODES.items():
        monkeypatch.setattr(os, "copy_file_range", copy_range)
        assert weights(resize(disk / name, to=33, output=room / way).output) == wanted, way
    before, after = (tensors(folder) for folder in (sources / name, room / "cloned"))
    table = "transformer.wpe.weight"
    assert set(before) - set(after) == {name for name in before if name.endswith((".attn.bias", ".masked_bias"))}
    assert len(after.pop(table)) == 33
    assert all(np.array_equal(values.view(np.int32), before[name].view(np.int32)) for name, values in after.items())


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if "safetensors" in name}


def tensors(folder: Path) -> dict[str, Any]:
    return {name: values for path in folder.glob("*.safetensors") for name, values in load_file(path).items()}


def cloning(nursery: Nursery, disk: Path) -> tuple[list[Call], dict[str, bytes], dict[str, bytes]]:
    """The calls of a run that move bytes and wait for the disk; its source's content, and its output's."""
    before = contents(Path(shutil.copytree(disk / "ragged", "source")))
    new = made(nursery, 32)
    moving = [call for call in calls(nursery, *RESIZE) if call.name in ("copy_file_range", "fsync")]
    assert len([call for call in moving if call.name == "copy_file_range"]) > 8
    return moving, before, new


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("disk", ["xfs"], indirect=True)
@needs_strace
def test_resize_killed_while_it_clones_leaves_nothing_or_all(resizing: Nursery, disk: Path, room: Path) -> None:
    made_calls, before, new = cloning(resizing, disk)
    outcomes = []
    for call in [*some(made_calls[:-1], 1, 6), made_calls[-1]]:
        put_none()
        ended, _ = traced(resizing, RESIZE, f"{call.name}:signal=KILL:when={call.k}")
        assert ended.code == -9, (call, ended)
        assert (contents(Path("source")) == before, found() in (None, new)) == (True, True), call
        outcomes.append(found() is None)
        again = resizing.run(*RESIZE, *(["--force"] if OUTPUT.exists() else []))
        assert (again.code, found() == new, leftovers()) == (0, True, []), (call, again)
    assert len(set(outcomes)) == 2


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("disk", ["xfs"], indirect=True)
@needs_strace
def test_resize_that_may_not_clone_copies(resizing: Nursery, disk: Path, room: Path) -> None:
    made_calls, before, new = cloning(resizing, disk)
    made_calls = [call for call in made_calls if call.name == "copy_file_range"]
    for error, first in {"ENOSPC": 1, "EIO": 2, "EOPNOTSUPP": 3}.items():
        for call in some(made_calls, first, 4):
            put_none()
            ended, log = traced(resizing, RESIZE, f"{call.name}:error={error}:when={call.k}")
            assert "(INJECTED)" in log, call
            assert (ended.code, found() == new) == (0, True), (call, ended)
            assert (contents(Path("source")) == before, leftovers()) == (True, []), call
