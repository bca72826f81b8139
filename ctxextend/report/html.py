"""Self-contained HTML reports of all commands, and the panels of a comparison."""

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

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.errors import counted, printable
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    REFERENCE,
    SLIDING,
    Estimate,
    Evaluation,
    text_summary,
)
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.recipe_file import without_folders
from ctxextend.report import figures
from ctxextend.report.figures import (
    COLOURS,
    NUMBERS,
    LossCurve,
    Panel,
    Plot,
    evaluation_panels,
    public_name,
)
from ctxextend.report.verdicts import comparison_verdict, evaluation_verdict
from ctxextend.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "base"
PATH = re.compile(
    r"(?<!<)[^\s'\"`()<>=,;]*[\\/][^\s'\"`()<>=,;]*"
)  # paths without spaces in a text, but not ``</s>``
SMALL_SIZE = (2.0, 1.25)  # of a plot of a single method, in inches
SVG_IN_HTML = (  # replacements for inline use: drop size, style, metadata and surplus digits
    (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),
    (
        r' (width|height)="[\d.]+pt"| transform="rotate\(-0 [^"]*"| xmlns(:xlink)?="[^"]*"| version="1.1"',
        "",
    ),
    (r" ?font-family: [^;]*;", ""),
    (r'<g id="legend[^"]*"', '<g class="key"'),
    (r'<g id="[^"]*"', "<g"),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),
    (r"\s*\n\s*", "\n"),
)


def comparison_figure(comparison: Comparison) -> "Figure":
    """Return a figure of deltas, losses by position and context length, and retrieval scores of all
    methods.
    """
    title = (
        f"{public_name(comparison.source)}, {comparison.max_len_before} -> "
        f"{comparison.max_len_after} tokens"
    )
    if comparison.row_type == "checkpoint":
        title = (
            f"{counted(len(comparison.rows), comparison.row_type)} at {comparison.max_len_after} "
            "tokens"
        )
    parts = (title, comparison.after_training, "" if comparison.complete else "incomplete")
    figure = figures.panel_figure(comparison_panels(comparison), "; ".join(filter(None, parts)))
    for axes in figure.axes:  # one legend for all curves; bars are labelled on the axis
        lines, names = axes.get_legend_handles_labels()
        if names:
            figure.legend(
                lines,
                names,
                title="shaded: 95 % CI of the first",
                loc="outside lower center",
                ncols=2,
            )
            figure.set_figheight(
                figure.get_figheight() + figures.LEGEND_LINE * (len(names) + 5) // 2
            )
            break
    return figure


def write_report(
    result: Comparison | Evaluation | Sequence[Inspection], path: Path, command: str = ""
) -> None:
    """Write a result, and the command that produced it, as one HTML file without folder names or
    network access.
    """
    figures.check_file(path, figures.REPORT)
    from jinja2 import Environment, PackageLoader

    if isinstance(result, Comparison):
        template = "comparison.html"
        panels = comparison_panels(result)
        verdict = comparison_verdict(result, NUMBERS)
        sources = [result.source, *(row.checkpoint.source for row in result.rows if row.checkpoint)]
    elif isinstance(result, Evaluation):
        template = "evaluation.html"
        panels = evaluation_panels(result)
        verdict = evaluation_verdict(result, NUMBERS)
        sources = [result.source, *filter(None, [result.base])]
    else:
        template = "inspection.html"
        panels = figures.inspection_panels(result)
        sources = [one.source for one in result]
        verdict = " ".join(f"`{one.source}`: {one.verdict}" for one in result)

    def sanitize(value: Any) -> Any:
        """Remove folder names from text and escape unprintable characters; return other values
        unchanged.
        """
        if type(value) is not str:
            return value
        for source in sources:
            value = (
                value.replace(source, public_name(source)) if len(Path(source).parts) > 1 else value
            )
        return "\n".join(
            map(printable, PATH.sub(lambda match: public_name(match[0]), value).split("\n"))
        )

    loader = PackageLoader("ctxextend.report", "")
    environment = Environment(
        loader=loader, autoescape=True, finalize=sanitize, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"name": public_name, "without_folders": without_folders}
    environment.globals["text_summary"] = text_summary
    environment.globals |= {
        "numbers": NUMBERS,
        "svg": _svg,
        "labelled": len(COLOURS),
        "base": BASE,
        "command": command,
    }
    environment.globals["line_class"] = lambda number: (
        f"c{number} d{number}" if number < len(COLOURS) else "other"
    )
    page = environment.get_template(template).render(
        result=result, panels=panels, verdict=verdict.split("`"), environment=_environment()
    )
    figures.save(path, page.encode())


