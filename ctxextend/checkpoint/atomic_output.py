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
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoint.copy import DISK_BLOCK, sync
from ctxextend.checkpoint.filenames import CHECKPOINT_MARKS, CHECKPOINT_WEIGHTS, is_known
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
ATTEMPTS = 10  # to lock a new temporary path
EXISTS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

# What runs in progress have created, for `remove_unfinished`.
_temporary: list[Path] = []
_new_folders: list[Path] = []
# Outputs that are in place, to say so if the command is interrupted after that.
completed: list[Path] = []


@contextlib.contextmanager
def atomic_folder(
    output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool
) -> Iterator[Path]:
    """Yield a temporary folder; if the block ends without an error, rename it to the output.

    The folder is synced to disk before.

    Args:
        output: The output folder.
        sources: Paths that the output must not overlap.
        files: Sizes in bytes of all files to be written, by path relative to the output; their
            subfolders are created.
        force: Whether an existing checkpoint is replaced.

    Raises:
        OutputError: The output is not allowed, exists, or cannot be written.
    """
    with os_errors_as_output_error(output, files):
        output = Path(os.path.realpath(output))
        _check_location(output, sources)
        backup = _find_backup(output)
        if backup is not None:
            backup.rename(output)
        _check_replaceable(output, files, force)
        remove_stale(output, "new")
        with created_folders(output.parent), _temporary_path(output, Path.mkdir) as staged:
            check_disk_space(staged.parent, files)
            subfolders = {PurePosixPath(name).parent for name in files}
            for subfolder in subfolders - {PurePosixPath(".")}:
                (staged / subfolder).mkdir(parents=True, exist_ok=True)
            yield staged
            # Once for all files: an fsync after each leaves the disk idle.
            for folder, _, names in os.walk(staged, topdown=False):
                for name in [*names, "."]:
                    if not Path(folder, name).is_symlink():  # to a file of the source
                        sync(Path(folder, name))
            with _defer_signals():
                is_filled = output.is_dir() and any(output.iterdir())
                if output.is_dir():
                    _check_replaceable(output, files, force)
                    staged.chmod(output.stat().st_mode & 0o7777)
                if not is_filled:
                    if os.name == "nt" and output.is_dir():
                        output.rmdir()
                    staged.rename(output)
                elif not _exchange(staged, output):
                    _replace(staged, output)
                # The output is in place: a failing sync is not a failed run.
                with contextlib.suppress(OSError):
                    sync(output.parent)
                completed.append(output)
        remove_stale(output, "old")


@contextlib.contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Yield a temporary file; if the block ends without an error, rename it to the output.

    The file is synced to disk before.
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


@contextlib.contextmanager
def atomic_new_file(
    output: Path,
    sources: Iterable[Path],
    size: int,
    *,
    force: bool,
    is_replaceable: Callable[[Path], bool],
) -> Iterator[Path]:
    """Yield a temporary file; if the block ends without an error, rename it to the output.

    Args:
        output: The output file.
        sources: Files that it must not replace.
        size: Its size in bytes.
        force: Whether an existing file is replaced.
        is_replaceable: Whether a file is one that may be replaced.

    Raises:
        OutputError: The output is not allowed, exists, or cannot be written.
    """
    check_new_file(output, sources, size, force=force, is_replaceable=is_replaceable)
    with os_errors_as_output_error(output, {output.name: size}):
        output = Path(os.path.realpath(output))
        with created_folders(output.parent), atomic_file(output) as staged:
            yield staged
        completed.append(output)


def check_new_file(
    output: Path,
    sources: Iterable[Path],
    size: int,
    *,
    force: bool,
    is_replaceable: Callable[[Path], bool],
) -> None:
    """Raise the error that `atomic_new_file` would raise for an output; change nothing.

    Raises:
        OutputError: The output is not allowed, exists, or does not fit on the disk.
    """
    with os_errors_as_output_error(output):
        output = Path(os.path.realpath(output))
        if output.is_dir():
            message = f"The output {output} is a folder."
            raise OutputError(message, f"Use --output {output / 'NAME.gguf'}.")
        _check_location(output, sources)
        if os.path.lexists(output):
            _check_force(output, force=force)
            if not is_replaceable(output):
                message = f"{output} is not a GGUF file, so --force does not replace it."
                raise OutputError(message, "Choose another --output.")
        check_disk_space(nearest_existing_parent(output), {output.name: size})


