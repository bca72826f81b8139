"""The atomic output: a finished sibling folder takes the output's name in one rename, or nothing changes.

While it is written, the new folder stands beside the output as `.NAME.ctxextend-new-XXXXXXXX`, locked with flock.
Replacing an existing output swaps the two names in one call where the kernel can (`renameat2`,
RENAME_EXCHANGE); elsewhere the old folder is renamed to `.NAME.ctxextend-old-XXXXXXXX` for a moment, and a run
that finds it there without its output puts it back.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import signal
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.copying import sync_folder
from ctxextend.checkpoints.filenames import is_known
from ctxextend.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows: temporary folders are not locked there
    fcntl = None  # type: ignore[assignment]

__all__ = ["check_output", "stage"]

WEIGHTS = ("model*.safetensors", "*/model*.safetensors", "pytorch_model*.bin", "*/pytorch_model*.bin")

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def check_output(output: Path, source: Path, force: bool, written: Collection[str]) -> None:
    """Refuse an output that cannot or must not be written, before any byte is.

    Args:
        output: The folder wanted.
        source: The checkpoint's own folder.
        force: Whether an existing checkpoint may be replaced.
        written: Files that the run will write, below the output; what an output may hold and still be replaced.

    Raises:
        OutputError: What stands there, and what to type instead.
    """
    output, source = _resolved(output), source.resolve()
    if output == source:
        raise OutputError(f"The output {output} is the source itself.", "Choose another folder with -o.")
    if source in output.parents:
        raise OutputError(f"The output {output} lies inside the source {source}.", "Choose a folder outside with -o.")
    if output in source.parents:
        raise OutputError(f"The source {source} lies inside the output {output}.", "Choose another folder with -o.")
    if output in (Path(output.anchor), Path(os.path.expanduser("~")).resolve()):  # noqa: PTH111 - never raises
        raise OutputError(f"{output} is not a folder that a checkpoint may replace.", f"Use -o {output / 'NAME'}.")
    above = next(path for path in output.parents if path.exists())
    if not above.is_dir():
        raise OutputError(f"The output {output} cannot be in {above}, which is a file.", "Choose another -o.")
    if not output.exists():
        return
    if not output.is_dir():
        raise OutputError(f"The output {output} is a file.", "Choose another name with -o.")
    if output.is_mount():
        raise OutputError(
            f"The output {output} is a mount point, which cannot be renamed.",
            f"Use a folder in it: -o {output / 'NAME'}.",
        )
    if output == Path.cwd().resolve():
        raise OutputError(f"The output {output} is the current folder.", "Name a folder in it with -o NAME.")
    _check_replaceable(output, force, written)


def _resolved(output: Path) -> Path:
    try:
        return output.resolve()
    except RuntimeError as error:  # before Python 3.13, of a link that leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def _check_replaceable(output: Path, force: bool, written: Collection[str]) -> None:
    if not any(output.iterdir()):
        return
    if not force:
        raise OutputError(f"The output {output} exists.", "Replace it with --force, or choose another name with -o.")
    has_config = any((output / name).is_file() for name in ("config.json", "modules.json"))
    if not has_config or not any(any(output.glob(pattern)) for pattern in WEIGHTS):
        raise OutputError(f"{output} is not a checkpoint folder, so --force does not replace it.", "Choose another -o.")
    strange = next((name for name in _files(output) if not (name in written or is_known(PurePosixPath(name)))), None)
    if strange:
        raise OutputError(
            f"{output} holds {strange}, which belongs to no checkpoint, so --force does not replace it.",
            "Move that away, or choose another name with -o.",
        )


def _files(folder: Path) -> Iterator[str]:
    """Yield every file below a folder, and every folder in it that is empty or a link."""
    for here, folders, files in os.walk(folder):
        path = Path(here).relative_to(folder)
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        yield from ((path / name).as_posix() for name in sorted([*files, *links]))
        if not folders and not files:
            yield path.as_posix()


@contextlib.contextmanager
def stage(output: Path, source: Path, force: bool, written: Collection[str]) -> Iterator[Path]:
    """Give a folder to write in; when the block ends without an error it becomes the output.

    First, what killed runs left behind is put right. Then, and again at the last moment, the output is checked.

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
    output = _resolved(output)
    _recover(output)
    check_output(output, source, force, written)
    with _parents(output.parent):
        staged, lock = _new_folder(output)
        try:
            yield staged
            for folder, _, _ in os.walk(staged, topdown=False):
                sync_folder(Path(folder))
            with _uninterrupted():
                _publish(staged, output, force, written)
        finally:
            with _uninterrupted():
                shutil.rmtree(staged, ignore_errors=True)
                _unlock(lock)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back until the block is done, so that none parts a swap from its clean-up."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """Make the folders above the output, and take those away again if the block fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _sibling(output: Path, kind: str) -> Path:
    return output.parent / f".{output.name}.ctxextend-{kind}-{secrets.token_hex(4)}"


def _siblings(output: Path, kind: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(output.name)}\.ctxextend-{kind}-[0-9a-f]{{8}}")
    if not output.parent.is_dir():
        return []
    return sorted(path for path in output.parent.iterdir() if pattern.fullmatch(path.name))


def _new_folder(output: Path) -> tuple[Path, int | None]:
    while True:
        staged = _sibling(output, "new")
        staged.mkdir()
        # Between these two calls another run may take the folder for a dead one's, and clear it.
        with contextlib.suppress(BlockingIOError):
            lock = _lock(staged)
            if staged.exists():
                return staged, lock
            _unlock(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder for this process; None where the system has no such locks.

    Raises:
        BlockingIOError: Another process holds it.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
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


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _recover(output: Path) -> None:
    """Put back an output that a killed run had moved aside, and clear what killed runs left behind."""
    for left in (*_siblings(output, "old"), *_siblings(output, "new")):
        try:
            lock = _lock(left)
        except BlockingIOError:
            continue
        if lock is None:
            continue
        if "ctxextend-old-" in left.name and not output.exists():
            left.rename(output)
        else:
            shutil.rmtree(left, ignore_errors=True)
        _unlock(lock)


def _publish(staged: Path, output: Path, force: bool, written: Collection[str]) -> None:
    if output.is_dir():
        _check_replaceable(output, force, written)
        staged.chmod(output.stat().st_mode & 0o7777)
    if output.is_dir() and any(output.iterdir()):
        _swap(staged, output)
    else:
        _take_name(staged, output)
    sync_folder(output.parent)


def _take_name(staged: Path, output: Path) -> None:
    if os.name == "nt" and output.is_dir():
        output.rmdir()
    try:
        staged.rename(output)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise OutputError(
                f"{output} was made by another program meanwhile; nothing was replaced.", "Choose another -o."
            ) from error
        raise


def _swap(staged: Path, output: Path) -> None:
    """Exchange two folders' names; the old content then stands under the staged name and is removed with it."""
    if _exchange(staged, output):
        return
    try:
        lock = _lock(output)
    except BlockingIOError:
        raise OutputError(f"Another run is replacing {output} just now.", "Wait for it, then try again.") from None
    aside = _sibling(output, "old")
    try:
        output.rename(aside)
        staged.rename(output)
    finally:
        if not output.exists():
            aside.rename(output)
        else:
            shutil.rmtree(aside, ignore_errors=True)
        _unlock(lock)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one call; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    done = renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0
    if not done and ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(other))
    return bool(done)
