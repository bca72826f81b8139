"""The report of a comparison: its panels as one figure, or as an HTML page that needs nothing but a browser."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.errors import counted, printable
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Estimate
from ctxextend.report import figures
from ctxextend.report.figures import COLOURS, DASHES, INK, ORIGINAL_LOOK, REPORT, Look, LossCurve, Plot
from ctxextend.report.numbers import NumberFormat
from ctxextend.report.verdicts import comparison_verdict
from ctxextend.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERS = NumberFormat(unicode=True)
EN_DASH = "\N{EN DASH}"
ORIGINAL = "the original, in pieces"
# At least and at most so many methods stand in front in panels of all of them.
LEAST, MOST = 3, 6
# The share of norms that are shown whole.
USUAL = 0.98
# The size of a small panel for one method, in inches.
SMALL = (2.0, 1.25)
# What matplotlib's SVG loses inside HTML: its size, its style (the page has its own), what no reader sees, and digits.
SVG_IN_HTML = (
    (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),
    (r' (width|height)="[\d.]+pt"| transform="rotate\(-0 [^"]*"| xmlns(:xlink)?="[^"]*"| version="1.1"', ""),
    (r" ?font-family: [^;]*;", ""),
    (r'<g id="[^"]*"', "<g"),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),
    (r"\s*\n\s*", "\n"),
)


def comparison_figure(comparison: Comparison) -> "Figure":
    """Return a figure of what each method costs, and its losses by position and context, or what it finds."""
    before, after = comparison.max_len_before, comparison.max_len_after
    what = f"{comparison.source} ({comparison.family}), {before} -> {after} tokens"
    text = f"{counted(comparison.documents, 'document')}, {comparison.tokens:,} tokens"
    parts = (what, comparison.after_training, text, "" if comparison.complete else "incomplete")
    plots = [plot for panel in comparison_panels(comparison) if not panel.is_small for plot in panel.plots]
    figure = figures.panel_figure([("; ".join(filter(None, parts)), plots)], (4.6, 4.2))
    # Bars name their methods themselves; one legend serves all curves.
    for axes in figure.axes[::-1]:
        lines, names = axes.get_legend_handles_labels()
        if names:
            figure.legend(lines[::-1], names[::-1], loc="outside lower center", ncols=min(len(names), 5))
            break
    return figure


def write_report(comparison: Comparison, path: Path) -> None:
    """Write a comparison as one HTML page; the same one gives the same bytes with the same matplotlib.

    The page needs no other file and asks no network: style, script and pictures are in it. It holds the ranking, losses
    by position and by context, norms and passkeys of each method, as far as they were measured, and the recipes.
    """
    figures.check_file(path, REPORT)
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("ctxextend.report", ""),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["change"] = _change
    page = environment.get_template("report.html").render(
        comparison=comparison,
        verdict=comparison_verdict(comparison, NUMBERS).split("`"),
        numbers=NUMBERS,
        panels=comparison_panels(comparison),
        svg=_svg,
        line_class=lambda number: "c{} d{}".format(*_line(number)),
        original=ORIGINAL,
        lead_count=_lead_count(comparison),
        version=__version__,
    )
    figures.save(path, page.encode())


def _shown(value: Any) -> Any:
    """Return a value of the template with what cannot be shown written out, lines kept; markup as it is."""
    return "\n".join(map(printable, value.split("\n"))) if type(value) is str else value


def _line(number: int) -> tuple[int, int]:
    """Return the numbers of a method's colour and dashes, by its place in the ranking from 0."""
    return number % len(COLOURS), (number + number // len(COLOURS)) % len(DASHES)


def _lead_count(comparison: Comparison) -> int:
    """Return how many methods stand in front: those tied with the best, where these are neither few nor many."""
    return min(max(sum(row.final.is_tied for row in comparison.rows), LEAST), MOST)


def _change(difference: Estimate | None) -> str:
    """Return a difference with its sign and interval; 0 for none at all, and nothing where not measured."""
    if difference is None:
        return ""
    return NUMBERS.change(difference) if difference.mean or difference.ci95 else "0"


# The panels: pictures, with the same as a table


@dataclass(frozen=True)
class Panel:
    """Pictures of one kind: one for each method, or one or two of all of them, with the same as a table."""

    key: str  # a name of its own on the page
    title: str
    plots: Sequence[Plot]
    # The same as a table, its head first; none where the pictures or the ranking hold all numbers.
    rows: Sequence[Sequence[str]] = ()

    @property
    def is_small(self) -> bool:
        """Whether each method has a small picture of its own."""
        return self.plots[0].number is not None


def comparison_panels(comparison: Comparison) -> list[Panel]:
    """Return a panel for each part that was measured."""
    panels = (
        _costs(comparison),
        _losses(comparison, "position"),
        _losses(comparison, "context"),
        _retrieval(comparison),
        _norms(comparison),
        _passkeys(comparison),
    )
    return [panel for panel in panels if panel is not None]


def _bar_look(number: int) -> Look:
    return {"color": COLOURS[number % len(COLOURS)], "alpha": 0.55}


def _costs(comparison: Comparison) -> Panel | None:
    """How far each method is behind the best, and what short texts pay."""
    finals = [(row.method, row.final, _bar_look(number)) for number, row in enumerate(comparison.rows)]
    if len(finals) < 2:
        return None
    unit = "nats per token" if comparison.is_loss else "mean reciprocal rank"
    behind = [(method, final.behind or Estimate(0.0, None, 0, 0), look) for method, final, look in finals]
    plots = [figures.bar_plot("Behind the best", f"behind the best ({unit})", behind)]
    if short := [(method, final.short, look) for method, final, look in finals if final.short]:
        title = f"Cost for texts of {comparison.max_len_before:,} tokens"
        plots.append(figures.bar_plot(title, "cost for short texts (nats per token)", short))
    return Panel("cost", "What each costs" if short else "Behind the best", plots)


def _losses(comparison: Comparison, by: str) -> Panel | None:
    """Losses by position or by context of each method, and of the original."""
    read = partial(figures.losses_by, by)
    found = [(row.method, read(row.final.evaluation, MODEL)) for row in comparison.rows]
    if not any(losses for _, losses in found):
        return None
    original = next(filter(None, (read(row.final.evaluation, SLIDING) for row in comparison.rows)), {})
    # The better half of the methods is shown whole.
    leads, better, curves = _lead_count(comparison), -(-len(found) // 2), list[LossCurve]()
    for number, (name, losses) in enumerate(found):
        width = 2.4 if number == 0 else 1.4 if number < leads else 0.7
        colour, dash = _line(number)
        look: Look = {
            "color": COLOURS[colour],
            "linestyle": DASHES[dash],
            "linewidth": width,
            "alpha": 1.0 if number < leads else 0.5,
        }
        curves.append(LossCurve(name, losses, look, is_whole=number < better, shows_errors=number == 0))
    if original:
        curves.insert(leads, LossCurve(ORIGINAL, original, ORIGINAL_LOOK, shows_errors=False))
        found.append((ORIGINAL, original))
    # What is drawn last is on top: the best, on those that lead, on the original, on the others.
    plot = figures.loss_plot(by, comparison.kind, curves[::-1], comparison.max_len_before)
    places = sorted({place for _, losses in found for place in losses})
    spans = [(place[0], place[-1] - 1) if by == "position" else place for place in places]
    head = ["method", *(EN_DASH.join(f"{end:,}" for end in span) for span in spans)]
    cells = [[name, *(NUMBERS.estimate(losses.get(place)) for place in places)] for name, losses in found]
    return Panel(by, plot.title, [plot], [head, *cells])


def _retrieval(comparison: Comparison) -> Panel | None:
    """Recall and reciprocal rank of each method and of the original."""
    rows = [(row.method, row.final.evaluation.retrieval) for row in comparison.rows]
    asked = [(number, method, found) for number, (method, found) in enumerate(rows) if found is not None]
    if not asked:
        return None
    ways = [(name, found.ways[MODEL], _bar_look(number)) for number, name, found in asked if MODEL in found.ways]
    others = [(f"original, {name}", way) for name, way in asked[0][2].ways.items() if name != MODEL]
    ways += [(name, way, {"color": INK, "alpha": 0.25}) for name, way in others]
    cells = [["method", "reciprocal rank", "recall@1"]]
    for name, way, _ in ways:
        cells.append([name, NUMBERS.estimate(way.reciprocal_rank), NUMBERS.estimate(way.recall)])
    return Panel("retrieval", "Retrieval", figures.retrieval_plots(ways), cells)


def _norms(comparison: Comparison) -> Panel | None:
    """The norms of each method's rows over those of the model's own."""
    drawn = [(number, row.method, row.norms) for number, row in enumerate(comparison.rows) if row.norms]
    if not drawn:
        return None
    tables = (comparison.norms, *(norms for *_, norms in drawn))
    norms = sorted(norm for table in tables for norm in table if math.isfinite(norm)) or [1.0]
    limit = figures.upper_limit([0.0, *norms], [0.0, *norms[: int(USUAL * (len(norms) - 1)) + 1]])
    top, plots = limit or 1.1 * norms[-1] or 1.0, []
    for number, method, after in drawn:
        colour = COLOURS[number % len(COLOURS)]
        draw = partial(figures.draw_row_norms, before=comparison.norms, after=after, colour=colour, top=top)
        plots.append(Plot(method, draw, SMALL, number, is_cut=limit is not None))
    return Panel("norms", "Norms of the table's rows, before and after", plots)


def _passkeys(comparison: Comparison) -> Panel | None:
    """A heat map of what each method found."""
    plots = []
    for number, row in enumerate(comparison.rows):
        if (passkey := row.final.evaluation.passkey) is not None and passkey.is_above_chance:
            draw = partial(figures.draw_passkey, passkey=passkey, label="", learned=comparison.max_len_before)
            plots.append(Plot(row.method, draw, SMALL, number))
    return Panel("passkey", "Passkeys", plots) if plots else None


def _svg(plot: Plot, key: str) -> Any:
    """Return a picture as SVG inside HTML: its text is text, and its colours are variables of the page's style.

    `key` stands before every id in it, since ids are those of the whole page.
    """
    from markupsafe import Markup
    from matplotlib.figure import Figure

    def make() -> Figure:
        figure = Figure(figsize=plot.size, layout="constrained", facecolor="none")
        axes = figure.subplots()
        plot.draw(axes)
        if plot.number is not None:
            axes.set(xlabel="", ylabel="")
        return figure

    text = figures.render(make, ".svg", fonttype="none").decode()
    text = text[text.index("<svg") :]
    for pattern, replacement in SVG_IN_HTML:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{key}-", text)
    for name, colour in figures.THEME.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text)
