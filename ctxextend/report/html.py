"""Self-contained HTML reports of all commands, and the panels of a comparison."""

import math
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctxextend.checkpoint.source import public_name
from ctxextend.comparison.comparison_result import Comparison
from ctxextend.errors import counted, printable
from ctxextend.lab.evaluation_result import (
    MODEL,
    SLIDING,
    Estimate,
    Evaluation,
    text_summary,
)
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.recipe import without_folders
from ctxextend.report import effective_text, figures, phrases
from ctxextend.report.effective_text import EFFECTIVE_TITLE, SHORT_NAMES
from ctxextend.report.figures import (
    COLOURS,
    Bar,
    DocumentBars,
    LossCurve,
    Panel,
    Plot,
    Style,
    evaluation_panels,
)
from ctxextend.report.numbers import NUMBERS
from ctxextend.report.phrases import metric_column, short_reading_name
from ctxextend.report.table_panels import inspection_panels
from ctxextend.report.verdicts import comparison_verdict, evaluation_verdict
from ctxextend.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


BASE_LABEL = "base"
LEGEND_COLUMNS = 2  # of a figure
LEGEND_TITLE_LINES = 2  # its title and the space around it
# Paths without spaces in a text, but not ``</s>``.
PATH = re.compile(r"(?<!<)[^\s'\"`()<>=,;]*[\\/][^\s'\"`()<>=,;]*")
SMALL_SIZE = (2.0, 1.25)  # of a plot of a single method, in inches
BASE_BAR_STYLE: Style = {"color": figures.INK, "alpha": 0.25}
NO_DELTA = Estimate(0.0, None, 0, 0)
BEST_WIDTH = 2.4  # of the line of the best method
LABELLED_WIDTH = 1.4
OTHER_WIDTH = 0.7
SVG_ATTRIBUTES = (  # that an inline image does not need
    r' (width|height)="[\d.]+pt"',
    r' transform="rotate\(-0 [^"]*"',
    r' xmlns(:xlink)?="[^"]*"',
    r' version="1.1"',
)
# Replacements that make matplotlib's SVG fit to be part of a page, in this order.
SVG_IN_HTML = (
    (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),  # what readers do not see
    ("|".join(SVG_ATTRIBUTES), ""),
    (r" ?font-family: [^;]*;", ""),  # the page has its own
    (r'<g id="legend[^"]*"', '<g class="key"'),  # to be styled
    (r'<g id="[^"]*"', "<g"),  # other groups need no names
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),  # surplus digits of coordinates
    (r"\s*\n\s*", "\n"),  # indents
)


def comparison_figure(comparison: Comparison) -> "Figure":
    """Return a figure of deltas, losses by position and context length, and retrieval scores."""
    to = f"{comparison.max_len_after} tokens"
    title = f"{public_name(comparison.source)}, {comparison.max_len_before} -> {to}"
    if comparison.row_type == "checkpoint":
        title = f"{counted(len(comparison.rows), comparison.row_type)} at {to}"
    figure = figures.panel_figure(comparison_panels(comparison), title)
    # The legend of the first plot with curves, below all plots: they have the same names. Bars are
    # labelled on the axis.
    legends = (axes.get_legend_handles_labels() for axes in figure.axes)
    lines, names = next((legend for legend in legends if legend[1]), ([], []))
    if names:
        figure.legend(
            lines,
            names,
            title="shaded: 95 % CI of the first",
            loc="outside lower center",
            ncols=LEGEND_COLUMNS,
        )
        text_lines = math.ceil(len(names) / LEGEND_COLUMNS) + LEGEND_TITLE_LINES
        figure.set_figheight(figure.get_figheight() + figures.LEGEND_LINE * text_lines)
    return figure


