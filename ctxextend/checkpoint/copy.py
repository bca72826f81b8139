"""Read, copy and write files.

Copies use copy_file_range, so that file systems with reflinks share the blocks. Copies and writes
are not synced to disk: `atomic_output` does so once, after all files are written.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from ctxextend.errors import CheckpointError

# Is called with a file, and the number of bytes appended since the last call.
OnWrite: TypeAlias = Callable[[BinaryIO, int], None]
CHUNK = 1 << 24  # bytes per call: small enough to report progress and to react to Ctrl-C
BUFFER = 1 << 20
DISK_BLOCK = 4096  # the block size of nearly all disks; reflinks share whole blocks


class Fingerprint(NamedTuple):
    """What the system states about a file, to detect that it changed; zeros if there is none."""

    size: int = 0  # in bytes
    modified: int = 0  # modification time in ns
    # Inode change time in ns. Programs cannot set it, so it also detects a replacement of equal
    # size and modification time.
    changed: int = 0
    inode: int = 0
    names: int = 0  # hard links
    mode: int = 0  # file type and permissions


def copy_range(
    source: FileIO, destination: BinaryIO, start: int, length: int, on_write: OnWrite
) -> None:
    """Copy bytes of an unbuffered file to the current position of another.

    Args:
        source: The file.
        destination: The other one.
        start: The offset of the first byte.
        length: How many bytes to copy.
        on_write: Is called after each write.

    Raises:
        CheckpointError: The source cannot be read, or is too short.
        OSError: The destination cannot be written.
    """
    in_kernel = hasattr(os, "copy_file_range")
    end = start + length
    while start < end:
        # Copy up to a block boundary first: file systems can share the blocks after it.
        step = min(end - start, -start % DISK_BLOCK or CHUNK)
        count = 0
        if in_kernel:
            # Reading and writing below raise an error that names the file.
            with contextlib.suppress(OSError):
                count = os.copy_file_range(
                    source.fileno(), destination.fileno(), step, offset_src=start
                )
        if count == 0:  # some file systems return 0 if they do not support it
            in_kernel = False
            with reading(source.name):
                source.seek(start)
                data = source.read(min(step, BUFFER))
            if not data:
                message = f"{source.name} became shorter while it was copied."
                raise CheckpointError(message, "Run the command again.")
            write_all(destination, memoryview(data))
            count = len(data)
        start += count
        on_write(destination, count)


def write_all(destination: BinaryIO, data: memoryview) -> None:
    """Write all bytes, with as many calls as it takes."""
    while data:
        data = data[destination.write(data) :]


def sync(path: Path) -> None:
    """Sync a file's bytes, or a folder's entries, to disk if the file system supports it."""
    try:
        flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF):
            raise


def read_range(path: Path, start: int, length: int) -> bytearray:
    """Read a byte range of a source file.

    Raises:
        CheckpointError: The file cannot be read, or is too short.
    """
    data = bytearray(length)
    # A buffered file repeats reads until all bytes are there.
    with reading(path), path.open("rb") as file:
        file.seek(start)
        count = file.readinto(data)
    if count < length:
        message = f"{path} became shorter while it was read."
        raise CheckpointError(message, "Run the command again.")
    return data


def open_source(path: Path) -> FileIO:
    """Open a source file for reading, unbuffered.

    Raises:
        CheckpointError: It cannot be opened.
    """
    with reading(path):
        return path.open("rb", buffering=0)


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Convert OSErrors raised while reading a source file into CheckpointErrors."""
    try:
        yield
    except FileNotFoundError as error:
        missing = error.filename or path
        raise CheckpointError(f"{missing} is missing.", "Check the checkpoint's folder.") from error
    except OSError as error:
        unreadable = error.filename or path
        message = f"{unreadable} cannot be read: {error.strerror}."
        raise CheckpointError(message, "Check the file and its permissions.") from error


def file_fingerprint(path: Path) -> Fingerprint:
    """Return a file's fingerprint; zeros if it does not exist or cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return Fingerprint()
    return Fingerprint(
        size=status.st_size,
        modified=status.st_mtime_ns,
        changed=status.st_ctime_ns,
        inode=status.st_ino,
        names=status.st_nlink,
        mode=status.st_mode,
    )
