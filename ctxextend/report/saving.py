"""Where a figure or a page goes: checked before there is any work in it, and written whole or not at all."""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ctxextend.checkpoints.copying import finish, write_all
from ctxextend.checkpoints.disk import NO_ROOM, check_writable
from ctxextend.checkpoints.room import Extent, check_room, shortage
from ctxextend.checkpoints.staging import stage_file
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
    files = {path.name: Extent(len(data))}
    with _explained(path, files), stage_file(path) as staged, staged.open("wb", buffering=0) as file:
        check_room(staged.parent, files)
        write_all(file, memoryview(data))
        finish(file, None)


@contextlib.contextmanager
def _explained(path: Path, files: Mapping[str, Extent] | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}."
        if files and error.errno in NO_ROOM:
            message += f" It {shortage(path.absolute().parent, files, always=True)}."
        raise OutputError(message, f"Choose another place for {path.name}.") from error
