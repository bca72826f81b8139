"""Atomic output: what is written takes its name in one rename, complete and synced to disk, or nothing changes.

While it is written, it is a temporary sibling of the output, `.NAME.ctxextend-new-XXXXXXXX`, locked with flock so that
other runs can tell it from what a killed run left, which they remove. An existing output is replaced by swapping the
two names in one call where the kernel can (`renameat2`, RENAME_EXCHANGE); elsewhere it is first renamed to
`.NAME.ctxextend-old-XXXXXXXX`, and a run that finds it there without its output puts it back.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from ctxextend.checkpoints.copy import DISK_BLOCK, sync_folder
from ctxextend.checkpoints.filenames import CHECKPOINT_MARKS, CHECKPOINT_WEIGHTS, is_known
from ctxextend.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

# What asks a run to end.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

AT_FDCWD, RENAME_EXCHANGE = -100, 2
# EXDEV is what overlay file systems answer for folders of a lower layer.
CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL_HINT = "Free some space, or use -o on another disk."
HINTS = {
    errno.ENOSPC: DISK_FULL_HINT,
    errno.EDQUOT: "Your quota is used up: free some of it, or use -o on another disk.",
    errno.EROFS: "Choose a place that can be written to with -o.",
    errno.EACCES: "Choose a place that you may write to with -o.",
    errno.EPERM: "Choose a place that you may write to with -o.",
    errno.EBUSY: "Is it a mount point? Then use a folder in it with -o.",
    errno.ELOOP: "Choose another name with -o: links lead in a circle there.",
    errno.ENAMETOOLONG: "Choose a shorter name with -o.",
}


@contextlib.contextmanager
def atomic_folder(output: Path, source: Path, files: Mapping[str, int], *, force: bool) -> Iterator[Path]:
    """Give a folder to write in; when the block ends without an error it becomes the output.

    The output is checked at the start and again at the end.

    Args:
        output: The folder wanted.
        source: The checkpoint's own folder or file.
        files: The size in bytes of every file that will be written, by its path below the output.
        force: Whether an existing checkpoint may be replaced.

    Yields:
        A folder beside the output, with the sub-folders of `files`.

    Raises:
        OutputError: The output exists, must not be replaced, does not fit, cannot be written, or another process
            took its name meanwhile.
    """
    with os_errors_as_output_error(output, files):
        output = _resolved(output)
        if aside := _moved_aside(output):
            _rename(aside, output)
        _check_place(output, source)
        _check_replaceable(output, files, force)
        remove_stale(output, "new")
        with created_folders(output.parent), _temporary_sibling(output, Path.mkdir) as staged:
            check_disk_space(staged.parent, files)
            for folder in {PurePosixPath(name).parent for name in files} - {PurePosixPath(".")}:
                (staged / folder).mkdir(parents=True, exist_ok=True)
            yield staged
            for here, _, _ in os.walk(staged, topdown=False):
                sync_folder(Path(here))
            with _signals_held():
                _publish(staged, output, files, force)
        remove_stale(output, "old")


@contextlib.contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Give an empty file to write in; when the block ends without an error it takes the output's name.

    Args:
        output: The file wanted, which may exist.

    Raises:
        OSError: As the system gives it, from any step.
    """
    output = _resolved(output)
    remove_stale(output, "new")
    with _temporary_sibling(output, lambda path: path.touch(exist_ok=False)) as staged:
        yield staged
        if output.exists():
            staged.chmod(output.stat().st_mode & 0o777)
        with _signals_held():
            staged.replace(output)
            with contextlib.suppress(OSError):
                sync_folder(output.parent)


# ---- checks


def check_output(output: Path, source: Path, files: Mapping[str, int], *, force: bool) -> None:
    """Raise OutputError where `atomic_folder` would refuse the output, without changing anything; see there."""
    with os_errors_as_output_error(output):
        output = _resolved(output)
        _check_place(output, source)
        _check_replaceable(_moved_aside(output) or output, files, force)
        above = existing_above(output)
        check_writable(above)
        check_disk_space(above, files)


