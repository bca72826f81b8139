"""Link unchanged weights files of an output to the source's instead of copying them.

A hard link is a second name of the same file, and needs the same file system. In the Hub cache, a
file is a symbolic link to a blob, and the output's one is too: the cache removes blobs by its own
links, and may be on another file system.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ctxextend.checkpoint.atomic_output import existing_folder
from ctxextend.checkpoint.source import is_cache_blob
from ctxextend.errors import OutputError

LINK_HINT = "Use an output on the file system of the source with -o, or remove --link to copy."


class Link(NamedTuple):
    """A link in an output to a weights file of the source."""

    target: Path  # the file itself, without symlinks in its path
    kind: Literal["hard", "symbolic"]


def plan_link(path: Path) -> Link:
    """Return the link that an output gets instead of a copy of a weights file."""
    target = Path(os.path.realpath(path))
    # In a dry run, a file of the Hub may not be in the cache yet.
    is_in_cache = not path.exists() or (path.is_symlink() and is_cache_blob(target))
    if is_in_cache:
        return Link(target=target, kind="symbolic")
    return Link(target=target, kind="hard")


def check_links(links: Mapping[str, Link], output: Path) -> None:
    """Check that an output can have its links, without writing anything.

    Raises:
        OutputError: A hard link would lead to another file system.
    """
    place = existing_folder(Path(os.path.realpath(output)).parent)
    device = place.stat().st_dev
    for name, link in links.items():
        if link.kind == "hard" and link.target.stat().st_dev != device:
            message = (
                f"{name} cannot be hard-linked: {link.target.parent} and {place} are on different "
                "file systems."
            )
            raise OutputError(message, LINK_HINT)


def make_links(links: Mapping[str, Link], folder: Path) -> None:
    """Create the links of an output in its new folder.

    Raises:
        OutputError: The file system cannot link a file.
    """
    for name, link in links.items():
        path = folder / name
        try:
            if link.kind == "symbolic":
                path.symlink_to(link.target)
            else:
                path.hardlink_to(link.target)
        except OSError as error:
            message = f"{name} cannot be linked to {link.target}: {error.strerror}."
            raise OutputError(message, LINK_HINT) from error
