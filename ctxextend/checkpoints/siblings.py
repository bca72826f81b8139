"""What stands beside an output while it is made: named after it, locked while its run lives, removed by the next.

`.NAME.ctxextend-new-XXXXXXXX` is what is being written, and `.NAME.ctxextend-old-XXXXXXXX` an output that was moved
aside for a moment.
"""

import contextlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from ctxextend.checkpoints.locks import lock, unlock
from ctxextend.errors import OutputError

__all__ = ["SIGNALS", "clear", "discard", "locked_sibling", "remove", "scratch", "sibling", "siblings", "uninterrupted"]

Kind = Literal["new", "old"]

# What asks a run to end.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

# How often a removal is tried: antivirus programs and network file systems let go of a file a moment later.
ATTEMPTS = 3


def sibling(output: Path, kind: Kind) -> Path:
    """Return a name beside an output that nothing has."""
    return output.parent / f".{output.name}.ctxextend-{kind}-{os.urandom(4).hex()}"


def siblings(output: Path, kind: Kind) -> list[Path]:
    """Return all that stands under such names and is this user's own."""
    pattern = re.compile(rf"\.{re.escape(output.name)}\.ctxextend-{kind}-[0-9a-f]{{8}}")
    if not output.parent.is_dir():
        return []
    return sorted(path for path in output.parent.iterdir() if pattern.fullmatch(path.name) and _is_own(path))


def _is_own(path: Path) -> bool:
    """Whether nobody else can have put it there to have something removed; others may write in folders such as /tmp."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return not path.is_symlink() and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


@contextlib.contextmanager
def locked_sibling(output: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Make something locked beside an output, and remove whatever stands under its name in the end.

    Args:
        output: The output.
        make: Makes it under the name that it is given; raises FileExistsError where there is one.

    Yields:
        Its path.
    """
    staged, held = None, None
    try:
        while staged is None:
            staged = sibling(output, "new")
            make(staged)
            # Between these two calls another run may take it for a dead one's, and clear it.
            try:
                held = lock(staged)
            except BlockingIOError:
                staged = None
                continue
            if not staged.exists():
                unlock(held)
                staged = held = None
        yield staged
    finally:
        with uninterrupted():
            if staged is not None:
                remove(staged)
            unlock(held)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hear signals only when the block is done, so that none parts a swap from its clean-up.

    Their handlers are exchanged: masks are of one thread, and a signal goes to any of numpy's or torch's that has none.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone runs handlers
        yield
        return
    heard: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: signal.raise_signal(heard[0]) if heard else None)
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before):  # what is ignored, or kills, goes on doing so
                signal.signal(number, lambda number, frame: heard.append(number))
                stack.callback(signal.signal, number, before)
        yield


def clear(output: Path, kind: Kind) -> None:
    """Remove what dead runs left behind; where nothing can be locked nobody knows who is dead."""
    for left in siblings(output, kind):
        with contextlib.suppress(BlockingIOError):
            held = lock(left)
            if held is not None:
                remove(left)
                unlock(held)


def discard(path: Path) -> None:
    """Remove something that others look for by its name, so that never a part of it alone stands there.

    Raises:
        OSError: It cannot lose its name.
    """
    if os.path.lexists(path):
        aside = sibling(path, "old")
        path.rename(aside)
        remove(aside)


def remove(path: Path) -> None:
    """Remove what bears a name of ours, with all that is in it, read-only folders too."""
    for _ in range(ATTEMPTS):
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
        for here, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(here).chmod(Path(here).stat().st_mode | 0o700)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give an empty folder for temporary files, and remove it in the end; if this run is killed, the next one does.

    Raises:
        OutputError: The system has no place for it.
    """
    import tempfile

    try:
        here = Path(tempfile.gettempdir()) / "scratch"
    except OSError as error:
        raise OutputError(f"There is no place for temporary files: {error.strerror}.", "Name one: TMPDIR=…") from error
    clear(here, "new")
    with locked_sibling(here, lambda path: path.mkdir(0o700)) as folder:
        yield folder
