"""The atomic output: a finished sibling takes the output's name in one rename, or nothing changes.

While it is written, what is new stands beside the output as `.NAME.ctxextend-new-XXXXXXXX`, locked with flock.
Replacing an existing output swaps the two names in one call where the kernel can (`renameat2`,
RENAME_EXCHANGE); elsewhere the old folder is renamed to `.NAME.ctxextend-old-XXXXXXXX` for a moment, and a run
that finds it there without its output puts it back. What stands under these names is removed only by a run that is
allowed to write the output, and an old output only once a new one is in its place.
"""

import contextlib
import ctypes
import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from ctxextend.checkpoints.copying import sync_folder
from ctxextend.checkpoints.destination import check_output, check_replaceable, resolved
from ctxextend.checkpoints.locks import is_locked, lock, unlock
from ctxextend.checkpoints.siblings import clear, locked_sibling, remove, sibling, siblings, uninterrupted
from ctxextend.errors import OutputError

__all__ = ["check_stage", "made", "stage", "stage_file"]

AT_FDCWD = -100
RENAME_EXCHANGE = 2
# EXDEV is what overlay file systems answer for folders of a lower layer.
CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}


@contextlib.contextmanager
def stage(output: Path, source: Path, force: bool, written: Collection[str]) -> Iterator[Path]:
    """Give a folder to write in; when the block ends without an error it becomes the output.

    First, an output that a killed run had moved aside is put back. Then, and again at the last moment, the output
    is checked; a swap and every clean-up run to their end before a signal is heard.

    Args:
        output: The folder wanted.
        source: The checkpoint's own folder.
        force: Whether an existing checkpoint may be replaced.
        written: As in `check_output`.

    Yields:
        An empty folder beside the output, on the same file system.

    Raises:
        OutputError: As `check_output`, or another process took the name meanwhile.
        OSError: As the system gives it, from any step.
    """
    output = resolved(output)
    _check_source(output, source)
    _put_back(output)
    check_output(output, source, force, written)
    clear(output, "new")
    with made(output.parent), locked_sibling(output, Path.mkdir) as staged:
        yield staged
        for folder, _, _ in os.walk(staged, topdown=False):
            sync_folder(Path(folder))
        with uninterrupted():
            _publish(staged, output, force, written)
    clear(output, "old")


@contextlib.contextmanager
def stage_file(output: Path) -> Iterator[Path]:
    """Give an empty file to write in; when the block ends without an error it takes the output's name.

    Args:
        output: The file wanted, which may exist.

    Raises:
        OSError: As the system gives it, from any step.
    """
    output = resolved(output)
    clear(output, "new")
    with locked_sibling(output, lambda path: path.touch(exist_ok=False)) as staged:
        yield staged
        if output.exists():
            staged.chmod(output.stat().st_mode & 0o777)
        with uninterrupted():
            staged.replace(output)
            with contextlib.suppress(OSError):
                sync_folder(output.parent)


def check_stage(output: Path, source: Path, force: bool, written: Collection[str]) -> None:
    """Raise OutputError where `stage` would refuse the output, without changing anything; see there."""
    output = resolved(output)
    _check_source(output, source)
    check_output(output, source, force, written)
    if aside := _to_put_back(output):
        check_replaceable(aside, force, written)


def _check_source(output: Path, source: Path) -> None:
    for left in (*siblings(output, "new"), *siblings(output, "old")):
        if source.resolve().is_relative_to(left.resolve()):
            raise OutputError(
                f"The source {source} is what a stopped run to {output} left behind, and would be cleared.",
                "Give it another name first, or choose another -o.",
            )


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder and those above it, and take those that are empty away again if the block fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        for path in missing:
            with contextlib.suppress(OSError):
                sync_folder(path.parent)
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _put_back(output: Path) -> None:
    """Give an output that a killed run had moved aside its name again, where nothing has taken that."""
    if aside := _to_put_back(output):
        _rename(aside, output)


def _to_put_back(output: Path) -> Path | None:
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        return None
    return next((aside for aside in siblings(output, "old") if not is_locked(aside)), None)


def _publish(staged: Path, output: Path, force: bool, written: Collection[str]) -> None:
    if output.is_dir():
        check_replaceable(output, force, written)
        staged.chmod(output.stat().st_mode & 0o7777)
    if force and output.is_dir() and any(output.iterdir()):
        _swap(staged, output)
    else:
        _take_name(staged, output)
    with contextlib.suppress(OSError):  # it has its name: whatever the disk says now, the run did not fail
        sync_folder(output.parent)


def _take_name(staged: Path, output: Path) -> None:
    try:
        _rename(staged, output)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise OutputError(
                f"{output} was made by another program meanwhile; nothing was replaced.", "Choose another -o."
            ) from error
        raise


def _rename(folder: Path, output: Path) -> None:
    """Rename a folder to a name that is free or an empty folder's."""
    if os.name == "nt" and output.is_dir():
        output.rmdir()
    folder.rename(output)


def _swap(staged: Path, output: Path) -> None:
    """Exchange two folders' names; the old content then stands under the staged name and is removed with it."""
    if _exchange(staged, output):
        return
    try:
        held = lock(output)
    except BlockingIOError:
        raise OutputError(f"Another run is replacing {output} just now.", "Wait for it, then try again.") from None
    try:
        _rename_twice(staged, output, sibling(output, "old"))
    finally:
        unlock(held)


def _rename_twice(staged: Path, output: Path, aside: Path) -> None:
    output.rename(aside)
    try:
        staged.rename(output)
    except OSError as error:
        if output.exists():
            raise OutputError(
                f"Another program made {output} while it was replaced; what stood there is {aside} now.",
                "Move one of them away, then try again.",
            ) from error
        aside.rename(output)
        raise
    remove(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one call; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
    if not done and ctypes.get_errno() == errno.EINTR:
        return _exchange(one, other)
    if not done and ctypes.get_errno() not in CANNOT_EXCHANGE:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(other))
    return bool(done)
