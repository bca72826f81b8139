"""Bytes moved from file to file: by the kernel where it can, in blocks where it cannot."""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ctxextend.checkpoints.holes import extents, is_sparse, leave_hole
from ctxextend.errors import CheckpointError

__all__ = [
    "check_stamp",
    "copy_file",
    "copy_range",
    "finish",
    "late_syncs",
    "open_source",
    "read_range",
    "read_whole",
    "reading",
    "stamp",
    "sync_folder",
    "write_all",
    "write_file",
]

Progress = Callable[[int], None]

# Moved by one call, so that progress is seen and Ctrl-C is heard.
CHUNK = 1 << 24
BLOCK = 1 << 20
# The blocks of nearly all disks; file systems that clone share them whole.
DISK_BLOCK = 4096

# Files that are finished and not yet synced, at most.
LATE = 4
_unsynced: ContextVar[deque[int] | None] = ContextVar("_unsynced", default=None)

# What file systems, kernels and sandboxes answer when a call is not for them; or, of an error of the disk, not which of
# the two files has it, which copying by blocks tells.
NOT_POSSIBLE = {
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EBADF,
    errno.ETXTBSY,
    errno.EISDIR,
    errno.EIO,
    errno.ENOTSOCK,  # sendfile on macOS and BSD, which send to sockets alone
}


def copy_range(
    source: BinaryIO, destination: BinaryIO, start: int, length: int, progress: Progress = lambda moved: None
) -> None:
    """Append a byte range of one file to another; large holes of a sparse file stay holes.

    Args:
        source: An unbuffered file open for reading.
        destination: An unbuffered file open for writing; its position is where the bytes go, and moves on.
        start: The first byte of `source` to copy.
        length: Bytes to copy.
        progress: Called with the bytes moved since the last call.

    Raises:
        CheckpointError: `source` ends too early.
        OSError: Reading or writing failed.
    """
    has_holes = is_sparse(source)
    for move in (_copy_file_range, _sendfile, _copy_blocks):
        while length:
            hole, data = extents(source, start, length) if has_holes else (0, length)
            moved = leave_hole(destination, hole) or move(source, destination, start, _step(start, data))
            if moved is None:
                break
            if moved == 0:
                raise CheckpointError(f"{source.name} became shorter while it was copied.", "Run the command again.")
            start, length = start + moved, length - moved
            _begin_writing(destination, moved)
            progress(moved)


def _begin_writing(destination: BinaryIO, moved: int) -> None:
    """Have what was just moved go to the disk while more is moved, so that the sync at the end has less to wait for."""
    if moved < BLOCK or not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):
        # On Linux this begins to write what is not on the disk, and drops from the cache only what is.
        os.posix_fadvise(destination.fileno(), destination.tell() - moved, moved, os.POSIX_FADV_DONTNEED)


def _step(start: int, length: int) -> int:
    """Return how many bytes to move at once: up to a block's begin, from where on file systems can share blocks."""
    return min(length, -start % DISK_BLOCK or CHUNK)


def _copy_file_range(source: BinaryIO, destination: BinaryIO, start: int, length: int) -> int | None:
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        # Where files can share blocks, this shares what FICLONERANGE would, as fast, and copies the rest.
        # Some file systems answer 0 for files that they cannot serve this way; then another way must try.
        return os.copy_file_range(source.fileno(), destination.fileno(), length, offset_src=start) or None
    except OSError as error:
        _raise_if_real(error)
        return None


def _sendfile(source: BinaryIO, destination: BinaryIO, start: int, length: int) -> int | None:
    if not hasattr(os, "sendfile"):
        return None
    try:
        return os.sendfile(destination.fileno(), source.fileno(), start, length) or None
    except OSError as error:
        _raise_if_real(error)
        return None


def _copy_blocks(source: BinaryIO, destination: BinaryIO, start: int, length: int) -> int:
    with reading(source.name):
        source.seek(start)
        data = source.read(min(length, BLOCK))
    write_all(destination, memoryview(data))
    return len(data)