def check_output(
    output: Path, sources: Iterable[Path], files: Mapping[str, int], *, force: bool
) -> None:
    """Raise the error that `atomic_folder` would raise for an output; change nothing.

    Raises:
        OutputError: The output is not allowed, exists, or does not fit on the disk.
    """
    with os_errors_as_output_error(output):
        output = Path(os.path.realpath(output))
        _check_location(output, sources)
        _check_replaceable(_find_backup(output) or output, files, force)
        check_disk_space(nearest_existing_parent(output), files)


def _check_location(output: Path, sources: Iterable[Path]) -> None:
    # A run also removes leftovers that have the names of its temporary folders.
    removable = (output, *_temporary_paths(output, "new"), *_temporary_paths(output, "old"))
    for source in map(Path.resolve, sources):
        pairs = [*product(removable, (source, *source.parents)), *product([source], output.parents)]
        if any(_is_same(path, other) for path, other in pairs):
            message = f"The output {output} and the source {source} overlap."
            if source.is_file() and _is_same(output, source):
                message = f"The output {output} is the source."
            raise OutputError(message, "Choose another --output.")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises if there is none
    if any(_is_same(output, other) for other in (home, Path(output.anchor), Path())):
        what = "the home, root or current folder, which is never replaced"
        message = f"The output {output} is {what}."
        raise OutputError(message, f"Use --output {output / 'NAME'}.")
    existing = next(path for path in output.parents if path.exists())
    if not existing.is_dir():
        message = f"The output {output} cannot be created: {existing} is a file."
        raise OutputError(message, "Choose another --output.")


def _is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one folder or file.

    It may have several names: bind mounts, case-insensitive file systems.
    """
    # OSError: one does not exist, or this user has no permission, as for another user's home.
    with contextlib.suppress(OSError):
        return path == other or path.samefile(other)
    return False


def _check_force(output: Path, *, force: bool) -> None:
    if not force:
        message = f"The output {output} exists."
        raise OutputError(message, "Replace it with --force, or choose another --output.")


def _check_replaceable(output: Path, files: Mapping[str, int], force: bool) -> None:
    if output.is_file():
        message = f"The output {output} is a file."
        raise OutputError(message, "Choose another --output.")
    if not output.exists() or not any(output.iterdir()):
        return
    _check_force(output, force=force)
    has_mark = any((output / name).is_file() for name in CHECKPOINT_MARKS)
    has_weights = any(any(output.glob(pattern)) for pattern in CHECKPOINT_WEIGHTS)
    if not has_mark or not has_weights:
        message = f"{output} is not a checkpoint folder, so --force does not replace it."
        raise OutputError(message, "Choose another --output.")
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        is_filled = path.is_dir() and not path.is_symlink() and any(path.iterdir())
        if not is_filled and name not in files and not is_known(PurePosixPath(name)):
            contains = f"{output} contains {name}, which is not a checkpoint file"
            message = f"{contains}, so --force does not replace it."
            raise OutputError(message, f"Move {name} elsewhere, or choose another --output.")


def check_disk_space(folder: Path, files: Mapping[str, int]) -> None:
    """Check that files fit on a folder's disk.

    Raises:
        OutputError: They do not fit.
        PermissionError: The folder is not writable.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    fits, space = disk_space(folder, files)
    if not fits:
        raise OutputError(f"The output {space}.", DISK_FULL_HINT)


