"""Where a figure or a page goes: checked before there is any work in it, and written whole or not at all."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    check_disk_space,
    check_writable,
    os_errors_as_output_error,
)
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
    with os_errors_as_output_error(path, hint=_elsewhere(path)):
        if path.is_dir():
            raise OutputError(f"{path} is a folder.", "Name a file in it.")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is no regular file.", _elsewhere(path))
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}.", f"Make it, or choose another place for {path.name}.")
        check_writable(folder)


def save(path: Path, data: bytes) -> None:
    """Write a file whole, replacing what is there, or leave what is there as it is.

    Raises:
        OutputError: It cannot be written.
    """
    files = {path.name: len(data)}
    with os_errors_as_output_error(path, files, _elsewhere(path)), atomic_file(path) as staged:
        check_disk_space(staged.parent, files)
        with staged.open("wb", buffering=0) as file:
            write_all(file, memoryview(data))
            sync_file(file)


def _elsewhere(path: Path) -> str:
    return f"Choose another place for {path.name}."
