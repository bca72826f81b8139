"""Folders that ship with the package: a light module, which shell completion imports."""

from pathlib import Path


def shipped_folder(name: str) -> Path:
    """Return a folder that a wheel has in the package, and a clone in its root.

    It does not exist if the package is in neither.
    """
    here = Path(__file__).resolve().parent
    folder = here / name  # in a wheel
    project = here.parent / "pyproject.toml"
    if not folder.is_dir() and project.is_file():
        is_checkout = 'name = "ctxextend"' in project.read_text("utf-8")
        if is_checkout:
            return here.parent / name
    return folder