def disk_space(folder: Path, files: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether files fit on a folder's disk, and the needed and free bytes as text.

    Args:
        folder: The folder, which exists.
        files: Sizes in bytes by relative path.
    """
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    blocks = len(folders)
    for size in files.values():
        blocks += -(-size // DISK_BLOCK)  # rounded up
    needed = DISK_BLOCK * blocks
    free = shutil.disk_usage(folder).free
    return needed <= free, f"needs {needed:,} bytes, and {folder} has {free:,} free"


def nearest_existing_parent(path: Path) -> Path:
    """Return the nearest parent folder that exists, of those that this user can access."""
    path = path.absolute()
    for parent in path.parents:
        if os.path.exists(parent):  # noqa: PTH110 - never raises
            return parent
    return path


@contextlib.contextmanager
def os_errors_as_output_error(
    output: Path, files: Mapping[str, int] | None = None, hint: str | None = None
) -> Iterator[None]:
    """Convert OSErrors into OutputErrors with a hint.

    Args:
        output: What is written.
        files: Sizes in bytes by relative path, which the error states if the disk is full.
        hint: What to do; by default, it depends on the error.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        message = f"{output} could not be written: {reason}."
        if error.errno in DISK_FULL and files is not None:
            with contextlib.suppress(OSError):
                _, space = disk_space(nearest_existing_parent(output), files)
                message += f" It {space}."
        if hint is None:
            hint = "Try again, or choose another --output."
            if error.errno in DISK_FULL:
                hint = DISK_FULL_HINT
            elif error.errno in EXISTS:
                message += " Another program created it in the meantime; nothing was replaced."
        raise OutputError(message, hint) from error


@contextlib.contextmanager
def created_folders(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; if the block fails, remove those that are still empty."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    _new_folders.extend(missing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        for path in missing:
            with contextlib.suppress(OSError):
                sync(path.parent)
    except BaseException:
        _remove_empty(missing)
        raise
    finally:
        for path in missing:
            _new_folders.remove(path)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_unfinished() -> None:
    """Remove what runs in progress have created, before the process exits without unwinding."""
    for path in _temporary:
        _remove(path)
    _remove_empty(_new_folders)


def _find_backup(output: Path) -> Path | None:
    """Return the backup that a killed run left of the output, if the output is missing or empty."""
    is_empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not is_empty:
        return None
    for backup in _temporary_paths(output, "old"):
        with contextlib.suppress(OSError), locked(backup):
            return backup
    return None


def _replace(staged: Path, output: Path) -> None:
    """Rename the output to a backup, and the new folder to the output.

    A run that is killed between the two renames leaves the backup.
    """
    with locked(output):
        backup = _new_temporary_path(output, "old")
        output.rename(backup)
        try:
            staged.rename(output)
        except OSError:
            if not output.exists():
                backup.rename(output)
            raise
        _remove(backup)


def _exchange(path: Path, other: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    failed = renameat2(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer signals to the end of the block, so that none comes between a rename and its clean-up.

    Handlers are replaced, not masked: masks are per thread, and threads of numpy or torch would
    receive the signal.
    """
    # Handlers run in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # SIG_IGN and SIG_DFL stay in effect
                handlers[number] = handler
                signal.signal(number, lambda number, frame: received.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _new_temporary_path(output: Path, kind: str) -> Path:
    return output.parent / f".{output.name}.ctxextend-{kind}-{os.urandom(4).hex()}"


def _temporary_paths(output: Path, kind: str) -> list[Path]:
    prefix = f".{output.name}.ctxextend-{kind}-"
    if not output.parent.is_dir():
        return []
    found = list[Path]()
    for path in output.parent.iterdir():
        is_named_so = path.name.startswith(prefix) and len(path.name) == len(prefix) + 8
        if is_named_so and not path.is_symlink():
            found.append(path)
    return sorted(found)


@contextlib.contextmanager
def _temporary_path(output: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        for attempt in range(ATTEMPTS):
            staged = _new_temporary_path(output, "new")
            _temporary.append(staged)
            stack.callback(_temporary.remove, staged)
            stack.callback(_remove, staged)
            create(staged)
            try:
                stack.enter_context(locked(staged))
                break
            except BlockingIOError:  # another run mistook it for a leftover and removes it
                if attempt == ATTEMPTS - 1:
                    raise
        yield staged


def remove_stale(output: Path, kind: str) -> None:
    """Remove leftovers of killed runs next to an output.

    Where locks are not supported, they might be in use, and are kept.
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
    """Lock a file or folder during the block.

    Yields:
        Whether the system and the file system support locks.

    Raises:
        BlockingIOError: Another process holds the lock, or removed or recreated the path.
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
