"""The folders of this repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ctxextend"


def pinned_version(name: str) -> str:
    """Return the version of a library that the tests are known to pass with."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pinned, _, version = line.partition("==")
        if pinned == name:
            return version
    raise KeyError(name)
