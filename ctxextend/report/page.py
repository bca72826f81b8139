"""The HTML page of a result, in one file."""

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoint.source import public_name
from ctxextend.errors import counted, printable
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.lab.scores import NATS, Score
from ctxextend.report import figures
from ctxextend.report.figures import Plot, line_name
from ctxextend.report.numbers import difference_text, score_text
from ctxextend.report.table_plots import table_plots
from ctxextend.version import __version__

if TYPE_CHECKING:
    from ctxextend.lab.evaluation import Evaluation

# Paths without spaces in a text, but not ``</s>``.
PATH = re.compile(r"(?<!<)[^\s'\"`()<>=,;]*[\\/][^\s'\"`()<>=,;]*")
SVG_ID = re.compile(r'(\bid="|url\(#|href="#)')
OUTCOMES = {1: "better", -1: "worse", 0: "tied", None: "no interval"}
ROWS_CAPTION = (
    "A drop in the cosine to the next position is a seam, where a shorter table ends. Stripes off "
    "the diagonal of a map are repeated rows."
)

Rows = list[list[str]]  # of a table


@dataclass(frozen=True)
class Section:
    """A part of a page: plots, a table and a list, as far as it has them."""

    title: str
    plots: Sequence[Plot] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    items: Sequence[str] = ()
    caption: str = ""


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
    if isinstance(result, Sequence):
        names = [one.source for one in result]
        page = {
            "title": ", ".join(map(public_name, names)),
            "verdict": " ".join(f"`{one.source}`: {one.verdict}" for one in result),
            "facts": [*_table_facts(result)],
            "sections": [*_inspection_sections(result)],
            "notes": dict.fromkeys(note for one in result for note in one.notes),
        }
    else:
        names = [facts.name for facts in result.models]
        page = {
            "title": f"{', '.join(map(public_name, names))} at {result.length:,} tokens",
            "verdict": result.verdict,
            "warnings": result.warnings,
            "facts": [*_facts(result)],
            "sections": [*_evaluation_sections(result)],
            "notes": result.notes,
        }
        if result.base is not None:
            names.append(result.base.name)

    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("ctxextend.report", ""),
        autoescape=True,
        finalize=partial(_hide_folders, sources=names),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("report.html").render(
        page, svg=_svg, command=command, next_command=next_command, versions=_date_and_versions()
    )
    figures.save(path, text.encode())


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


# Evaluations


def _facts(evaluation: "Evaluation") -> Iterator[tuple[str, str]]:
    for facts in evaluation.models:
        yield "Model", f"{public_name(facts.name)}, {facts.max_len:,} tokens"
    if evaluation.base is not None:
        base = evaluation.base
        yield "Base", f"{public_name(base.name)}, {base.max_len:,} tokens"
    documents = counted(evaluation.documents, "document")
    yield "Text", f"{counted(evaluation.tokens, 'token')} of {documents}"
    yield "Run", f"{evaluation.precision}, seed {evaluation.seed}"


def _evaluation_sections(evaluation: "Evaluation") -> Iterator[Section]:
    if len(evaluation.ranking) > 1:
        shown = [*evaluation.ranking, *evaluation.references]
        title = figures.measure_title(shown[0].measure)
        yield Section(
            title=f"Ranking by {shown[0].name}: {title}",
            header=("model", "score"),
            rows=[[line_name(score, [score]), score_text(score)] for score in shown],
        )
    mark = evaluation.base.max_len if evaluation.base is not None else None
    for measure, scores in figures.scores_by_measure(evaluation).items():
        header, rows = _score_table(scores)
        caption = "100 times the share, and its 95 % interval. Higher is better."
        if scores[0].unit == NATS:
            caption = "Perplexity, and its 95 % interval. Lower is better."
        yield Section(
            title=figures.measure_title(measure),
            plots=figures.measure_plots(scores, mark),
            header=header,
            rows=rows,
            caption=caption,
        )
    if evaluation.differences:
        rows = list[list[str]]()
        for difference in evaluation.differences:
            score = difference.score
            other = difference.other
            rows.append(
                [
                    line_name(score, [score]),
                    line_name(other, [other]),
                    f"{figures.measure_title(score.measure)}, {score.name}",
                    difference_text(difference),
                    OUTCOMES[difference.outcome],
                ]
            )
        yield Section(
            title="Differences",
            header=("model", "compared with", "measure", "difference", ""),
            rows=rows,
            caption="Paired by text; tied if the 95 % interval contains 0.",
        )


