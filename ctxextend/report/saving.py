"""Where a figure or a report goes: checked before there is any work in it, and written whole or not at all."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ctxextend.checkpoints.atomic_output import atomic_file, check_disk_space, os_errors_as_output_error
from ctxextend.errors import OutputError


@dataclass(frozen=True)
class FileKind:
    """A kind of file: what such files are called, their endings, and the libraries that make them."""

    plural: str
    formats: tuple[str, ...]
    libraries: tuple[str, ...]  # of the extra `plot`

    def missing(self) -> list[str]:
        """Return the libraries that are not installed here."""
        return [name for name in self.libraries if not importlib.util.find_spec(name)]


FIGURE = FileKind("figures", (".png", ".svg", ".pdf"), ("matplotlib",))
REPORT = FileKind("pages", (".html", ".htm"), ("matplotlib", "jinja2"))


def check_format(path: Path, kind: FileKind) -> None:
    """Refuse a name whose ending is no format of a kind of file."""
    if path.suffix.lower() not in kind.formats:
        message = f"{path} does not end in a format that {kind.plural} have."
        raise OutputError(message, f"Let it end in {', '.join(kind.formats)}.")


def check_file(path: Path, kind: FileKind) -> None:
    """Refuse a file that cannot be made or has no place to go, before there is any work in it."""
    check_format(path, kind)
    if missing := kind.missing():
        message = f"{kind.plural.capitalize()} need {' and '.join(missing)}, not installed here."
        raise OutputError(message, "pip install 'ctxextend[plot]'")
    folder, hint = path.absolute().parent, f"Choose another place for {path.name}."
    with os_errors_as_output_error(path, hint=hint):
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}.", hint)
        if not folder.is_dir():
            raise OutputError(f"There is no folder {folder}.", "Make it first.")
        check_disk_space(folder, {})


def save(path: Path, data: bytes) -> None:
    """Write a file whole, replacing what is there, or leave what is there as it is."""
    files = {path.name: len(data)}
    hint = f"Choose another place for {path.name}."
    with os_errors_as_output_error(path, files, hint), atomic_file(path) as staged:
        check_disk_space(staged.parent, files)
        staged.write_bytes(data)
