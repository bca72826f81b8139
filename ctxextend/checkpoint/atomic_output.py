"""Atomic output: write into a temporary folder, sync it to disk, then rename what it contains.

The folder `.NAME.ctxextend-XXXXXXXX` next to the output has `new`, which a run writes. It is locked
with flock, so that other runs remove only those of killed runs. An existing output is replaced with
one `renameat2` (RENAME_EXCHANGE) if the kernel supports it. Else it is first moved into the
folder, as `old`, from which a later run restores it if the output is missing.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoint.copy import DISK_BLOCK, sync
from ctxextend.checkpoint.filenames import (
    CHECKPOINT_MARKS,
    CHECKPOINT_WEIGHTS,
    GGUF_SUFFIX,
    is_gguf,
    is_known,
)
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
ATTEMPTS = 10  # to lock a new temporary folder
# In a temporary folder: what a run writes, and the output that it replaces.
STAGED = "new"
BACKUP = "old"
EXISTS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

# What runs in progress have created, for `remove_unfinished`.
_temporary_folders: list[Path] = []
_new_folders: list[Path] = []
# Outputs that are in place, to say so if the command is interrupted after that.
completed: list[Path] = []


@contextlib.contextmanager
def atomic_output(
    output: Path,
    sources: Iterable[Path],
    files: Mapping[str, int],
    *,
    force: bool,
    is_file: bool = False,
) -> Iterator[Path]:
    """Yield a temporary folder; if the block ends without an error, rename it to the output.

    The folder is synced to disk before.

    Args:
        output: The output folder or file.
        sources: Paths that the output must not overlap.
        files: Sizes in bytes of all files to be written, by path relative to the output; their
            subfolders are created.
        force: Whether an existing checkpoint is replaced.
        is_file: Whether the output is the only one of `files`, and not a folder.

    Raises:
        OutputError: The output is not allowed, exists, or cannot be written.
    """
    with os_errors_as_output_error(output, files):
        output = Path(os.path.realpath(output))
        check_output(output, sources, files, force=force, is_file=is_file, restores=True)
        with created_folders(output.parent), _temporary(output) as temporary:
            staged = temporary / STAGED
            for folder in sorted({staged, *((staged / name).parent for name in files)}):
                folder.mkdir(parents=True, exist_ok=True)
            yield staged
            # Once for all files: an fsync after each leaves the disk idle.
            for place, _, names in os.walk(staged, topdown=False):
                for name in [*names, "."]:
                    if not Path(place, name).is_symlink():  # to a file of the source
                        sync(Path(place, name))
            with _defer_signals():
                is_filled = output.is_dir() and any(output.iterdir())
                _check_replaceable(output, files, force=force, is_file=is_file)
                if is_file:
                    (staged / next(iter(files))).replace(output)
                else:
                    _replace(staged, output, is_filled=is_filled)
                # The output is in place: a failing sync is not a failed run.
                with contextlib.suppress(OSError):
                    sync(output.parent)
                completed.append(output)
        remove_leftovers(output)


@contextlib.contextmanager
def atomic_file(output: Path) -> Iterator[Path]:
    """Yield a path for a file; if the block ends without an error, rename it to the output.

    The file is synced to disk before.
    """
    output = Path(os.path.realpath(output))
    with _temporary(output) as temporary:
        staged = temporary / STAGED
        yield staged
        if output.exists():
            staged.chmod(output.stat().st_mode & 0o777)
        sync(staged)
        with _defer_signals():
            staged.replace(output)
            with contextlib.suppress(OSError):
                sync(output.parent)


def check_output(
    output: Path,
    sources: Iterable[Path],
    files: Mapping[str, int],
    *,
    force: bool,
    is_file: bool = False,
    restores: bool = False,
) -> None:
    """Raise the error that `atomic_output` would raise for an output.

    Nothing is changed, unless `restores` is set: then an output that a killed run has moved is
    moved back.

    Raises:
        OutputError: The output is not allowed, exists, or does not fit on the disk.
    """
    with os_errors_as_output_error(output):
        output = Path(os.path.realpath(output))
        leftovers = _leftovers(output)
        for source in map(Path.resolve, sources):
            # A run also removes the leftovers.
            removable = product((output, *leftovers), (source, *source.parents))
            if any(_is_same(*pair) for pair in (*removable, *product([source], output.parents))):
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

        checked = output
        if not output.exists() or (output.is_dir() and not any(output.iterdir())):
            for leftover in leftovers:
                backup = leftover / BACKUP
                with contextlib.suppress(OSError), locked(leftover):
                    if restores and backup.exists():
                        backup.rename(output)
                    elif backup.exists():
                        checked = backup
        _check_replaceable(checked, files, force=force, is_file=is_file)
        check_disk_space(existing, files)


def _is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one folder or file.

    It may have several names: bind mounts, case-insensitive file systems.
    """
    # OSError: one does not exist, or this user has no permission, as for another user's home.
    with contextlib.suppress(OSError):
        return path == other or path.samefile(other)
    return False


