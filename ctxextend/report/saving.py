"""Where a figure goes: checked before anything is drawn, and written whole or not at all."""

import contextlib
import importlib.util
import secrets
from collections.abc import Iterator
from pathlib import Path

from ctxextend.checkpoints.copying import write_file
from ctxextend.checkpoints.destination import resolved
from ctxextend.checkpoints.disk import check_writable
from ctxextend.errors import OutputError

__all__ = ["FORMATS", "check_figure", "check_suffix", "save"]

FORMATS = (".png", ".svg", ".pdf")


def check_suffix(path: Path) -> None:
    """Refuse a name whose ending is no format that figures have.

    Raises:
        OutputError: It is none, and which there are.
    """
    if path.suffix.lower() not in FORMATS:
        raise OutputError(f"{path} does not end in a format that figures have.", f"Let it end in {', '.join(FORMATS)}.")


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be made or has no place to go, before there is any work in it.

    Raises:
        OutputError: What is in the way, and what to do.
    """
    check_suffix(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise OutputError("Figures are drawn by matplotlib, which is not installed.", "pip install 'ctxextend[plot]'")
    folder = path.absolute().parent
    with _explained(path):
        if path.is_dir():
            raise OutputError(f"{path} is a folder.", "Name a file in it.")
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}.", "Make it, or choose another place for the figure.")
        check_writable(folder)


def save(path: Path, data: bytes) -> None:
    """Write a file beside its place, then let it take its name, so that a failed run leaves what was there.

    Raises:
        OutputError: It cannot be written.
    """
    with _explained(path):
        _replace(resolved(path), data)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}."
        raise OutputError(message, "Choose another place for the figure.") from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.parent / f".ctxextend-new-{secrets.token_hex(4)}"
    try:
        write_file(beside, data)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
