"""A checkpoint's folder and its origin; which of its files are inside it."""

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

# Patterns are compiled at use: most runs need none, and compiling them takes longer than a run.
HUB_ID = r"(?:[\w][\w.-]*/)?[\w][\w.-]*"
# A snapshot in the Hub cache: its commit, and the cache folder whose blobs its files link to.
SNAPSHOTS = "/snapshots/"
CACHE_SNAPSHOT = (
    r"(?P<cache>.*/models--(?P<id>[^/]+))/snapshots/(?P<sha>[0-9a-f]{40})(?P<below>/.*)?"
)


class Source(NamedTuple):
    """A checkpoint's folder and its origin."""

    reference: str  # what the user typed
    kind: Literal["folder", "file", "bundled", "hub"]
    folder: Path
    name: str  # for default outputs: the last part of the reference
    hub_id: str | None = None  # owner/name, if known
    revision: str | None = None  # commit hash on the Hub, if known
    notes: tuple[str, ...] = ()  # how the reference was resolved
    # Files of the Hub repository that were not downloaded, if known.
    not_downloaded: tuple[str, ...] = ()
    file: str | None = None  # the weights file that was passed instead of its folder


def cache_snapshot(folder: Path) -> re.Match[str] | None:
    """Match a folder in a snapshot of the Hub cache."""
    path = folder.as_posix()
    if SNAPSHOTS not in path:
        return None
    return re.fullmatch(CACHE_SNAPSHOT, path)


def points_outside(folder: Path, path: Path) -> bool:
    """Whether a path leads, through symlinks, out of a folder and the blobs of its Hub cache."""
    inside = Path(os.path.realpath(folder))
    allowed = {inside}
    cached = cache_snapshot(inside)
    if cached is not None:
        allowed.add(Path(cached["cache"]) / "blobs")
    return allowed.isdisjoint(Path(os.path.realpath(path)).parents)
