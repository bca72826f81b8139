"""HTML and SVG as text, in which nothing that comes from outside is ever read as a tag."""

import html
from typing import TypeAlias

from ctxextend.report.drawing import printable

__all__ = ["DASH", "Attribute", "Markup", "element", "joined", "short"]

# What stands between the ends of a stretch.
DASH = "\u2013"

# Elements that have no end.
VOID = {"meta"}


class Markup(str):
    """Text that is HTML already; any other text is escaped where it becomes part of an element."""

    __slots__ = ()


Attribute: TypeAlias = str | int | float | None


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        children: What is in it: `Markup` as it is, anything else as text.
        attributes: By name, with ``_`` for ``-`` and behind Python's own words; those that are None are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Return children one behind the other: `Markup` as it is, anything else as text."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def short(value: str | float) -> str:
    """Return a number in as few characters as a picture needs; text as it is."""
    return value if isinstance(value, str) else f"{round(value, 2) + 0.0:g}" if abs(value) < 1e5 else f"{value:.0f}"


def _escaped(text: str) -> str:
    """Return text with what HTML reads as its own written out, and what cannot be shown as question marks."""
    return "\n".join(html.escape(printable(line)) for line in text.split("\n"))
