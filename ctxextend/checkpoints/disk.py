"""What the disk says: space asked for before writing, and a failed write explained."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ctxextend.errors import OutputError

__all__ = ["check_space", "check_writable", "explained", "walk"]

HINTS = {
    errno.ENOSPC: "Free some space, or use -o on another disk.",
    errno.EDQUOT: "Your quota is used up: free some of it, or use -o on another disk.",
    errno.EROFS: "Choose a place that can be written to with -o.",
    errno.EACCES: "Choose a place that you may write to with -o.",
    errno.EPERM: "Choose a place that you may write to with -o.",
    errno.EBUSY: "Is it a mount point? Then use a folder in it with -o.",
    errno.ELOOP: "Choose another name with -o: links lead in a circle there.",
    errno.ENAMETOOLONG: "Choose a shorter name with -o.",
}


def check_space(folder: Path, needed: int) -> None:
    """Refuse to begin what will not fit.

    Args:
        folder: An existing folder on the file system in question.
        needed: Bytes that will be written.

    Raises:
        OutputError: There are fewer bytes free.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(f"The output needs {needed:,} bytes, and {folder} has {free:,} free.", HINTS[errno.ENOSPC])


def check_writable(folder: Path) -> None:
    """Raise PermissionError where this user may not make files in a folder."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, but raise OSError for a folder that cannot be looked into, which that leaves out."""
    return os.walk(folder, onerror=_raise)


def _raise(error: OSError) -> NoReturn:
    raise error


@contextmanager
def explained(output: Path) -> Iterator[None]:
    """Turn what the system says of a failed write into an OutputError with what to do next."""
    try:
        yield
    except OSError as error:
        hint = HINTS.get(error.errno or 0, "Check the disk, then run the same command again.")
        raise OutputError(f"{output} could not be written: {error.strerror or error}.", hint) from error
