"""Holes of sparse files: bytes that are 0 and take no room on the disk, found in one file and left in another."""

import errno
import os
from typing import BinaryIO

__all__ = ["extents", "is_sparse", "leave_hole"]

# Holes of fewer bytes are not worth a system call.
LEAST = 1 << 20


def is_sparse(file: BinaryIO) -> bool:
    """Whether a file takes less of the disk than it is long, and the system says where it does not."""
    status = os.fstat(file.fileno())
    return hasattr(os, "SEEK_DATA") and status.st_blocks * 512 < status.st_size


def extents(source: BinaryIO, start: int, length: int) -> tuple[int, int]:
    """Return how many bytes from `start` on are a hole that is worth keeping, or else how many to copy before one."""
    try:
        data = _seek(source, start, os.SEEK_DATA)
        if data - start >= LEAST:
            return min(data - start, length), 0
        return 0, min(max(_seek(source, data, os.SEEK_HOLE) - start, LEAST), length)
    except OSError:  # of a file system that cannot tell
        return 0, length


def _seek(source: BinaryIO, start: int, what: int) -> int:
    """Return where data or a hole begins, not before `start`; the file's end where neither does."""
    try:
        return os.lseek(source.fileno(), start, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return max(os.fstat(source.fileno()).st_size, start)


def leave_hole(destination: BinaryIO, length: int) -> int:
    """Make a file longer by bytes that take no room and are read as 0."""
    if length:
        destination.truncate(destination.seek(length, os.SEEK_CUR))
    return length
