"""Where a figure goes: checked before anything is drawn, and written whole or not at all."""

import contextlib
import importlib.util
import secrets
from pathlib import Path

from ctxextend.checkpoints.copying import write_file
from ctxextend.checkpoints.destination import resolved
from ctxextend.errors import OutputError

__all__ = ["FORMATS", "check_figure", "check_suffix", "save"]

FORMATS = (".png", ".svg", ".pdf")
ELSEWHERE = "Choose another place for the figure."


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
    if path.is_dir():
        raise OutputError(f"{path} is a folder.", "Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"There is no folder {path.absolute().parent}.", "Make it, or choose another place.")


def save(path: Path, data: bytes) -> None:
    """Write a file beside its place, then let it take its name, so that a failed run leaves what was there.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        _replace(resolved(path), data)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror or error}.", ELSEWHERE) from error


def _replace(path: Path, data: bytes) -> None:
    beside = path.parent / f".ctxextend-new-{secrets.token_hex(4)}"
    try:
        write_file(beside, data)
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
