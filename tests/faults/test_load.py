"""Checkpoints that are large in one way each: memory stays within what is promised, and little of the disk is taken."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.load import Tensor, bound, resizing, shards, tensors, write_checkpoint
from ctxextend.checkpoints.copying import copy_file
from ctxextend.checkpoints.tensorfile import open_tensor_file

SOURCE, OUTPUT = Path("source"), Path("out")


def taken(folder: Path) -> int:
    """Bytes of the disk that a folder's files take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


# The peak of a process counts what the one had that started it: pytest's would be measured.
MEASURE = "import sys; from benchmarks.measuring import measure; print(measure(sys.argv[1:]).megabytes)"


def peak_of(command: list[str]) -> float:
    """MB that a process takes."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], check=True, capture_output=True, text=True, env=environment
    )
    return float(done.stdout)


def keeps_holes() -> bool:
    """Whether the file system here stores nothing for what was not written."""
    with Path("hole").open("wb") as file:
        file.truncate(1 << 26)
    return Path("hole").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("held", "rows", "width"),
    [
        ([tensors(100_000, 16)], 32, 8),
        (shards(100, 40, 400), 32, 8),
        ([[]], 60_000, 64),
    ],
    ids=["100,000 tensors", "200 shards", "60,000 rows"],
)
def test_resize_takes_no_more_memory_than_is_promised(held: Iterable[Iterable[Tensor]], rows: int, width: int) -> None:
    headers = write_checkpoint(SOURCE, *held, rows=rows // 2, width=width)
    assert peak_of(resizing(SOURCE, rows, OUTPUT)) < bound(headers, rows, width)
    assert sum(len(open_tensor_file(path).entries) for path in OUTPUT.glob("*.safetensors")) > 0


def test_resize_of_12_gb_that_are_holes_takes_neither_disk_nor_memory() -> None:
    if not keeps_holes() or shutil.disk_usage(".").free < 13_000_000_000:
        pytest.skip("needs a file system that keeps holes, and 13 GB that could be written")
    headers = write_checkpoint(SOURCE, *shards(12, 10, 100_000_000))
    assert peak_of(resizing(SOURCE, 32, OUTPUT)) < bound(headers, 32)
    assert taken(OUTPUT) < 50_000_000
    sizes = [sum(path.stat().st_size for path in folder.glob("*.safetensors")) for folder in (SOURCE, OUTPUT)]
    assert 12_000_000_000 < sizes[0] < sizes[1] < sizes[0] + BLOCKS


# Bytes by which a table of 16 rows more and a padded header make weights larger.
BLOCKS = 10_000


def test_resize_opens_few_files_at_once() -> None:
    write_checkpoint(SOURCE, *shards(100, 2, 400))
    limited = ["bash", "-c", 'ulimit -n 40; exec "$@"', "bash", *resizing(SOURCE, 32, OUTPUT)]
    subprocess.run(limited, check=True, capture_output=True)
    assert len(list(OUTPUT.glob("*.safetensors"))) == 100


@pytest.mark.parametrize("hole", [0, 1 << 20, (1 << 20) + 5, 3 << 20])
@pytest.mark.parametrize("ends", [True, False])
def test_copy_file_keeps_every_byte_around_a_hole(hole: int, ends: bool) -> None:
    with SOURCE.open("wb") as file:
        file.write(os.urandom(10_000))
        file.seek(hole, os.SEEK_CUR)
        file.write(os.urandom(5_000))
        file.truncate(file.tell() + hole * ends)
    copy_file(SOURCE, OUTPUT)
    assert OUTPUT.read_bytes() == SOURCE.read_bytes()


def test_copy_file_reads_a_sparse_file_where_nobody_says_what_is_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    def lseek(*arguments: int) -> int:
        raise OSError(22, "Invalid argument")

    with SOURCE.open("wb") as file:
        file.write(b"1")
        file.seek(3 << 20)
        file.write(b"2")
    monkeypatch.setattr(os, "lseek", lseek)
    copy_file(SOURCE, OUTPUT)
    assert OUTPUT.read_bytes() == SOURCE.read_bytes()


READ_ONLY = 'mount --bind source source && mount -o remount,ro,bind source && ! touch source/x 2>&- && exec "$@"'


def test_resize_of_a_folder_on_a_read_only_mount() -> None:
    write_checkpoint(SOURCE, tensors(3, 400))
    mounted = ["unshare", "--mount", "bash", "-c", READ_ONLY, "bash"]
    if subprocess.run([*mounted, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs root, and a kernel that lets it mount")
    subprocess.run([*mounted, *resizing(SOURCE, 32, OUTPUT)], check=True, capture_output=True)
    assert open_tensor_file(OUTPUT / "model.safetensors").entries["wpe.weight"].shape == (32, 8)
