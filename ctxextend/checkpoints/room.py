"""The room that an output takes on a disk, asked for before the first byte of it is written."""

import os
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.copying import DISK_BLOCK
from ctxextend.checkpoints.disk import NO_ROOM_HINT
from ctxextend.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Extent", "check_room", "cloned", "shortage"]

# From linux/fs.h: let a file share a range of another's blocks; given the other, a start, a length, and a start.
FICLONERANGE, RANGE = 0x4020940D, "=qQQQ"


@dataclass(frozen=True)
class Extent:
    """The room that a file of the output takes.

    Attributes:
        size: Its bytes.
        shareable: Bytes of it that stand in whole blocks, and at the same place of a block as in the file that they
            come from: a file system that can clone allocates none for them.
        origin: The file that they come from; None where there are none.
    """

    size: int
    shareable: int = 0
    origin: Path | None = None

    @classmethod
    def of_copy(cls, origin: Path, size: int) -> "Extent":
        """Return the room that a whole file's copy takes."""
        return cls(size, size, origin)


def check_room(folder: Path, files: Mapping[str, Extent]) -> None:
    """Refuse to begin what will not fit.

    Args:
        folder: An existing folder on the file system in question.
        files: Each file of the output, by its path below it.

    Raises:
        OutputError: The disk has too few bytes free, or may hold too few files more.
    """
    if told := shortage(folder, files):
        raise OutputError(f"The output {told}.", NO_ROOM_HINT)


def shortage(folder: Path, files: Mapping[str, Extent], *, always: bool = False) -> str:
    """Say what files need and what there is, where that is less; empty where they fit.

    Args:
        folder: As in `check_room`.
        files: As in `check_room`.
        always: Whether to say it where they fit, too.

    Returns:
        What follows upon what needs it, such as ``needs 4,096 bytes, and /data has 0 free``.
    """
    if not hasattr(os, "statvfs"):
        return ""
    disk, folders = os.statvfs(folder), {parent for name in files for parent in PurePosixPath(name).parents}
    free, block = disk.f_bavail * disk.f_frsize, max(disk.f_frsize, 1)
    needed = (len(folders) + sum(-(-extent.size // block) for extent in files.values())) * block
    if needed > free:
        needed -= cloned(folder, files.values())
    if needed > free or always:
        return f"needs {needed:,} bytes, and {folder} has {free:,} free"
    entries = len(files) + len(folders)
    if disk.f_files and entries > disk.f_favail:
        return f"is {entries:,} files and folders, and {folder} has room for {disk.f_favail:,} more"
    return ""


def cloned(folder: Path, files: Collection[Extent]) -> int:
    """Return the bytes that a disk will share with the source, and so allocate none for; 0 where it cannot.

    Args:
        folder: As in `check_room`.
        files: Each file of the output.
    """
    # Smaller files have no second block to ask for, and none to speak of.
    large = [(extent.origin, extent.shareable) for extent in files if extent.shareable >= 2 * DISK_BLOCK]
    return sum(size for origin, size in large if origin is not None and _can_clone(origin, folder))


def _can_clone(file: Path, folder: Path) -> bool:
    """Whether files in a folder can share blocks with another; asked of one that has no name, for its second block."""
    if fcntl is None or not hasattr(os, "O_TMPFILE"):
        return False
    with suppress(OSError), file.open("rb") as source:
        unnamed = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
        try:
            fcntl.ioctl(unnamed, FICLONERANGE, struct.pack(RANGE, source.fileno(), DISK_BLOCK, DISK_BLOCK, 0))
        finally:
            os.close(unnamed)
        return True
    return False
