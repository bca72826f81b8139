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
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.copy import DISK_BLOCK, sync
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
CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINTR}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL_HINT = "Free some space, or use -o on another disk."
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextlib.contextmanager
def atomic_folder(output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool) -> Iterator[Path]:
    """Give a folder to write in; when the block ends without an error it is synced and becomes the output.

    `sources` are what the output must not overlap, `files` the size in bytes of every file that will be written, by its
    path below the output; the folder has their sub-folders. With `force` an existing checkpoint is replaced.
    """
    with os_errors_as_output_error(output, files):
        output = Path(os.path.realpath(output))
        _check_place(output, sources)
        if aside := _moved_aside(output):
            aside.rename(output)
        _check_replaceable(output, files, force)
        remove_stale(output, "new")
        with created_folders(output.parent), _temporary_sibling(output, Path.mkdir) as staged:
            check_disk_space(staged.parent, files)
            for folder in {PurePosixPath(name).parent for name in files} - {PurePosixPath(".")}:
                (staged / folder).mkdir(parents=True, exist_ok=True)
            yield staged
            # Only now: after each file, the disk would idle while the next one is read.
            for here, _, names in os.walk(staged, topdown=False):
                for name in [*names, "."]:
                    sync(Path(here, name))
            with _signals_held():
                _publish(staged, output, files, force)
        remove_stale(output, "old")


@contextlib.contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Give an empty file to write in; when the block ends without an error it is synced and takes the output's name."""
    output = Path(os.path.realpath(output))
    remove_stale(output, "new")
    with _temporary_sibling(output, lambda path: path.touch(exist_ok=False)) as staged:
        yield staged
        if output.exists():
            staged.chmod(output.stat().st_mode & 0o777)
        sync(staged)
        with _signals_held():
            staged.replace(output)
            with contextlib.suppress(OSError):
                sync(output.parent)


# ---- checks


def check_output(output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool) -> None:
    """Raise OutputError where `atomic_folder` would refuse the output, without changing anything."""
    with os_errors_as_output_error(output):
        output = Path(os.path.realpath(output))
        _check_place(output, sources)
        _check_replaceable(_moved_aside(output) or output, files, force)
        check_disk_space(existing_above(output), files)


def _check_place(output: Path, sources: Iterable[Path]) -> None:
    """Refuse an output that is not apart from the sources, and places that no folder may take."""
    # A run clears what has the names of its temporary siblings.
    places = (output, *_siblings(output, "new"), *_siblings(output, "old"))
    for source in map(Path.resolve, sources):
        pairs = [(place, one) for place in places for one in (source, *source.parents)]
        if any(_same(one, other) for one, other in (*pairs, *((one, source) for one in output.parents))):
            raise OutputError(f"The output {output} and the source {source} overlap.", "Choose a folder apart with -o.")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    if any(_same(output, place) for place in (home, Path(output.anchor), Path())):
        raise OutputError(f"{output} is not a folder that a checkpoint may replace.", f"Use -o {output / 'NAME'}.")
    found = next(path for path in (output, *output.parents) if path.exists())
    if not found.is_dir():
        raise OutputError(f"The output {output} cannot be made: {found} is a file.", "Choose another name with -o.")


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
        name = path.relative_to(output).as_posix()
        is_filled = path.is_dir() and not path.is_symlink() and any(path.iterdir())
        if not is_filled and name not in files and not is_known(PurePosixPath(name)):
            message = f"{output} holds {name}, which no checkpoint holds, so --force does not replace it."
            raise OutputError(message, "Move that away, or choose another name with -o.")