def _resolved(output: Path) -> Path:
    try:
        return output.resolve()
    except RuntimeError as error:  # before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def _check_place(output: Path, source: Path) -> None:
    """Refuse an output that is not apart from the source, and places that no folder may take."""
    source = source.resolve()
    if _same(output, source):
        raise OutputError(f"The output {output} is the source itself.", "Choose another folder with -o.")
    if any(_same(folder, source) for folder in output.parents):
        raise OutputError(f"The output {output} lies inside the source {source}.", "Choose a folder outside with -o.")
    if any(_same(folder, output) for folder in source.parents):
        raise OutputError(f"The source {source} lies inside the output {output}.", "Choose another folder with -o.")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    if _same(output, home) or _same(output, Path(output.anchor)):
        raise OutputError(f"{output} is not a folder that a checkpoint may replace.", f"Use -o {output / 'NAME'}.")
    above = next(path for path in output.parents if path.exists())
    if not above.is_dir():
        raise OutputError(f"The output {output} cannot be in {above}, which is a file.", "Choose another -o.")
    if output.exists() and not output.is_dir():
        raise OutputError(f"The output {output} is a file.", "Choose another name with -o.")
    if _same(output, Path()):
        raise OutputError(f"The output {output} is the current folder.", "Name a folder in it with -o NAME.")


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one folder: it has several names where mounts are bound or case does not count."""
    try:
        return one == other or one.samefile(other)
    except OSError:  # one does not exist, or is a place, like another user's home, that this user may not look at
        return False


def _check_replaceable(output: Path, files: Mapping[str, int], force: bool) -> None:
    """Refuse to replace a folder that is not empty, unless forced, and then if it is not only a checkpoint."""
    if not output.exists() or not any(output.iterdir()):
        return
    if not force:
        raise OutputError(f"The output {output} exists.", "Replace it with --force, or choose another name with -o.")
    has_config = any((output / name).is_file() for name in CHECKPOINT_MARKS)
    if not has_config or not any(any(output.glob(pattern)) for pattern in CHECKPOINT_WEIGHTS):
        raise OutputError(f"{output} is not a checkpoint folder, so --force does not replace it.", "Choose another -o.")
    for path in sorted(output.rglob("*")):
        is_file = path.is_symlink() or not path.is_dir() or not any(path.iterdir())
        name = path.relative_to(output)
        if is_file and name.as_posix() not in files and not is_known(PurePosixPath(name)):
            raise OutputError(
                f"{output} holds {name}, which no checkpoint that is made here holds: --force does not replace it.",
                "Move that away, or choose another name with -o.",
            )


def check_writable(folder: Path) -> None:
    """Raise OSError where this user may not create files in a folder, or nobody may."""
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_disk_space(folder: Path, files: Mapping[str, int]) -> None:
    """Raise OutputError where files do not fit on the disk of an existing folder; see `disk_space`."""
    needed, free = _disk_space(folder, files)
    if needed > free:
        raise OutputError(f"The output {disk_space(folder, files)}.", DISK_FULL_HINT)


def disk_space(folder: Path, files: Mapping[str, int]) -> str:
    """Return in words what files need on a disk and what it has, such as ``needs 4,096 bytes, and /data has 0 free``.

    Args:
        folder: An existing folder on that disk.
        files: The size in bytes of each file, by its path below the output.
    """
    needed, free = _disk_space(folder, files)
    return f"needs {needed:,} bytes, and {folder} has {free:,} free"


def _disk_space(folder: Path, files: Mapping[str, int]) -> tuple[int, int]:
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    blocks = len(folders) + sum(-(-size // DISK_BLOCK) for size in files.values())
    return blocks * DISK_BLOCK, shutil.disk_usage(folder).free


def existing_above(path: Path) -> Path:
    """Return the nearest folder above a path that exists; one that may not be looked into counts as missing."""
    above = path.absolute().parents
    return next((folder for folder in above if os.path.exists(folder)), path.absolute())  # noqa: PTH110 - never raises


@contextlib.contextmanager
def os_errors_as_output_error(
    output: Path, files: Mapping[str, int] | None = None, hint: str | None = None
) -> Iterator[None]:
    """Turn OSErrors from writing an output into OutputErrors that say what to do next.

    Args:
        output: What is written.
        files: The size in bytes of each of its files; None if they are not known.
        hint: What to do next; None for what fits the error and an option ``-o``.
    """
    try:
        yield
    except OSError as error:
        message = f"{output} could not be written: {error.strerror or error}."
        if error.errno in DISK_FULL and files is not None:
            with contextlib.suppress(OSError):
                message += f" It {disk_space(existing_above(output), files)}."
        known = HINTS.get(error.errno or 0, "Check the disk, then run the same command again.")
        raise OutputError(message, hint or known) from error


# ---- the rename


@contextlib.contextmanager
def created_folders(folder: Path) -> Iterator[None]:
    """Create a folder and those above it, and remove those that are empty again if the block fails."""
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


def _moved_aside(output: Path) -> Path | None:
    """Return the output that a killed run had moved aside, if nothing has taken its name."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        return None
    return next((aside for aside in _siblings(output, "old") if not _is_locked(aside)), None)


