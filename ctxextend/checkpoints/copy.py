"""Read, copy and write files: bytes move inside the kernel where it can, so that disks that share blocks share them.

Nothing here waits for the disk: `atomic_output` does once everything is written, so that the disk is never idle.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ctxextend.errors import CheckpointError

# Called with a file and the bytes appended to it since the last call.
Written: TypeAlias = Callable[[BinaryIO, int], None]
# Size in bytes, modification time and inode change time in ns: nobody can set the last, which tells a file from another
# that took its name.
Fingerprint: TypeAlias = tuple[int, int, int]

# Bytes per call, so that progress is seen and Ctrl-C is heard.
CHUNK = 1 << 24
BUFFER = 1 << 20
DISK_BLOCK = 4096  # the block size of nearly all disks; those that can clone share whole blocks


def copy_range(
    source: FileIO, destination: BinaryIO, start: int, length: int, written: Written = lambda file, count: None
) -> None:
    """Append `length` bytes of one unbuffered file, from `start` on, to another at its position."""
    in_kernel = hasattr(os, "copy_file_range")
    while length:
        # Up to the start of a block first: from there on file systems can share blocks.
        step, count = min(length, -start % DISK_BLOCK or CHUNK), 0
        if in_kernel:
            with contextlib.suppress(OSError):  # reading and writing will tell what is wrong, and with which file
                count = os.copy_file_range(source.fileno(), destination.fileno(), step, offset_src=start)
        if count == 0:  # some file systems answer 0 where they cannot
            in_kernel = False
            with reading(source.name):
                source.seek(start)
                data = source.read(min(step, BUFFER))
            if not data:
                raise CheckpointError(f"{source.name} became shorter while it was copied.", "Run the command again.")
            write_all(destination, memoryview(data))
            count = len(data)
        start, length = start + count, length - count
        written(destination, count)


def copy_file(source: Path, destination: Path, written: Written = lambda file, count: None) -> None:
    """Copy a file's bytes and permission bits to a new file."""
    with open_source(source) as original, destination.open("xb", buffering=0) as copy:
        status = os.fstat(original.fileno())
        copy_range(original, copy, 0, status.st_size, written)
    destination.chmod(status.st_mode & 0o777)


def write_all(destination: BinaryIO, data: memoryview) -> None:
    """Write every byte, however often the system takes only a part."""
    while data:
        data = data[destination.write(data) :]


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk, where the file system can do that."""
    try:
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF):
            raise


def read_range(path: Path, start: int, length: int) -> bytearray:
    """Read a byte range of a source file."""
    data = bytearray(length)
    with open_source(path) as file, reading(path):
        file.seek(start)
        rest = memoryview(data)
        while rest:
            count = file.readinto(rest)  # at most 2 GB per call
            if not count:
                raise CheckpointError(f"{path} became shorter while it was read.", "Run the command again.")
            rest = rest[count:]
    return data


def open_source(path: Path) -> FileIO:
    """Open a source file for reading, unbuffered."""
    with reading(path):
        return path.open("rb", buffering=0)


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn OSErrors from reading a source file into CheckpointErrors."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename or path} is missing.", "Is this the checkpoint's folder?") from error
    except OSError as error:
        what, hint = error.filename or path, "Check it and its permissions."
        raise CheckpointError(f"{what} cannot be read: {error.strerror}.", hint) from error


def file_fingerprint(path: Path) -> Fingerprint:
    """Return what identifies a file's content; zeros if it does not exist or cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