def check_disk_space(folder: Path, files: Mapping[str, int]) -> None:
    """Raise OutputError where files, by their sizes in bytes, do not fit on a folder's disk, OSError where none may."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    fits, words = disk_space(folder, files)
    if not fits:
        raise OutputError(f"The output {words}.", DISK_FULL_HINT)


def disk_space(folder: Path, files: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether files fit on a folder's disk, and in words what they need and it has."""
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    needed = DISK_BLOCK * (len(folders) + sum(-(-size // DISK_BLOCK) for size in files.values()))
    free = shutil.disk_usage(folder).free
    return needed <= free, f"needs {needed:,} bytes, and {folder} has {free:,} free"


def existing_above(path: Path) -> Path:
    """Return the nearest folder above a path that exists; one that may not be looked into counts as missing."""
    above = path.absolute().parents
    return next((folder for folder in above if os.path.exists(folder)), path.absolute())  # noqa: PTH110 - never raises


@contextlib.contextmanager
def os_errors_as_output_error(
    output: Path, files: Mapping[str, int] | None = None, hint: str | None = None
) -> Iterator[None]:
    """Turn OSErrors from writing an output, or these files of it, into OutputErrors that say what to do next."""
    try:
        yield
    except OSError as error:
        message = f"{output} could not be written: {error.strerror or error}."
        if error.errno in DISK_FULL and files is not None:
            with contextlib.suppress(OSError):
                message += f" It {disk_space(existing_above(output), files)[1]}."
        made = "Another program made it meanwhile, and nothing was replaced. " if error.errno in TAKEN else ""
        known = DISK_FULL_HINT if error.errno in DISK_FULL else "Try again, or choose another place or name with -o."
        raise OutputError(message, hint or made + known) from error


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
                sync(path.parent)
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _moved_aside(output: Path) -> Path | None:
    """Return the output that a killed run had moved aside, if nothing has taken its name."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        return None
    for aside in _siblings(output, "old"):
        with contextlib.suppress(OSError), locked(aside):
            return aside
    return None


def _publish(staged: Path, output: Path, files: Mapping[str, int], force: bool) -> None:
    is_full = output.is_dir() and any(output.iterdir())
    if output.is_dir():
        _check_replaceable(output, files, force)
        staged.chmod(output.stat().st_mode & 0o7777)
    if not is_full:
        if os.name == "nt" and output.is_dir():
            output.rmdir()
        staged.rename(output)
    elif not _exchange(staged, output):
        with locked(output):  # a run that is killed between the two renames leaves it aside
            aside = _sibling(output, "old")
            output.rename(aside)
            try:
                staged.rename(output)
            except OSError:
                if not output.exists():
                    aside.rename(output)
                raise
            _remove(aside)
    with contextlib.suppress(OSError):  # it has its name: whatever the disk says now, the run did not fail
        sync(output.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one call; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    failed = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if failed and ctypes.get_errno() not in CANNOT_EXCHANGE:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(other))
    return not failed


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


# ---- temporary siblings and locks


def _sibling(output: Path, kind: str) -> Path:
    return output.parent / f".{output.name}.ctxextend-{kind}-{os.urandom(4).hex()}"


def _siblings(output: Path, kind: str) -> list[Path]:
    prefix = f".{output.name}.ctxextend-{kind}-"
    beside = output.parent.iterdir() if output.parent.is_dir() else ()
    found = (path for path in beside if path.name.startswith(prefix) and len(path.name) == len(prefix) + 8)
    return sorted(path for path in found if not path.is_symlink())


@contextlib.contextmanager
def _temporary_sibling(output: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Create something locked beside an output, and remove whatever has its name in the end."""
    with contextlib.ExitStack() as stack:
        for attempt in range(10):
            staged = _sibling(output, "new")
            stack.callback(_remove, staged)
            create(staged)
            try:
                stack.enter_context(locked(staged))
                break
            except BlockingIOError:  # another run took it for a dead one's and removes it
                if attempt == 9:
                    raise
        yield staged


def remove_stale(output: Path, kind: str) -> None:
    """Remove what killed runs left beside an output; where nothing can be locked nobody knows which runs live."""
    for left in _siblings(output, kind):
        with contextlib.suppress(OSError), locked(left) as is_locked:
            if is_locked:
                _remove(left)


def remove_at_once(path: Path) -> None:
    """Remove something that others look for by its name, so that they never find a part of it."""
    if os.path.lexists(path):
        aside = _sibling(path, "old")
        path.rename(aside)
        _remove(aside)


@_signals_held()
def _remove(path: Path) -> None:
    for _ in range(3):  # antivirus programs and network file systems let go of a file a moment later
        if not os.path.lexists(path):
            return
        if path.is_dir():
            for here, _, _ in os.walk(path):
                with contextlib.suppress(OSError):
                    Path(here).chmod(0o700)  # an output may be read-only
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file or folder while the block runs; gives whether the system and the file system have such locks.

    Raises BlockingIOError where another process holds it, or took it away or made it anew just now.
    """
    is_locked = False
    with contextlib.ExitStack() as stack:
        try:
            if fcntl is not None:
                descriptor = os.open(path, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_locked = True
                except OSError as error:  # BlockingIOError, or a file system has no locks
                    if isinstance(error, BlockingIOError):
                        raise
                if not os.path.samestat(path.stat(), os.fstat(descriptor)):
                    raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise BlockingIOError(errno.EWOULDBLOCK, "another run works on it just now", os.fspath(path)) from None
        yield is_locked
