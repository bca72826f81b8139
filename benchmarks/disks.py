"""Mount file systems that share blocks between files: XFS and btrfs images.

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

# The Debian package of each kind and the options of its mkfs.
KINDS = {"xfs": ("xfsprogs", ["-m", "reflink=1"]), "btrfs": ("btrfs-progs", [])}

# From linux/fiemap.h: an ioctl that lists the extents of a file, each with its length and a shared
# flag.
FIEMAP = 0xC020660B
SYNC = 1
LAST = 0x1
SHARED = 0x2000
HEADER = struct.Struct("=QQLLLL")
EXTENT = struct.Struct("=QQQQQLLLL")
EXTENTS_PER_CALL = 512


@contextmanager
def mounted(folder: Path, kind: str, size: int) -> Iterator[Path]:
    """Mount a new file system in a sparse image of `size` bytes.

    Raises:
        OSError: The image cannot be created or mounted; the message says why.
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
        if (
            os.geteuid() != 0
            or subprocess.run(["mount", "-o", "loop", image, disk], check=False).returncode
        ):
            raise OSError("mounting an image needs root and a loop device")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)
    finally:
        image.unlink()
        disk.rmdir()


def new_blocks(path: Path) -> int:
    """Return the bytes on disk that a file, or the files of a folder, do not share with other
    files.
    """
    files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else (path,)
    return sum(length for file in files for length, flags in _extents(file) if not flags & SHARED)


def _extents(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the length and flags of each extent of a file; holes have no extents."""
    start, flags = 0, 0
    with path.open("rb") as file:
        while not flags & LAST:
            request = HEADER.pack(start, (1 << 64) - 1 - start, SYNC, 0, EXTENTS_PER_CALL, 0)
            response = array.array("B", request + bytes(EXTENT.size * EXTENTS_PER_CALL))
            fcntl.ioctl(file, FIEMAP, response, True)
            count = HEADER.unpack_from(response)[3]
            if not count:
                return
            for number in range(count):
                begin, _, length, _, _, flags, *_ = EXTENT.unpack_from(
                    response, HEADER.size + number * EXTENT.size
                )
                yield length, flags
            start = begin + length