def _environment() -> Iterator[str]:
    """Yield the date (or ``SOURCE_DATE_EPOCH``, https://reproducible-builds.org) and library
    versions.
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
    panels = [_deltas(comparison), _losses(comparison, "position"), _losses(comparison, "context")]
    panels += [_retrieval(comparison, "search"), _retrieval(comparison, "retrieval")]
    return [panel for panel in (*panels, _passkeys(comparison)) if panel is not None]


def _colour(number: int) -> str:
    """Return a method's colour by its rank from 0; methods after the best few share one."""
    return COLOURS[number] if number < len(COLOURS) else figures.OTHER


def _deltas(comparison: Comparison) -> Panel | None:
    rows = comparison.rows
    zero = Estimate(0.0, None, 0, 0)
    if len(rows) < 2:
        return None
    finals = [
        (row.method, row.final, {"color": _colour(i), "alpha": 0.55}) for i, row in enumerate(rows)
    ]
    unit = "nats" if comparison.is_loss else comparison.metric_names[0]
    other = "best"
    deltas = [(method, final.delta or zero, style) for method, final, style in finals]
    if comparison.hold_out is not None:
        other = REFERENCE
        against = [(name, final.against_base, style) for name, final, style in finals]
        deltas = [
            (REFERENCE, zero, {}),
            *((name, value, style) for name, value, style in against if value),
        ]
    plots = [figures.bar_plot(f"Delta vs. {other}", f"delta vs. {other} ({unit}, ± 95 %)", deltas)]
    if short := [
        (method, final.short_inputs, style) for method, final, style in finals if final.short_inputs
    ]:
        title = f"Cost on short inputs ({comparison.max_len_before:,} tokens)"
        plots.append(figures.bar_plot(title, f"cost on short inputs ({unit}, ± 95 %)", short))
    return Panel("delta", f"Delta vs. {other}{', and cost on short inputs' * bool(short)}", plots)


def _losses(comparison: Comparison, by: str) -> Panel | None:
    losses_of = partial(figures.losses_by, by)
    losses_by_method = [
        (row.method, losses_of(row.final.evaluation, MODEL)) for row in comparison.rows
    ]
    if not any(losses for _, losses in losses_by_method):
        return None
    name, mode, mark = (
        (BASE, SLIDING, BASE) if comparison.hold_out is None else (REFERENCE, REFERENCE, "held out")
    )
    before = comparison.max_len_before if comparison.source else None
    base = next(
        filter(None, (losses_of(row.final.evaluation, mode) for row in comparison.rows)), {}
    )
    # whose losses the axis shows completely
    curves = list[LossCurve]()
    better = -(-len(losses_by_method) // 2)
    for number, (method, losses) in enumerate(losses_by_method):
        is_labelled = number < len(COLOURS)
        style: dict[str, Any] = {
            "color": _colour(number),
            "linestyle": figures.DASHES[number] if is_labelled else "-",
        }
        style |= {"linewidth": (2.4 if number == 0 else 1.4) if is_labelled else 0.7}
        curves.append(LossCurve(method, losses, style, is_labelled, sets_limit=number < better))
    if base:
        curves.append(LossCurve(name, base, figures.BASE_STYLE))
    return figures.loss_panel(by, comparison.kind, curves, before, mark)


def _retrieval(comparison: Comparison, by: str) -> Panel | None:
    rows = [(row.method, getattr(row.final.evaluation, by)) for row in comparison.rows]
    measured = [
        (number, method, item) for number, (method, item) in enumerate(rows) if item is not None
    ]
    if not measured:
        return None
    modes = [
        (name, item.scores[MODEL], {"color": _colour(number), "alpha": 0.55})
        for number, name, item in measured
    ]
    base = [
        (figures.RETRIEVAL_LABELS[mode], item)
        for mode, item in measured[0][2].scores.items()
        if mode != MODEL
    ]
    modes += [(name, item, {"color": figures.INK, "alpha": 0.25}) for name, item in base]
    return figures.retrieval_panel(by, modes)


def _passkeys(comparison: Comparison) -> Panel | None:
    plots = []
    for number, row in enumerate(comparison.rows):
        if (passkey := row.final.evaluation.passkey) is not None and passkey.is_above_chance:
            before = comparison.max_len_before if comparison.source else None
            draw = partial(figures.draw_passkey, passkey=passkey, base_max_len=before)
            plots.append(Plot(row.method, draw, SMALL_SIZE, number))
    return Panel("passkey", figures.PASSKEY_TITLE, plots) if plots else None


def _svg(plot: Plot, key: str) -> Any:
    """Return a plot as inline SVG, with text as text, colours as CSS variables, and ids that start
    with `key`.
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
