"""Atomic output: write to a temporary folder or file, sync it to disk, then rename it into place.

`.NAME.ctxextend-new-XXXXXXXX` next to the output is locked with flock, so that other runs remove
only leftovers of killed runs. An existing output is replaced with one `renameat2` (RENAME_EXCHANGE)
if the kernel supports it; else it is first renamed to a backup, `.NAME.ctxextend-old-XXXXXXXX`,
which a later run restores if the output is missing.
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
except ImportError:  # Windows: no locks
    fcntl = None  # type: ignore[assignment]

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

AT_FDCWD = -100
RENAME_EXCHANGE = 2
# Overlay file systems return EXDEV for folders of a lower layer.
CANNOT_EXCHANGE = {
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
    errno.EINTR,
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL_HINT = "Free disk space, or choose an output on another disk with -o."
EXISTS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextlib.contextmanager
def atomic_folder(
    output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool
) -> Iterator[Path]:
    """Yield a temporary folder; sync it and rename it to the output when the block ends without an
    error.

    The output must not overlap any of `sources`. `files` are the sizes in bytes of all files to be
    written, by path relative to the output; their subfolders are created. With `force` an existing
    checkpoint is replaced.
    """
    with os_errors_as_output_error(output, files):
        output = Path(os.path.realpath(output))
        _check_location(output, sources)
        if backup := _find_backup(output):
            backup.rename(output)
        _check_replaceable(output, files, force)
        remove_stale(output, "new")
        with created_folders(output.parent), _temporary_path(output, Path.mkdir) as staged:
            check_disk_space(staged.parent, files)
            for subfolder in {PurePosixPath(name).parent for name in files} - {PurePosixPath(".")}:
                (staged / subfolder).mkdir(parents=True, exist_ok=True)
            yield staged
            for folder, _, names in os.walk(
                staged, topdown=False
            ):  # once: an fsync per file leaves the disk idle
                for name in [*names, "."]:
                    sync(Path(folder, name))
            with _defer_signals():
                _publish(staged, output, files, force)
        remove_stale(output, "old")


@contextlib.contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Yield a temporary file; sync it and rename it to the output when the block ends without an
    error.
    """
    output = Path(os.path.realpath(output))
    remove_stale(output, "new")
    with _temporary_path(output, lambda path: path.touch(exist_ok=False)) as staged:
        yield staged
        if output.exists():
            staged.chmod(output.stat().st_mode & 0o777)
        sync(staged)
        with _defer_signals():
            staged.replace(output)
            with contextlib.suppress(OSError):
                sync(output.parent)


def check_output(
    output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool
) -> None:
    """Raise OutputError if `atomic_folder` would reject the output; change nothing."""
    with os_errors_as_output_error(output):
        output = Path(os.path.realpath(output))
        _check_location(output, sources)
        _check_replaceable(_find_backup(output) or output, files, force)
        check_disk_space(nearest_existing_parent(output), files)


def _check_location(output: Path, sources: Iterable[Path]) -> None:
    """Raise OutputError if the output overlaps a source, is a protected folder, or has a file in
    its path.
    """
    # A run also removes leftovers that have the names of its temporary folders.
    removable = (output, *_temporary_paths(output, "new"), *_temporary_paths(output, "old"))
    for source in map(Path.resolve, sources):
        pairs = [(path, parent) for path in removable for parent in (source, *source.parents)]
        if any(
            _is_same(*pair) for pair in (*pairs, *((parent, source) for parent in output.parents))
        ):
            raise OutputError(
                f"The output {output} and the source {source} overlap.", "Choose another -o."
            )
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises if there is none
    if any(_is_same(output, path) for path in (home, Path(output.anchor), Path())):
        message = (
            f"The output {output} is the home, root or current folder, which is never replaced."
        )
        raise OutputError(message, f"Use -o {output / 'NAME'}.")
    parent = next(path for path in (output, *output.parents) if path.exists())
    if not parent.is_dir():
        raise OutputError(
            f"The output {output} cannot be created: {parent} is a file.", "Choose another -o."
        )


def _is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one folder, which may have several names: bind mounts, case-insensitive
    file systems.
    """
    with contextlib.suppress(
        OSError
    ):  # one does not exist, or this user has no permission, as for another user's home
        return path == other or path.samefile(other)
    return False


def _check_replaceable(output: Path, files: Mapping[str, int], force: bool) -> None:
    """Raise OutputError if a non-empty folder would be replaced without `force`, or contains more
    than a checkpoint.
    """
    if not output.exists() or not any(output.iterdir()):
        return
    if not force:
        raise OutputError(
            f"The output {output} exists.", "Replace it with --force, or choose another -o."
        )
    has_config = any((output / name).is_file() for name in CHECKPOINT_MARKS)
    if not has_config or not any(any(output.glob(pattern)) for pattern in CHECKPOINT_WEIGHTS):
        raise OutputError(
            f"{output} is not a checkpoint folder, so --force does not replace it.",
            "Choose another -o.",
        )
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        is_filled = path.is_dir() and not path.is_symlink() and any(path.iterdir())
        if not is_filled and name not in files and not is_known(PurePosixPath(name)):
            message = (
                f"{output} contains {name}, which is not a checkpoint file, so --force does not "
                "replace it."
            )
            raise OutputError(message, f"Move {name} elsewhere, or choose another -o.")


def check_disk_space(folder: Path, files: Mapping[str, int]) -> None:
    """Raise OutputError if files of these sizes do not fit on a folder's disk, OSError if it is not
    writable.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    fits, space = disk_space(folder, files)
    if not fits:
        raise OutputError(f"The output {space}.", DISK_FULL_HINT)


