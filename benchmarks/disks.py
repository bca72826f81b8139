"""Disks that share blocks between files: XFS and btrfs, each in an image that is mounted here.

Needs root, a loop device, and the Debian packages xfsprogs and btrfs-progs.
"""

import array
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["KINDS", "mounted", "new_blocks"]

# Of each kind: its package in Debian, and the options of its mkfs.
KINDS = {"xfs": ("xfsprogs", ["-m", "reflink=1"]), "btrfs": ("btrfs-progs", [])}

# From linux/fiemap.h: an ioctl that tells a file's extents, each with its length and whether it is shared.
FIEMAP, SYNC, LAST, SHARED = 0xC020660B, 1, 0x1, 0x2000
HEAD, EXTENT, AT_ONCE = struct.Struct("=QQLLLL"), struct.Struct("=QQQQQLLLL"), 512


@contextmanager
def mounted(folder: Path, kind: str, size: int) -> Iterator[Path]:
    """Mount a new file system in an image of so many bytes, which take disk space as they are written.

    Raises:
        OSError: It cannot be made or mounted here; the message says why.
    """
    package, options = KINDS[kind]
    if shutil.which(f"mkfs.{kind}") is None:
        raise OSError(f"the Debian package {package} is not installed")
    image, disk = folder / f"{kind}.image", folder / kind
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([f"mkfs.{kind}", "-q", *options, image], check=True, capture_output=True)
    try:
        if os.geteuid() != 0 or subprocess.run(["mount", "-o", "loop", image, disk], check=False).returncode:
            raise OSError("mounting an image needs root and a loop device")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)
    finally:
        image.unlink()
        disk.rmdir()


def new_blocks(path: Path) -> int:
    """Return the bytes of the disk that a file, or all files of a folder, share with no other file."""
    files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else (path,)
    return sum(length for file in files for length, flags in _extents(file) if not flags & SHARED)


def _extents(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the length and the flags of each extent of a file; holes are none."""
    start, flags = 0, 0
    with path.open("rb") as file:
        while not flags & LAST:
            asked = HEAD.pack(start, (1 << 64) - 1 - start, SYNC, 0, AT_ONCE, 0)
            answer = array.array("B", asked + bytes(EXTENT.size * AT_ONCE))
            fcntl.ioctl(file, FIEMAP, answer, True)
            found = HEAD.unpack_from(answer)[3]
            if not found:
                return
            for number in range(found):
                begin, _, length, _, _, flags, *_ = EXTENT.unpack_from(answer, HEAD.size + number * EXTENT.size)
                yield length, flags
            start = begin + length
