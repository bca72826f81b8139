"""What the shell offers to complete; nothing here imports numpy."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["complete_folder", "complete_listed", "complete_model", "complete_model_type", "complete_recipe"]

WEIGHTS = (".safetensors", ".bin", ".pt")
RECIPES = (".yaml", ".yml")

# What is offered is typed into the shell as it is, so other names, which need quotes, are left to the shell's own
# completion, which takes over where nothing is offered.
PLAIN_NAME = re.compile(r"[\w@+,.][\w@+,.-]*")


def complete_model(incomplete: str) -> list[str]:
    """Return the bundled checkpoints, folders and weights files that begin so."""
    from ctxextend.checkpoints.source import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)] + _paths(incomplete, WEIGHTS)


def complete_folder(incomplete: str) -> list[str]:
    """Return the folders that begin so."""
    return _paths(incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """Return the folders and recipe files that begin so."""
    return _paths(incomplete, RECIPES)


def complete_model_type(incomplete: str) -> list[str]:
    """Return the model types with a learned position table that begin so."""
    from ctxextend.families.registry import FAMILIES

    return sorted(name for name in FAMILIES if name.startswith(incomplete))


def complete_listed(incomplete: str, names: Sequence[str]) -> list[str]:
    """Return a list with commas, its last name completed to each that begins so."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _paths(incomplete: str, suffixes: tuple[str, ...] = ()) -> list[str]:
    """Return folders, ending in a slash, and files of some suffixes; hidden ones only where a dot asks for them."""
    folder, slash, start = incomplete.rpartition("/")
    found = [folder + slash + name for name in _names(folder + slash, start, suffixes)]
    if len(found) == 1 and found[0].endswith("/"):
        # A shell ends a word that can only be one; with what lies in the folder, one can go on.
        found += [found[0] + name for name in _names(found[0], "", suffixes)]
    return found


def _names(folder: str, start: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    with suppress(OSError, RuntimeError):  # no such folder, not permitted, no such user's home
        for path in sorted(Path(folder).expanduser().iterdir()):
            is_asked_for = path.name.startswith(start) and path.name.startswith(".") == start.startswith(".")
            if is_asked_for and PLAIN_NAME.fullmatch(path.name):
                yield from _shown(path, suffixes)


def _shown(path: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    with suppress(OSError):  # a link to where one may not look
        if path.is_dir():
            yield f"{path.name}/"
        elif path.suffix in suffixes:
            yield path.name
