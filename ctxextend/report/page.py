"""The HTML page of a result, in one file."""

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoint.source import public_name
from ctxextend.errors import printable
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.lab.scores import Score
from ctxextend.report import figures
from ctxextend.report.figures import Plot
from ctxextend.report.numbers import difference_text, score_text
from ctxextend.report.table_plots import table_plots
from ctxextend.version import __version__

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation

# Paths without spaces in a text, but not ``</s>``.
PATH = re.compile(r"(?<!<)[^\s'\"`()<>=,;]*[\\/][^\s'\"`()<>=,;]*")
SVG_ID = re.compile(r'(\bid="|url\(#|href="#)')


def write_report(
    result: "Evaluation | Sequence[Inspection]",
    path: Path,
    command: str = "",
    next_command: str | None = None,
) -> None:
    """Write a result, and the command that produced it, as one HTML file.

    The file contains no folder names and needs no network access.

    Args:
        result: What is reported.
        path: The file.
        command: The command that produced the result.
        next_command: The command to type next.

    Raises:
        OutputError: It cannot be written.
    """
    figures.check_file(path, figures.REPORT)
    page: dict[str, Any] = {"command": command, "next_command": next_command}
    if isinstance(result, Sequence):
        names = [one.source for one in result]
        page["inspections"] = result
        page["plots"] = table_plots(result)
    else:
        names = [facts.name for facts in result.models]
        if result.base is not None:
            names.append(result.base.name)
        page["evaluation"] = result
        page["measures"] = figures.scores_by_measure(result)

    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ctxextend.report", ""),
        autoescape=True,
        finalize=partial(_hide_folders, sources=names),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        difference_text=difference_text,
        line_name=figures.line_name,
        measure_plots=figures.measure_plots,
        measure_title=figures.measure_title,
        score_table=_score_table,
        score_text=score_text,
        svg=_svg,
        versions=_date_and_versions,
    )
    text = environment.get_template("report.html").render(page)
    figures.save(path, text.encode())


def _score_table(scores: Sequence[Score]) -> list[list[str]]:
    """Return the header and the rows of a measure: a row per label, a column per part or length.

    Scores that have neither have a column per name.
    """
    has_lengths = figures.has_lengths(scores)
    has_parts = any(score.part is not None for score in scores)
    rows = dict[str, dict[str, str]]()
    for score in scores:
        name = figures.line_name(score, scores)
        column = "all"
        if has_lengths:
            column = f"{score.length:,}"
            if score.part is not None:
                start, stop = score.part
                name += f", depth {100 * start:.0f} to {100 * stop:.0f} %"
        elif score.part is not None:
            start, stop = score.part
            column = f"{start:,.0f} to {stop - 1:,.0f}"
        elif not has_parts:
            name = figures.line_name(score)
            column = score.name
            rows.setdefault(name, {"median tokens": f"{score.tokens:,}"})
        rows.setdefault(name, {})[column] = score_text(score)
    header = dict.fromkeys(column for cells in rows.values() for column in cells)
    table = [["", *header]]
    for name, cells in rows.items():
        table.append([name, *(cells.get(column, "-") for column in header)])
    return table


def _hide_folders(value: Any, sources: Sequence[str]) -> Any:
    """Remove folder names from a text of a page, and escape unprintable characters.

    Values that are not plain text are returned unchanged.
    """
    if type(value) is not str:
        return value
    for source in sources:
        if len(Path(source).parts) > 1:
            value = value.replace(source, public_name(source))
    text = PATH.sub(lambda match: public_name(match[0]), value)
    return "\n".join(map(printable, text.split("\n")))


def _svg(plot: Plot, number: str) -> Any:
    """Return a plot as inline SVG whose ids are not those of other plots of the page."""
    from markupsafe import Markup

    data = figures.render(lambda: figures.plots_figure([plot], plot.title), ".svg", "none")
    text = data.decode()
    return Markup(SVG_ID.sub(rf"\1{number}-", text[text.index("<svg") :]))


def _date_and_versions() -> Iterator[str]:
    """Yield the date and the versions of libraries.

    The date is ``SOURCE_DATE_EPOCH`` if that is set; see https://reproducible-builds.org.
    """
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    yield f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
    yield f"ctxextend {__version__}"
    for name in ("torch", "transformers", "numpy"):
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"
    yield f"Python {platform.python_version()}"