def _publish(staged: Path, output: Path, files: Mapping[str, int], force: bool) -> None:
    is_full = output.is_dir() and any(output.iterdir())
    if output.is_dir():
        _check_replaceable(output, files, force)
        staged.chmod(output.stat().st_mode & 0o7777)
    if is_full and not _exchange(staged, output):
        _rename_twice(staged, output)
    elif not is_full:
        try:
            _rename(staged, output)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            message = f"{output} was made by another program meanwhile; nothing was replaced."
            raise OutputError(message, "Choose another -o.") from error
    with contextlib.suppress(OSError):  # it has its name: whatever the disk says now, the run did not fail
        sync_folder(output.parent)


def _rename(folder: Path, output: Path) -> None:
    """Rename a folder to a name that is free or an empty folder's."""
    if os.name == "nt" and output.is_dir():
        output.rmdir()
    folder.rename(output)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one call; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    while renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        if number in CANNOT_EXCHANGE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), os.fspath(other))
    return True


def _rename_twice(staged: Path, output: Path) -> None:
    """Replace the output by two renames; between them a killed run leaves it aside."""
    try:
        lock = _lock(output)
    except BlockingIOError:
        raise OutputError(f"Another run is replacing {output} just now.", "Wait for it, then try again.") from None
    try:
        aside = _sibling(output, "old")
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
        _remove(aside)
    finally:
        _unlock(lock)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Deliver signals only when the block is done, so that none comes between a swap and its clean-up.

    Their handlers are exchanged: masks are per thread, and a signal goes to any of numpy's or torch's that has none.
    """
    if threading.current_thread() is not threading.main_thread():  # only it runs handlers
        yield
        return
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: signal.raise_signal(received[0]) if received else None)
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before):  # what is ignored, or kills, goes on doing so
                signal.signal(number, lambda number, frame: received.append(number))
                stack.callback(signal.signal, number, before)
        yield


# ---- temporary siblings


Kind = Literal["new", "old"]


def _sibling(output: Path, kind: Kind) -> Path:
    return output.parent / f".{output.name}.ctxextend-{kind}-{os.urandom(4).hex()}"


def _siblings(output: Path, kind: Kind) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(output.name)}\.ctxextend-{kind}-[0-9a-f]{{8}}")
    if not output.parent.is_dir():
        return []
    return sorted(path for path in output.parent.iterdir() if pattern.fullmatch(path.name) and not path.is_symlink())


@contextlib.contextmanager
def _temporary_sibling(output: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Create something locked beside an output, and remove whatever has its name in the end."""
    staged, lock = None, None
    try:
        while staged is None:
            staged = _sibling(output, "new")
            create(staged)
            # Before it is locked, another run may take it for a dead one's and remove it: then try another name.
            try:
                lock = _lock(staged)
            except BlockingIOError:
                staged = None
                continue
            if not staged.exists():
                _unlock(lock)
                staged = lock = None
        yield staged
    finally:
        with _signals_held():
            if staged is not None:
                _remove(staged)
            _unlock(lock)


def remove_stale(output: Path, kind: Kind) -> None:
    """Remove what killed runs left beside an output; where nothing can be locked nobody knows which runs live."""
    for left in _siblings(output, kind):
        with contextlib.suppress(BlockingIOError):
            lock = _lock(left)
            if lock is not None:
                _remove(left)
                _unlock(lock)


def remove_at_once(path: Path) -> None:
    """Remove something that others look for by its name, so that they never find a part of it.

    Raises:
        OSError: It cannot be renamed.
    """
    if os.path.lexists(path):
        aside = _sibling(path, "old")
        path.rename(aside)
        _remove(aside)


def _remove(path: Path) -> None:
    for _ in range(3):  # antivirus programs and network file systems let go of a file a moment later
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
        for here, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(here).chmod(Path(here).stat().st_mode | 0o700)  # an output may be read-only
        shutil.rmtree(path, ignore_errors=True)


# ---- locks


def _lock(path: Path) -> int | None:
    """Lock a file or folder until this process ends; None where the system or the file system cannot.

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


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _is_locked(path: Path) -> bool:
    try:
        _unlock(_lock(path))
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file or folder for this process while the block runs, where the system has such locks.

    Raises:
        BlockingIOError: Another process holds it, or took it away or made it anew just now.
    """
    lock = _lock(path)
    try:
        try:
            is_there = lock is None or os.path.samestat(path.stat(), os.fstat(lock))
        except OSError:
            is_there = False
        if not is_there or not path.exists():
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), os.fspath(path))
        yield
    finally:
        _unlock(lock)
