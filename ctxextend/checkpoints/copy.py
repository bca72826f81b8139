"""Read, copy and write files: bytes move inside the kernel where it can, so that disks that share blocks share them."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

from ctxextend.errors import CheckpointError

# Called with the bytes written since the last call.
Written: TypeAlias = Callable[[int], None]
# Size in bytes, modification time and inode change time in ns: nobody can set the last, which tells a file from another
# that took its name.
Fingerprint: TypeAlias = tuple[int, int, int]

# Bytes per call, so that progress is seen and Ctrl-C is heard.
CHUNK = 1 << 24
BUFFER = 1 << 20
# The block size of nearly all disks; those that can clone share whole blocks.
DISK_BLOCK = 4096

# What file systems, kernels and sandboxes answer where copy_file_range does not work. EIO: reading through a buffer
# tells which of the two files it comes from.
NOT_IN_KERNEL = {
    *(errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM),
    *(errno.EBADF, errno.ETXTBSY, errno.EISDIR, errno.EIO),
}


def copy_range(
    source: FileIO, destination: BinaryIO, start: int, length: int, written: Written = lambda count: None
) -> None:
    """Append a byte range of one file to another.

    Args:
        source: An unbuffered file open for reading.
        destination: An unbuffered file open for writing; its position is where the bytes go, and moves on.
        start: The first byte of `source` to copy.
        length: Bytes to copy.
        written: Called with the bytes written since the last call.

    Raises:
        CheckpointError: `source` cannot be read, or ends too early.
        OSError: Writing failed.
    """
    in_kernel = hasattr(os, "copy_file_range")
    while length:
        # Up to the start of a block first: from there on file systems can share blocks.
        step = min(length, -start % DISK_BLOCK or CHUNK)
        count = _copy_in_kernel(source, destination, start, step) if in_kernel else 0
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
        written(count)


def _copy_in_kernel(source: FileIO, destination: BinaryIO, start: int, length: int) -> int:
    try:
        return os.copy_file_range(source.fileno(), destination.fileno(), length, offset_src=start)
    except OSError as error:
        if error.errno in NOT_IN_KERNEL:
            return 0
        raise


def copy_file(source: Path, destination: Path, written: Written = lambda count: None) -> None:
    """Copy a file's bytes and permission bits to a new file and sync it to disk.

    Raises:
        CheckpointError: `source` cannot be read, or ends too early.
        OSError: Writing failed.
    """
    with open_source(source) as original, destination.open("xb", buffering=0) as copy:
        status = os.fstat(original.fileno())
        copy_range(original, copy, 0, status.st_size, written)
        sync_file(copy, status.st_mode)


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a new file and sync it to disk.

    Args:
        path: Must not exist.
        data: All of its bytes.
        mode: Permission bits; None leaves the system's default.

    Raises:
        OSError: As the system gives it.
    """
    with path.open("xb", buffering=0) as file:
        write_all(file, memoryview(data))
        sync_file(file, mode)


def write_all(destination: BinaryIO, data: memoryview) -> None:
    """Write every byte, however often the system takes only a part."""
    while data:
        data = data[destination.write(data) :]


def sync_file(file: BinaryIO, mode: int | None = None) -> None:
    """Set a written file's permission bits and wait until it is on disk."""
    if mode is not None:
        Path(file.name).chmod(mode & 0o777)
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on disk, where the system and the file system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


# ---- reading


def read_range(path: Path, start: int, length: int) -> memoryview:
    """Read a byte range of a source file.

    Raises:
        CheckpointError: It cannot be read, or ends too early.
    """
    import numpy as np  # at use: commands that only show help do without

    data = np.empty(length, np.uint8).data  # not zeroed first
    with open_source(path) as file, reading(path):
        file.seek(start)
        rest = data
        while rest:
            count = file.readinto(rest)  # at most 2 GB per call
            if not count:
                raise CheckpointError(f"{path} became shorter while it was read.", "Run the command again.")
            rest = rest[count:]
    return data


def first_difference(one: tuple[Path, int], other: tuple[Path, int], length: int) -> int | None:
    """Return the first byte in which two ranges of files differ, counted from their starts; None if they are equal.

    Args:
        one: A file, and where in it the range begins.
        other: The other.
        length: Bytes of both.

    Raises:
        CheckpointError: A file cannot be read, or ends too early.
    """
    step = BUFFER // 4  # both blocks stay in the processor's cache until they are compared
    with open_source(one[0]) as ours, open_source(other[0]) as theirs, reading(f"{one[0]} or {other[0]}"):
        ours.seek(one[1])
        theirs.seek(other[1])
        for start in range(0, length, step):
            blocks = [file.read(min(step, length - start)) for file in (ours, theirs)]
            if len(blocks[0]) != len(blocks[1]) or not blocks[0]:
                raise CheckpointError(f"{one[0]} or {other[0]} became shorter.", "Run the command again.")
            if blocks[0] != blocks[1]:
                return start + next(i for i, (left, right) in enumerate(zip(*blocks, strict=True)) if left != right)
    return None


def open_source(path: Path) -> FileIO:
    """Open a source file for reading, unbuffered.

    Raises:
        CheckpointError: It cannot be opened.
    """
    with reading(path):
        return path.open("rb", buffering=0)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn OSErrors from reading a source file into CheckpointErrors."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.", "Is this the checkpoint's folder?") from error
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions."
        ) from error


def file_fingerprint(path: Path) -> Fingerprint | None:
    """Return what identifies a file's content; None if it does not exist or cannot be looked at."""
    try:
        return fingerprint_of(path.stat())
    except OSError:
        return None


def fingerprint_of(status: os.stat_result) -> Fingerprint:
    """Return the fingerprint of a file that was looked at."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def check_unchanged(path: Path, before: Fingerprint) -> None:
    """Raise CheckpointError if a source file changed since its fingerprint was taken."""
    if file_fingerprint(path) != before:
        raise CheckpointError(f"{path} changed while it was read.", "Run the command again when it is complete.")
