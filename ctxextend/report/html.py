"""Reports: what a command found as an HTML page that needs nothing but a browser, and the panels of a comparison."""

import math
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.comparison.comparison_result import Comparison
from ctxextend.errors import printable
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, Estimate, Evaluation
from ctxextend.inspection.table_report import Inspection
from ctxextend.recipe_file import without_folders
from ctxextend.report import figures
from ctxextend.report.figures import COLOURS, NUMBERS, LossCurve, Panel, Plot, evaluation_panels, public_name
from ctxextend.report.verdicts import comparison_verdict, evaluation_verdict
from ctxextend.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "the base, in pieces"
# A path in a text, in one word; of ``</s>`` nothing.
PATH = re.compile(r"(?<!<)[^\s'\"`()<>=,;]*[\\/][^\s'\"`()<>=,;]*")
USUAL = 0.98  # the share of norms that are shown whole
SMALL = (2.0, 1.25)  # the size of a small panel for one method, in inches
# What matplotlib's SVG loses inside HTML: its size, its style (the page has its own), what no reader sees, and digits.
SVG_IN_HTML = (
    (r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", ""),
    (r' (width|height)="[\d.]+pt"| transform="rotate\(-0 [^"]*"| xmlns(:xlink)?="[^"]*"| version="1.1"', ""),
    (r" ?font-family: [^;]*;", ""),
    (r'<g id="legend[^"]*"', '<g class="key"'),
    (r'<g id="[^"]*"', "<g"),
    (r"(\d\.\d\d)\d+(?=[^<>]*>)", r"\1"),
    (r"\s*\n\s*", "\n"),
)


def comparison_figure(comparison: Comparison) -> "Figure":
    """Return a figure of what each method costs, and its losses by position and context, or what it finds."""
    what = f"{public_name(comparison.source)}, {comparison.max_len_before} -> {comparison.max_len_after} tokens"
    parts = (what, comparison.after_training, "" if comparison.complete else "incomplete")
    figure = figures.panel_figure(comparison_panels(comparison), "; ".join(filter(None, parts)))
    # Bars name their methods themselves; one legend serves all curves.
    for axes in figure.axes:
        lines, names = axes.get_legend_handles_labels()
        if names:
            figure.legend(lines, names, title="shaded: ± 95 %", loc="outside lower center", ncols=2)
            figure.set_figheight(figure.get_figheight() + figures.LEGEND_LINE * (len(names) + 5) // 2)
            break
    return figure


def write_report(found: Comparison | Evaluation | Sequence[Inspection], path: Path, command: str = "") -> None:
    """Write what was found as one HTML page, with the command that found it.

    The page needs no other file and asks no network: style, script and pictures are in it. It holds names only, no
    folders. With the same libraries and the date of ``SOURCE_DATE_EPOCH`` the same results give the same bytes.
    """
    figures.check_file(path, figures.REPORT)
    from jinja2 import Environment, PackageLoader

    if isinstance(found, Comparison):
        template, panels, verdict = "comparison.html", comparison_panels(found), comparison_verdict(found, NUMBERS)
        sources = [found.source]
    elif isinstance(found, Evaluation):
        template, panels, verdict = "evaluation.html", evaluation_panels(found), evaluation_verdict(found, NUMBERS)
        sources = [found.source, *filter(None, [found.base])]
    else:
        template, panels, sources = "inspection.html", figures.inspection_panels(found), [one.source for one in found]
        verdict = " ".join(f"`{one.source}`: {one.verdict}" for one in found)

    def shown(value: Any) -> Any:
        """Return a text without folders, and with what cannot be shown written out, lines kept; markup as it is."""
        if type(value) is not str:
            return value
        for source in sources:
            value = value.replace(source, public_name(source)) if len(Path(source).parts) > 1 else value
        return "\n".join(map(printable, PATH.sub(lambda found: public_name(found[0]), value).split("\n")))

    loader = PackageLoader("ctxextend.report", "")
    environment = Environment(loader=loader, autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"name": public_name, "without_folders": without_folders}
    environment.globals |= {"numbers": NUMBERS, "svg": _svg, "strong": len(COLOURS), "base": BASE, "command": command}
    environment.globals["line_class"] = lambda number: f"c{number} d{number}" if number < len(COLOURS) else "other"
    page = environment.get_template(template).render(
        found=found, panels=panels, verdict=verdict.split("`"), circumstances=_circumstances()
    )
    figures.save(path, page.encode())


def _circumstances() -> Iterator[str]:
    """Yield the date, or ``SOURCE_DATE_EPOCH`` (https://reproducible-builds.org), and what results depend on."""
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    yield f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d}"
    yield f"ctxextend {__version__}"
    for name in ("torch", "transformers", "numpy"):
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"
    yield f"Python {platform.python_version()}"


def comparison_panels(comparison: Comparison) -> list[Panel]:
    """Return a panel for each part that was measured."""
    panels = [_costs(comparison), _losses(comparison, "position"), _losses(comparison, "context")]
    panels += [_retrieval(comparison), _norms(comparison), _passkeys(comparison)]
    return [panel for panel in panels if panel is not None]


def _colour(number: int) -> str:
    """Return a method's colour, by its place in the ranking from 0: the best have one of their own."""
    return COLOURS[number] if number < len(COLOURS) else figures.OTHER


def _costs(comparison: Comparison) -> Panel | None:
    """How far each method is behind the best, and what short texts pay."""
    if len(comparison.rows) < 2:
        return None
    looks = [{"color": _colour(number), "alpha": 0.55} for number in range(len(comparison.rows))]
    finals = [(row.method, row.final, look) for row, look in zip(comparison.rows, looks, strict=True)]
    unit = "nats/token" if comparison.is_loss else "reciprocal rank"
    behind = [(method, final.delta or Estimate(0.0, None, 0, 0), look) for method, final, look in finals]
    plots = [figures.bar_plot("Behind the best", f"behind the best ({unit}, ± 95 %)", behind)]
    if short := [(method, final.short, look) for method, final, look in finals if final.short]:
        title = f"Cost on texts of {comparison.max_len_before:,} tokens"
        plots.append(figures.bar_plot(title, "short texts (nats/token, ± 95 %)", short))
    return Panel("cost", "What each costs" if short else "Behind the best", plots)


def _losses(comparison: Comparison, by: str) -> Panel | None:
    """Losses by position or by context of each method, and of the base."""
    read = partial(figures.losses_by, by)
    found = [(row.method, read(row.final.evaluation, MODEL)) for row in comparison.rows]
    if not any(losses for _, losses in found):
        return None
    base = next(filter(None, (read(row.final.evaluation, SLIDING) for row in comparison.rows)), {})
    # The better half of the methods is shown whole.
    curves, better = list[LossCurve](), -(-len(found) // 2)
    for number, (name, losses) in enumerate(found):
        is_strong = number < len(COLOURS)
        look: dict[str, Any] = {"color": _colour(number), "linestyle": figures.DASHES[number] if is_strong else "-"}
        look |= {"linewidth": (2.4 if number == 0 else 1.4) if is_strong else 0.7}
        curves.append(LossCurve(name, losses, look, is_strong, is_whole=number < better))
    if base:
        curves.append(LossCurve(BASE, base, figures.BASE_LOOK))
    return figures.loss_panel(by, comparison.kind, curves, comparison.max_len_before)


def _retrieval(comparison: Comparison) -> Panel | None:
    """Recall and reciprocal rank of each method and of the base."""
    rows = [(row.method, row.final.evaluation.retrieval) for row in comparison.rows]
    asked = [(number, method, found) for number, (method, found) in enumerate(rows) if found is not None]
    if not asked:
        return None
    modes = [(name, found.modes[MODEL], {"color": _colour(number), "alpha": 0.55}) for number, name, found in asked]
    others = [(f"base, {name}", way) for name, way in asked[0][2].modes.items() if name != MODEL]
    modes += [(name, way, {"color": figures.INK, "alpha": 0.25}) for name, way in others]
    return figures.retrieval_panel(modes)


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
        draw = partial(figures.draw_row_norms, before=comparison.norms, after=after, colour=_colour(number), top=top)
        plots.append(Plot(method, draw, SMALL, number, is_cut=limit is not None))
    return Panel("norms", "Norms of the table's rows, before and after", plots)


def _passkeys(comparison: Comparison) -> Panel | None:
    """A heat map of what each method found."""
    plots = []
    for number, row in enumerate(comparison.rows):
        if (passkey := row.final.evaluation.passkey) is not None and passkey.is_above_chance:
            draw = partial(figures.draw_passkey, passkey=passkey, learned=comparison.max_len_before)
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