def _score_table(scores: Sequence[Score]) -> tuple[list[str], Rows]:
    """Return the header and the rows of a measure: a row per label."""
    axis = figures.axis_of(scores)
    columns = dict[Any, str]()  # by the field of scores that differs
    rows = dict[str, dict[Any, str]]()
    for score in scores:
        column = getattr(score, axis)
        name = line_name(score, [score])
        if axis != "name":
            name = line_name(score, scores)
        if axis == "length" and score.part is not None:
            start, stop = score.part
            name += f", depth {100 * start:.0f} to {100 * stop:.0f} %"
        if axis == "part":
            column = column or (-1, -1)
        columns[column] = _column_name(score, axis)
        rows.setdefault(name, {})[column] = score_text(score)
        if axis == "name":
            rows[name][""] = f"{score.tokens:,}"
    order = [*columns]
    if axis == "name":
        columns[""] = "median tokens"
        order.append("")
    else:
        order.sort()
    header = ["", *(columns[column] for column in order)]
    return header, [[name, *(row.get(c, "-") for c in order)] for name, row in rows.items()]


def _column_name(score: Score, axis: str) -> str:
    if axis == "name":
        return score.name
    if axis == "length":
        return f"{score.length:,}"
    if score.part is None:
        return "all"
    start, stop = score.part
    return f"{start:,.0f} to {stop - 1:,.0f}"


# Inspections


def _table_facts(inspections: Sequence[Inspection]) -> Iterator[tuple[str, str]]:
    for one in inspections:
        name = f"{public_name(one.source)} ({one.model_type})"
        for table in one.tables:
            facts = [f"{table.name}: {counted(table.positions, 'position')}"]
            if table.reserved_rows:
                facts.append(counted(table.reserved_rows, "reserved row"))
            facts += [f"hidden size {table.hidden_size}", table.dtype]
            yield f"{name} {table.part}", ", ".join(facts)
        for scheme in one.schemes:
            kinds = ", ".join(scheme.kinds)
            yield f"{name} {scheme.part}", f"{counted(scheme.positions, 'position')} ({kinds})"


def _inspection_sections(inspections: Sequence[Inspection]) -> Iterator[Section]:
    if any(one.tables for one in inspections):
        yield Section("Position tables", plots=table_plots(inspections), caption=ROWS_CAPTION)
    for one in inspections:
        of_model = ""
        if len(inspections) > 1:
            of_model = f" of {public_name(one.source)}"
        findings = list[str]()
        for table in one.tables:
            prefix = f"{table.part}: " if table.part else ""
            findings += [f"{prefix}{finding}" for finding in table.findings()]
        if one.tables:
            yield Section(f"Findings{of_model}", items=findings or ["none"])
        rows = list[list[str]]()
        for limit in one.limits:
            tokens = "unset" if limit.tokens is None else f"{limit.tokens:,}"
            agrees = "yes" if limit.agrees else f"no: {limit.reason}"
            rows.append([limit.file, limit.key, tokens, limit.used_by, agrees])
        fixes = dict.fromkeys(limit.fix for limit in one.limits if limit.fix is not None)
        yield Section(
            title=f"Limits{of_model}",
            header=("file", "key", "tokens", "used by", "agrees"),
            rows=rows,
            items=[f"Fix: {fix}" for fix in fixes],
        )
        if one.libraries:
            rows = []
            for library in one.libraries:
                tokens = "no limit" if library.tokens is None else f"{library.tokens:,}"
                rows.append([library.name, tokens, library.beyond, library.decided_by])
            yield Section(
                title=f"Effective limit per library{of_model}",
                header=("library", "tokens", "longer inputs", "set by"),
                rows=rows,
            )