def _raise_if_real(error: OSError) -> None:
    if error.errno not in NOT_POSSIBLE:
        raise error


def write_all(destination: BinaryIO, data: memoryview) -> None:
    """Write every byte, however often the system takes only a part."""
    while data:
        data = data[destination.write(data) :]


def write_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a new file and sync it to the disk.

    Args:
        path: Must not exist.
        data: All of its bytes.
        mode: Permission bits; None leaves the system's default.

    Raises:
        OSError: As the system gives it.
    """
    with path.open("xb", buffering=0) as file:
        write_all(file, memoryview(data))
        finish(file, mode)


def copy_file(source: Path, destination: Path, progress: Progress = lambda moved: None) -> None:
    """Copy a file's bytes and permission bits to a new file and sync it to the disk.

    Raises:
        CheckpointError: `source` cannot be read, or ends too early.
        OSError: Writing failed.
    """
    with open_source(source) as original, destination.open("xb", buffering=0) as copy:
        status = os.fstat(original.fileno())
        copy_range(original, copy, 0, status.st_size, progress)
        finish(copy, status.st_mode)


def read_range(path: Path, start: int, length: int) -> memoryview:
    """Read a byte range of a file of the source.

    Raises:
        CheckpointError: It cannot be read, or ends too early.
    """
    data = np.empty(length, np.uint8).data  # not zeroed first, and on large pages
    with open_source(path) as file:
        file.seek(start)
        read_whole(file, data)
    return data


def read_whole(file: FileIO, block: memoryview) -> None:
    """Fill a block from where a file of the source stands.

    Raises:
        CheckpointError: It cannot be read, or ends too early.
    """
    try:
        while block:
            count = file.readinto(block)  # one call gives 2 GB at most
            if not count:
                raise CheckpointError(f"{file.name} became shorter while it was read.", "Run the command again.")
            block = block[count:]
    except OSError as error:
        raise _unreadable(file.name, error) from error


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a file's size in bytes and its times in ns, of its content and of its inode; None where it is not there.

    The first time is what copies keep; the second nobody can set, and so tells a file from another that took its name.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def check_stamp(path: Path, before: tuple[int, ...]) -> None:
    """Raise CheckpointError where a file of the source is no longer what it was when its stamp began so."""
    if (stamp(path) or ())[: len(before)] != before:
        raise CheckpointError(f"{path} changed while it was read.", "Run the command again when it is complete.")


def open_source(path: Path) -> FileIO:
    """Open a file of the source for reading, unbuffered.

    Raises:
        CheckpointError: It cannot be opened.
    """
    with reading(path):
        return path.open("rb", buffering=0)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what the system says of a file of the source into a CheckpointError."""
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path | str, error: OSError) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path} is missing.", "Is this the checkpoint's folder?")
    return CheckpointError(f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions.")


def finish(file: BinaryIO, mode: int | None) -> None:
    """Give a written file its permission bits, and wait until it is on the disk, or see to that in `late_syncs`."""
    if mode is not None:
        Path(file.name).chmod(mode & 0o777)
    waiting = _unsynced.get()
    if waiting is None:
        os.fsync(file.fileno())
        return
    waiting.append(os.dup(file.fileno()))  # of a file that is opened anew, an error may be forgotten
    if len(waiting) > LATE:
        _sync(waiting.popleft())


@contextmanager
def late_syncs() -> Iterator[None]:
    """Sync what is finished in the block some files later, so that no disk is waited for while there is more to write.

    Where the block ends well, all of it is on the disk.

    Raises:
        OSError: As the system gives it, of a file that was finished before.
    """
    waiting: deque[int] = deque()
    token = _unsynced.set(waiting)
    try:
        yield
        while waiting:
            _sync(waiting.popleft())
    finally:
        _unsynced.reset(token)
        for descriptor in waiting:
            os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk, where the system and the file system can do that."""
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