def disk_space(folder: Path, files: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether files of these sizes in bytes fit on a folder's disk, and the needed and free
    bytes as text.
    """
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    needed = DISK_BLOCK * (len(folders) + sum(-(-size // DISK_BLOCK) for size in files.values()))
    free = shutil.disk_usage(folder).free
    return needed <= free, f"needs {needed:,} bytes, and {folder} has {free:,} free"


def nearest_existing_parent(path: Path) -> Path:
    """Return the nearest parent folder that exists; one that this user cannot access counts as
    missing.
    """
    path = path.absolute()
    return next((parent for parent in path.parents if os.path.exists(parent)), path)  # noqa: PTH110 - never raises


@contextlib.contextmanager
def os_errors_as_output_error(
    output: Path, files: Mapping[str, int] | None = None, hint: str | None = None
) -> Iterator[None]:
    """Convert OSErrors into OutputErrors with a hint; for a full disk, state the space that `files`
    need.
    """
    try:
        yield
    except OSError as error:
        message = f"{output} could not be written: {error.strerror or error}."
        if error.errno in DISK_FULL and files is not None:
            with contextlib.suppress(OSError):
                message += f" It {disk_space(nearest_existing_parent(output), files)[1]}."
        taken = (
            "Another program created it in the meantime; nothing was replaced. "
            if error.errno in EXISTS
            else ""
        )
        advice = DISK_FULL_HINT if error.errno in DISK_FULL else "Try again, or choose another -o."
        raise OutputError(message, hint or taken + advice) from error


@contextlib.contextmanager
def created_folders(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; if the block fails, remove those that were created and are
    empty.
    """
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


def _find_backup(output: Path) -> Path | None:
    """Return the backup that a killed run left of the output, if the output is missing or empty."""
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        return None
    for backup in _temporary_paths(output, "old"):
        with contextlib.suppress(OSError), locked(backup):
            return backup
    return None


def _publish(staged: Path, output: Path, files: Mapping[str, int], force: bool) -> None:
    is_filled = output.is_dir() and any(output.iterdir())
    if output.is_dir():
        _check_replaceable(output, files, force)
        staged.chmod(output.stat().st_mode & 0o7777)
    if not is_filled:
        if os.name == "nt" and output.is_dir():
            output.rmdir()
        staged.rename(output)
    elif not _exchange(staged, output):
        with locked(output):  # a run that is killed between the two renames leaves the backup
            backup = _new_temporary_path(output, "old")
            output.rename(backup)
            try:
                staged.rename(output)
            except OSError:
                if not output.exists():
                    backup.rename(output)
                raise
            _remove(backup)
    with contextlib.suppress(OSError):  # the output is in place: a failing sync is not a failed run
        sync(output.parent)


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two names in one system call; return False if the kernel or the file system does not
    support it.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    failed = renameat2(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if failed and ctypes.get_errno() not in CANNOT_EXCHANGE:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(other))
    return not failed


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer signals to the end of the block, so that none arrives between a rename and its
    clean-up.

    Handlers are replaced, not masked: masks are per thread, and threads of numpy or torch would
    receive the signal.
    """
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # handlers run in the main thread only
        yield
        return
    received: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: signal.raise_signal(received[0]) if received else None)
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before):  # SIG_IGN and SIG_DFL stay in effect
                signal.signal(number, lambda number, frame: received.append(number))
                stack.callback(signal.signal, number, before)
        yield


def _new_temporary_path(output: Path, kind: str) -> Path:
    return output.parent / f".{output.name}.ctxextend-{kind}-{os.urandom(4).hex()}"


def _temporary_paths(output: Path, kind: str) -> list[Path]:
    prefix = f".{output.name}.ctxextend-{kind}-"
    paths = output.parent.iterdir() if output.parent.is_dir() else ()
    matching = (
        path for path in paths if path.name.startswith(prefix) and len(path.name) == len(prefix) + 8
    )
    return sorted(path for path in matching if not path.is_symlink())


@contextlib.contextmanager
def _temporary_path(output: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Create and lock a temporary folder or file next to an output; remove it at the end if it
    still exists.
    """
    with contextlib.ExitStack() as stack:
        for attempt in range(10):
            staged = _new_temporary_path(output, "new")
            stack.callback(_remove, staged)
            create(staged)
            try:
                stack.enter_context(locked(staged))
                break
            except BlockingIOError:  # another run mistook it for a leftover and removes it
                if attempt == 9:
                    raise
        yield staged


def remove_stale(output: Path, kind: str) -> None:
    """Remove leftovers of killed runs next to an output; without lock support they might be in use,
    and are kept.
    """
    for leftover in _temporary_paths(output, kind):
        with contextlib.suppress(OSError), locked(leftover) as is_locked:
            if is_locked:
                _remove(leftover)


def remove_atomically(path: Path) -> None:
    """Rename a folder or file, then remove it, so that other runs never see it half removed."""
    if os.path.lexists(path):
        renamed = _new_temporary_path(path, "old")
        path.rename(renamed)
        _remove(renamed)


@_defer_signals()
def _remove(path: Path) -> None:
    for _ in range(3):  # antivirus programs and network file systems release files late
        if not os.path.lexists(path):
            return
        if path.is_dir() and not path.is_symlink():
            for folder, _, _ in os.walk(path):
                with contextlib.suppress(OSError):
                    Path(folder).chmod(0o700)  # an output may be read-only
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file or folder during the block; yield whether the system and the file system support
    locks.

    Raises BlockingIOError if another process holds the lock, or removed or recreated the path.
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
                except OSError as error:  # BlockingIOError, or no locks on this file system
                    if isinstance(error, BlockingIOError):
                        raise
                if not os.path.samestat(path.stat(), os.fstat(descriptor)):
                    raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise BlockingIOError(
                errno.EWOULDBLOCK, "another run is using it", os.fspath(path)
            ) from None
        yield is_locked
