"""What benchmarks measured, by row: the files of `benchmarks/results` and the tables of pages."""

import json
import re
from collections.abc import Mapping
from typing import Any

from ctxextend.report.numbers import NumberFormat
from tests.helpers.repository import ROOT

Cells = tuple[str, ...]
Row = Mapping[str, str]  # cells by column

RESULTS = ROOT / "benchmarks" / "results"
RESULTS_PAGE = ROOT / "docs" / "results.md"
NUMBERS = NumberFormat()
AGAINST_SAME_TEXT = "nDCG@10 against chunks of the same text"
AGAINST_WHOLE = "against chunks of the whole document"


def read_points(name: str) -> Any:
    """Return what a benchmark kept in JSON."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def tables(text: str) -> list[list[Cells]]:
    """Return the tables of a page in Markdown, each with its header first."""
    found: list[list[Cells]] = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        header, _, *rows = block.splitlines()
        found.append([cells(line) for line in (header, *rows)])
    return found


def cells(line: str) -> Cells:
    """Return the cells of a row of a table."""
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


def table(text: str, *header: str) -> dict[Cells, Cells]:
    """Return the rows, by the first cell, of the only table with these first columns."""
    ((_, *rows),) = [found for found in tables(text) if found[0][: len(header)] == header]
    return {row[:1]: row[1:] for row in rows}


def window_search(half: str) -> dict[Cells, Row]:
    """Return what readers found, by reader and tokens read, in a half of the meetings.

    Scores are those of `window-search.json`; paired differences are in `window-search.md` only.
    """
    page = (RESULTS / "window-search.md").read_text("utf-8")
    title = f"{half}: documents are read by"
    ((header, *rows),) = [found for found in tables(page) if found[0][0] == title]
    readers: dict[Cells, Row] = {}
    scores = read_points("window-search")[half]
    for row in rows:
        reader, tokens, *_ = row
        shown = dict(zip(header, row, strict=True))
        points = scores[reader_key(reader, tokens)]
        readers[reader, tokens] = shown | {
            name: NUMBERS.number(*point) for name, point in points.items()
        }
    assert len(readers) == len(scores)
    return readers


def reader_key(reader: str, tokens: str) -> str:
    """Return the name of a reader in `window-search.json`."""
    if reader in ("as shipped", "chunks of the whole document"):
        return reader
    return f"{reader}, {tokens.replace(',', '')}"
