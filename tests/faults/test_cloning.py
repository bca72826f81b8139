"""Disks that share blocks between files: room is asked for what will be allocated, and no more is."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ctxextend import OutputError, resize
from tests import pico
from tests.pico import contents

MEBIBYTE = 1 << 20
# The smallest that XFS has is 300 MiB.
DISK, WEIGHTS = 320 * MEBIBYTE, 120 * MEBIBYTE


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """A small XFS that can clone, with a checkpoint on it."""
    if shutil.which("mkfs.xfs") is None:
        pytest.skip("the Debian package xfsprogs is not installed")
    image, folder = tmp_path / "image", tmp_path / "xfs"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-o", "loop", image, folder], check=False).returncode:
        pytest.skip("mounting an image needs root and a loop device")
    try:
        source = pico.make(folder / "source", "gpt2", vocab_size=997).folder
        rows = np.arange(WEIGHTS // 4, dtype=np.int32)
        pico.add_tensors(source, {"zz": torch.from_numpy(rows)})
        os.sync()
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def free(folder: Path) -> int:
    os.sync()
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


@pytest.mark.parametrize("to", [32, 16 + 128])
def test_resize_on_a_disk_that_clones_allocates_the_new_table_alone(to: int, xfs: Path, tmp_path: Path) -> None:
    before = free(xfs)
    result = resize(xfs / "source", to=to, output=xfs / "out")
    assert result.bytes_written > WEIGHTS
    assert before - free(xfs) < to * pico.WIDTH * 4 + MEBIBYTE
    resize(xfs / "source", to=to, output=tmp_path / "elsewhere")
    weights = "model.safetensors"
    assert contents(xfs / "out")[weights] == contents(tmp_path / "elsewhere")[weights]


def test_resize_on_a_disk_that_clones_asks_for_what_will_be_allocated(xfs: Path) -> None:
    with (xfs / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, free(xfs) - 8 * MEBIBYTE)
    assert free(xfs) < WEIGHTS
    with pytest.raises(OutputError, match=r"needs [\d,]+ bytes, and .* has [\d,]+ free") as caught:
        resize(xfs / "source", to=1_000_000, output=xfs / "out")
    needed = int(caught.value.message.split("needs ")[1].split(" bytes")[0].replace(",", ""))
    assert 32_000_000 < needed < 32_000_000 + MEBIBYTE
    assert sorted(path.name for path in xfs.iterdir()) == ["filler", "source"]
    resize(xfs / "source", to=32, output=xfs / "out")
