"""Sections of pages that run in another environment than the tests.

A line ``<!-- environment: NAME -->`` in a section names it: see `tests.engines.test_bridges`.
"""

import re
from collections.abc import Callable

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(r"^(?=###? )", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^<!-- environment: (?P<name>\w+) -->$", re.MULTILINE)
OURS = ""  # the environment of sections that name none


def environment_of(section: str) -> str:
    """Return the name of the environment in which the commands of a section run."""
    found = _ENVIRONMENT.search(section)
    if found is None:
        return OURS
    return found["name"]


def render_blocks(page: str, environment: str, render: Callable[[re.Match[str]], str]) -> str:
    """Return a page whose code blocks of one environment are what `render` returns for them."""
    parts = list[str]()
    for section in _SECTION.split(page):
        if environment_of(section) == environment:
            section = BLOCK.sub(render, section)
        parts.append(section)
    return "".join(parts)
