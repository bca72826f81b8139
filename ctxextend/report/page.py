"""The HTML page of a result, in one file."""

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoint.source import public_name
from ctxextend.errors import printable
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.lab.numbers import difference_text, score_text
from ctxextend.lab.scores import Score
from ctxextend.recipe import without_folders
from ctxextend.report import figures
from ctxextend.report.figures import Plot
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
        models = [*result.models, result.base]
        names = [facts.source for facts in models if facts is not None]
        page["evaluation"] = result
        page["measures"] = figures.by_measure(result)

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
        measure_plots=figures.measure_plots,
        measure_title=figures.measure_title,
        score_table=_score_table,
        score_text=score_text,
        svg=_svg,
        versions=_date_and_versions,
    )
    environment.filters["without_folders"] = without_folders
    text = environment.get_template("report.html").render(page)
    figures.save(path, text.encode())


def _score_table(scores: Sequence[Score]) -> list[list[str]]:
    """Return the header and the rows of a measure: a row per label, a column per part or length.

    Scores that have neither have a column per name.
    """
    rows = dict[str, dict[str, str]]()
    by_label = figures.score_curves(scores)
    if not by_label:
        for score in scores:
            cells = rows.setdefault(score.label, {"median tokens": f"{score.tokens:,}"})
            cells[score.name] = score_text(score)
    if scores[0].measure == figures.EFFECTIVE:
        for score in scores:
            if score.part is not None:
                start, stop = score.part
                label = (
                    f"{score.label}, {score.name}, depth {100 * start:.0f} to {100 * stop:.0f} %"
                )
                by_label.setdefault(label, []).append(replace(score, part=None))
    for label, own in by_label.items():
        for score in own:
            column = f"{score.length:,}"
            if score.part is not None:
                start, stop = score.part
                column = f"{start:,} to {stop - 1:,}"
            rows.setdefault(label, {})[column] = score_text(score)
    header = dict.fromkeys(column for cells in rows.values() for column in cells)
    table = [["", *header]]
    for label, cells in rows.items():
        table.append([label, *(cells.get(column, "-") for column in header)])
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
