"""Locks on files and folders, by which a run sees which of the others live: a process that dies lets go of its own."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold", "is_locked", "lock", "unlock"]


def lock(path: Path) -> int | None:
    """Lock a file or folder for this process; None where the system or the file system has no such locks.

    Raises:
        BlockingIOError: Another process holds it.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def unlock(descriptor: int | None) -> None:
    """Let go of what `lock` gave."""
    if descriptor is not None:
        os.close(descriptor)


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Lock a file or folder for this process while the block runs, where the system has such locks.

    Raises:
        BlockingIOError: Another process holds it, or took it away or made it anew just now.
    """
    descriptor = lock(path)
    try:
        if not _is_there(path, descriptor):
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), os.fspath(path))
        yield
    finally:
        unlock(descriptor)


def _is_there(path: Path, descriptor: int | None) -> bool:
    """Whether what was locked still bears its name."""
    try:
        status = path.stat()
    except OSError:
        return False
    return descriptor is None or os.path.samestat(status, os.fstat(descriptor))


def is_locked(path: Path) -> bool:
    """Whether a process holds it, which may be this one."""
    try:
        unlock(lock(path))
    except BlockingIOError:
        return True
    return False