def _check_replaceable(
    output: Path, files: Mapping[str, int], *, force: bool, is_file: bool
) -> None:
    if output.is_dir() == is_file and output.exists():
        what = "folder" if is_file else "file"
        message = f"The output {output} is a {what}."
        hint = "Choose another --output."
        if is_file:
            hint = f"Use --output {output / 'NAME'}{GGUF_SUFFIX}."
        raise OutputError(message, hint)
    is_empty = output.is_dir() and not any(output.iterdir())
    if not os.path.lexists(output) or is_empty:
        if is_file and not is_gguf(output):
            message = f"The output {output} does not end in {GGUF_SUFFIX}, as GGUF files do."
            raise OutputError(message, f"Use --output {output}{GGUF_SUFFIX}.")
        return
    if not force:
        message = f"The output {output} exists."
        raise OutputError(message, "Replace it with --force, or choose another --output.")
    if is_file:
        with output.open("rb") as opened:
            is_checkpoint = opened.read(4) == b"GGUF"
    else:
        has_mark = any((output / name).is_file() for name in CHECKPOINT_MARKS)
        is_checkpoint = has_mark and any(any(output.glob(name)) for name in CHECKPOINT_WEIGHTS)
    if not is_checkpoint:
        what = "GGUF file" if is_file else "checkpoint folder"
        message = f"{output} is not a {what}, so --force does not replace it."
        raise OutputError(message, "Choose another --output.")
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        is_filled = path.is_dir() and not path.is_symlink() and any(path.iterdir())
        if not is_filled and name not in files and not is_known(PurePosixPath(name)):
            contains = f"{output} contains {name}, which is not a checkpoint file"
            message = f"{contains}, so --force does not replace it."
            raise OutputError(message, f"Move {name} elsewhere, or choose another --output.")


def check_disk_space(path: Path, files: Mapping[str, int]) -> None:
    """Check that files fit on the disk of a folder, which may not exist yet.

    Raises:
        OutputError: They do not fit.
        PermissionError: The folder, or the nearest parent that exists, is not writable.
    """
    folder = existing_folder(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    fits, space = disk_space(folder, files)
    if not fits:
        raise OutputError(f"The output {space}.", DISK_FULL_HINT)


def disk_space(folder: Path, files: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether files fit on the disk of a folder, and the needed and free bytes as text.

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


def existing_folder(path: Path) -> Path:
    """Return a folder, or its nearest parent that exists, of those that this user can access."""
    path = path.absolute()
    for folder in (path, *path.parents):
        if os.path.isdir(folder):  # noqa: PTH112 - never raises
            return folder
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
                _, space = disk_space(existing_folder(output.parent), files)
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
    for path in _temporary_folders:
        _remove(path)
    _remove_empty(_new_folders)


def _replace(staged: Path, output: Path, *, is_filled: bool) -> None:
    """Rename a new folder to the output, and move an existing one into the temporary folder.

    A run that is killed between two renames leaves the old output there.
    """
    if not output.is_dir():
        staged.rename(output)
        return
    mode = output.stat().st_mode & 0o7777
    if not is_filled:
        if os.name == "nt":
            output.rmdir()
        staged.rename(output)
    else:
        if not mode & 0o200:  # a folder that is read-only cannot be moved
            output.chmod(mode | 0o200)
        try:
            if not _exchange(staged, output):
                with locked(output):
                    backup = staged.with_name(BACKUP)
                    output.rename(backup)
                    try:
                        staged.rename(output)
                    except OSError:
                        if not output.exists():
                            backup.rename(output)
                        raise
        except OSError:
            with contextlib.suppress(OSError):
                output.chmod(mode)
            raise
    output.chmod(mode)


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


def _leftovers(output: Path) -> list[Path]:
    """Return the temporary folders next to an output, of other runs too."""
    prefix = f".{output.name}.ctxextend-"
    found = list[Path]()
    if output.parent.is_dir():
        for path in output.parent.iterdir():
            is_named_so = path.name.startswith(prefix) and len(path.name) == len(prefix) + 8
            if is_named_so and not path.is_symlink():
                found.append(path)
    return sorted(found)


def remove_leftovers(output: Path, *, backups: bool = True) -> None:
    """Remove temporary folders of killed runs, and those with a backup if that is wanted.

    Where locks are not supported, they might be in use, and are kept.
    """
    for leftover in _leftovers(output):
        if not backups and (leftover / BACKUP).exists():
            continue
        with contextlib.suppress(OSError), locked(leftover) as is_locked:
            if is_locked:
                _remove(leftover)


@contextlib.contextmanager
def _temporary(output: Path) -> Iterator[Path]:
    """Yield a new locked folder next to an output, and remove it afterwards."""
    remove_leftovers(output, backups=False)
    with contextlib.ExitStack() as stack:
        for attempt in range(ATTEMPTS):
            folder = output.parent / f".{output.name}.ctxextend-{os.urandom(4).hex()}"
            _temporary_folders.append(folder)
            stack.callback(_temporary_folders.remove, folder)
            stack.callback(_remove, folder, output)
            folder.mkdir()
            try:
                stack.enter_context(locked(folder))
                break
            except BlockingIOError:  # another run mistook it for a leftover and removes it
                if attempt == ATTEMPTS - 1:
                    raise
        yield folder


def remove_atomically(path: Path) -> None:
    """Move a folder or file away, then remove it, so that other runs never see it half removed."""
    if os.path.lexists(path):
        with _temporary(path) as temporary:
            path.rename(temporary / STAGED)


@_defer_signals()
def _remove(path: Path, output: Path | None = None) -> None:
    """Remove a temporary folder, unless it has the only copy of an output."""
    if output is not None and not output.exists() and (path / BACKUP).exists():
        return
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
