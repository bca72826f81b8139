"""Where a figure or a page goes: checked before there is any work in it, and written whole or not at all."""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ctxextend.checkpoints.atomic_output import DISK_FULL, atomic_file, check_disk_space, check_writable, disk_space
from ctxextend.checkpoints.copy import sync_file, write_all
from ctxextend.errors import OutputError

__all__ = ["FORMATS", "check_figure", "check_place", "check_suffix", "save"]

FORMATS = (".png", ".svg", ".pdf")


def check_suffix(path: Path, formats: Sequence[str] = FORMATS, what: str = "figures") -> None:
    """Refuse a name whose ending is no format that figures have, or whatever else is written.

    Raises:
        OutputError: It is none, and which there are.
    """
    if path.suffix.lower() not in formats:
        raise OutputError(f"{path} does not end in a format that {what} have.", f"Let it end in {', '.join(formats)}.")


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be made or has no place to go, before there is any work in it.

    Raises:
        OutputError: What is in the way, and what to do.
    """
    check_suffix(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise OutputError("Figures are drawn by matplotlib, which is not installed.", "pip install 'ctxextend[plot]'")
    check_place(path)


def check_place(path: Path) -> None:
    """Refuse a place where no file can be written.

    Raises:
        OutputError: What is in the way, and what to do.
    """
    folder = path.absolute().parent
    with _explained(path):
        if path.is_dir():
            raise OutputError(f"{path} is a folder.", "Name a file in it.")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is no regular file.", f"Choose another place for {path.name}.")
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}.", f"Make it, or choose another place for {path.name}.")
        check_writable(folder)


def save(path: Path, data: bytes) -> None:
    """Write a file beside its place, then let it take its name, so that a failed run leaves what was there.

    Raises:
        OutputError: It cannot be written.
    """
    files = {path.name: len(data)}
    with _explained(path, files), atomic_file(path) as staged, staged.open("wb", buffering=0) as file:
        check_disk_space(staged.parent, files)
        write_all(file, memoryview(data))
        sync_file(file)


@contextlib.contextmanager
def _explained(path: Path, files: Mapping[str, int] | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}."
        if files and error.errno in DISK_FULL:
            message += f" It {disk_space(path.absolute().parent, files)}."
        raise OutputError(message, f"Choose another place for {path.name}.") from error