def write_report(
    result: Comparison | Evaluation | Sequence[Inspection],
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
    if isinstance(result, Comparison):
        template = "comparison.html"
        panels = comparison_panels(result)
        verdict = comparison_verdict(result)
        checkpoints = [row.checkpoint for row in result.rows if row.checkpoint]
        sources = [result.source, *(checkpoint.source for checkpoint in checkpoints)]
    elif isinstance(result, Evaluation):
        template = "evaluation.html"
        panels = evaluation_panels(result)
        verdict = evaluation_verdict(result)
        sources = [source for source in (result.source, result.base) if source]
    else:
        template = "inspection.html"
        panels = inspection_panels(result)
        verdict = " ".join(f"`{one.source}`: {one.verdict}" for one in result)
        sources = [one.source for one in result]
    page = (
        _environment(sources, command)
        .get_template(template)
        .render(
            result=result,
            panels=panels,
            verdict=verdict.split("`"),  # every second part is a name
            versions=_date_and_versions(),
            next_command=next_command,
        )
    )
    figures.save(path, page.encode())


def _environment(sources: Sequence[str], command: str) -> "Environment":
    """Return what templates are rendered with: rules of Jinja, filters and names for all pages.

    Args:
        sources: The checkpoints, whose folders are hidden.
        command: The command to show.
    """
    from jinja2 import Environment, PackageLoader, Undefined

    class NoSuchName(Undefined):
        """An empty text, unless a template names an attribute that a dataclass does not have."""

        def __init__(self, *args: Any, **names: Any) -> None:
            super().__init__(*args, **names)
            if is_dataclass(self._undefined_obj):
                raise AttributeError(self._undefined_message)

    environment = Environment(
        undefined=NoSuchName,
        loader=PackageLoader("ctxextend.report", ""),
        autoescape=True,
        finalize=partial(_hide_folders, sources=sources),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"name": public_name, "without_folders": without_folders}
    environment.globals |= {
        "text_summary": text_summary,
        "numbers": NUMBERS,
        "svg": _svg,
        "labelled": len(COLOURS),
        "base": BASE_LABEL,
        "command": command,
        "line_class": _line_class,
        "phrases": phrases,
        "effective_text": effective_text,
    }
    return environment


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


def _line_class(number: int) -> str:
    """Return the CSS classes of the curve of a method, by its rank from 0."""
    if number >= len(COLOURS):
        return "other"
    return f"c{number} d{number}"


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


def comparison_panels(comparison: Comparison) -> list[Panel]:
    """Return a panel for each measurement."""
    panels = [
        _delta_panel(comparison),
        _loss_panel(comparison, "position"),
        _loss_panel(comparison, "context"),
        _score_panel(comparison, "search"),
        _score_panel(comparison, "retrieval"),
        *_effective_panels(comparison),
    ]
    return [panel for panel in panels if panel is not None]


def _colour(number: int) -> str:
    """Return a method's colour by its rank from 0; methods after the best few share one."""
    if number >= len(COLOURS):
        return figures.OTHER
    return COLOURS[number]


def _bar_style(number: int) -> Style:
    return {"color": _colour(number), "alpha": 0.55}


def _delta_panel(comparison: Comparison) -> Panel | None:
    if len(comparison.rows) < 2:
        return None
    deltas = []
    costs = []
    for number, row in enumerate(comparison.rows):
        style = _bar_style(number)
        deltas.append(Bar(row.method, row.delta or NO_DELTA, style, instead="best"))
        if row.short_inputs:
            costs.append(Bar(row.method, row.short_inputs, style, instead="unchanged"))
    unit = "nats" if comparison.is_loss else metric_column(comparison)
    title = "Delta vs. best"
    plots = [figures.bar_plot(title, f"delta vs. best ({unit}, ± 95 %)", deltas)]
    if costs:
        label = f"cost on short inputs ({unit}, ± 95 %)"
        costs_title = f"Cost on short inputs ({comparison.max_len_before:,} tokens)"
        plots.append(figures.bar_plot(costs_title, label, costs))
        title += ", and cost on short inputs"
    return Panel(key="delta", title=title, plots=plots)


def _loss_panel(comparison: Comparison, by: str) -> Panel | None:
    evaluations = [row.evaluation for row in comparison.rows]
    losses = [figures.losses_by(by, evaluation, MODEL) for evaluation in evaluations]
    if not any(losses):
        return None
    curves = [_loss_curve(comparison, rank, own) for rank, own in enumerate(losses)]
    for evaluation in evaluations:
        of_base = figures.losses_by(by, evaluation, SLIDING)
        if of_base:  # the same in all rows
            curves.append(LossCurve(BASE_LABEL, of_base, figures.BASE_STYLE))
            break
    return figures.loss_panel(by, comparison.kind, curves, _base_length(comparison))


def _loss_curve(comparison: Comparison, rank: int, losses: figures.LossesBySpan) -> LossCurve:
    """Return the curve of a method, by its rank from 0; the best few stand out."""
    is_labelled = rank < len(COLOURS)
    if rank == 0:
        width = BEST_WIDTH
    elif is_labelled:
        width = LABELLED_WIDTH
    else:
        width = OTHER_WIDTH
    style = {
        "color": _colour(rank),
        "linestyle": figures.DASHES[rank] if is_labelled else "-",
        "linewidth": width,
    }
    return LossCurve(
        name=comparison.rows[rank].method,
        losses=losses,
        style=style,
        is_labelled=is_labelled,
        # Much worse methods would flatten the curves of the better half.
        sets_limit=rank < math.ceil(len(comparison.rows) / 2),
    )


def _base_length(comparison: Comparison) -> int | None:
    """Return the base's context length; None without a base, which is the comparison's source."""
    if not comparison.source:
        return None
    return comparison.max_len_before


def _score_panel(comparison: Comparison, by: Literal["search", "retrieval"]) -> Panel | None:
    of_methods = []
    of_base = list[DocumentBars]()
    for number, row in enumerate(comparison.rows):
        measured = figures.scores_of(row.evaluation, by)
        if measured is None:
            continue
        read = measured.tokens_read[MODEL]
        scores = measured.scores[MODEL]
        of_methods.append(DocumentBars(row.method, read, scores, _bar_style(number)))
        if of_base:  # the same for all methods
            continue
        for mode, of_mode in measured.scores.items():
            if mode != MODEL:
                read = measured.tokens_read[mode]
                name = f"base: {short_reading_name(mode, read)}"
                of_base.append(DocumentBars(name, read, of_mode, BASE_BAR_STYLE))
    if not of_methods:
        return None
    return figures.retrieval_panel(by, [*of_methods, *of_base])


def _effective_panels(comparison: Comparison) -> Iterator[Panel]:
    """Yield for each task a small map of each row that is above chance in it."""
    base_max_len = _base_length(comparison)
    plots = dict[str, list[Plot]]()
    for number, row in enumerate(comparison.rows):
        effective = row.evaluation.effective
        tasks = {} if effective is None else effective.tasks
        for name, task in tasks.items():
            if task.is_above_chance:
                draw = partial(figures.draw_effective, task=task, base_max_len=base_max_len)
                plots.setdefault(name, []).append(Plot(row.method, draw, SMALL_SIZE, number))
    for name, of_task in plots.items():
        title = f"Effective context: {EFFECTIVE_TITLE.lower()}, {SHORT_NAMES[name]}"
        yield Panel(f"effective-{name}", title, of_task)


def _svg(plot: Plot, key: str) -> Any:
    """Return a plot as inline SVG, with ids that start with `key`.

    Text is text, and colours are CSS variables.
    """
    from markupsafe import Markup
    from matplotlib.figure import Figure

    def create() -> Figure:
        figure = Figure(figsize=plot.size, layout="constrained", facecolor="none")
        axes = figure.subplots()
        plot.draw(axes)
        if plot.number is not None:
            axes.set(xlabel="", ylabel="")
        return figure

    text = figures.render(create, ".svg", fonttype="none").decode()
    text = text[text.index("<svg") :]
    for pattern, replacement in SVG_IN_HTML:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{key}-", text)
    for name, colour in figures.THEME.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text)
