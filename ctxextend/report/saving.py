"""Where a figure or a report goes: checked before there is any work in it, and written whole or not at all."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    check_disk_space,
    check_writable,
    os_errors_as_output_error,
)
from ctxextend.checkpoints.copy import sync_file, write_all
from ctxextend.errors import OutputError


@dataclass(frozen=True)
class FileKind:
    """A kind of file: what such files are called, their endings, the libraries they need, and what to say without."""

    plural: str
    formats: tuple[str, ...]
    libraries: tuple[str, ...]
    missing: str


FIGURE = FileKind(
    "figures", (".png", ".svg", ".pdf"), ("matplotlib",), "Figures are drawn by matplotlib, which is not installed."
)
REPORT = FileKind(
    "pages",
    (".html", ".htm"),
    ("matplotlib", "jinja2"),
    "Reports are made by matplotlib and Jinja2, which are not installed.",
)


def is_installed(kind: FileKind) -> bool:
    """Whether the libraries of the extra `plot` are there that a kind of file needs."""
    return all(map(importlib.util.find_spec, kind.libraries))


def check_format(path: Path, kind: FileKind) -> None:
    """Refuse a name whose ending is no format of a kind of file.

    Raises:
        OutputError: It is none, and which there are.
    """
    if path.suffix.lower() not in kind.formats:
        message = f"{path} does not end in a format that {kind.plural} have."
        raise OutputError(message, f"Let it end in {', '.join(kind.formats)}.")


def check_file(path: Path, kind: FileKind) -> None:
    """Refuse a file that cannot be made or has no place to go, before there is any work in it.

    Raises:
        OutputError: What is in the way, and what to do.
    """
    check_format(path, kind)
    if not is_installed(kind):
        raise OutputError(kind.missing, "pip install 'ctxextend[plot]'")
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
