"""The panels that show each method in a small picture of its own: norms of the table's rows, and passkeys."""

import math
from collections.abc import Iterable, Sequence

from ctxextend.comparison.reports import Comparison, Row
from ctxextend.evaluation.evaluation_result import Passkey
from ctxextend.report.axes import Axis, Frame, places, round_numbers, top
from ctxextend.report.charts import Said, cells, curve, line_class, picture, rule, series, swatch
from ctxextend.report.markup import DASH, Markup, element
from ctxextend.report.page_panels import CUT, Panel, number_table
from ctxextend.report.words import percent

__all__ = ["norm_panel", "passkey_panel"]

# Stretches of positions of which a table of norms has the means, and of which a curve has its lowest and highest point.
STRETCHES, POINTS = 16, 256
# The share of norms that a picture shows whole.
USUAL = 0.98


def norm_panel(comparison: Comparison) -> Panel | None:
    """Return the norms of each method's rows over those of the model's own; None where there are none."""
    drawn = [(number, row) for number, row in enumerate(comparison.rows) if row.norms]
    if not drawn:
        return None
    everything = (norm for norms in (comparison.norms, *(row.norms for _, row in drawn)) for norm in norms)
    finite = _finite(everything) or [0.0]
    _, high, is_cut = top([0.0, *finite], [0.0, finite[int(USUAL * (len(finite) - 1))]])
    y = round_numbers("", 0.0, high, 3)
    pictures = [_multiple(number, row.method, _norms(comparison, number, row, y)) for number, row in drawn]
    caption = (
        "Euclidean norm of each row of the position table, by position. Wide and grey: the model's own rows; coloured: "
        f"the method's. The broken line stands at {comparison.max_len_before:,}, where new positions begin."
    )
    numbers = _norm_numbers(comparison, [row for _, row in drawn])
    title = "Norms of the table's rows, before and after"
    return Panel("norms", title, caption + CUT * is_cut, element("div", *pictures, class_="multiples"), numbers)


def _multiple(number: int, name: str, drawn: Markup) -> Markup:
    return element("figure", element("figcaption", swatch(line_class(number)), " ", name), drawn, data_series=number)


def _norms(comparison: Comparison, number: int, row: Row, y: Axis) -> Markup:
    before, after = comparison.max_len_before, len(row.norms)
    ticks = tuple(float(tick) for tick in dict.fromkeys((0, min(before, after), after)))
    frame = Frame(Axis("", 0.0, float(max(after, 1)), ticks), y, 220, 130, (8, 16, 26, 34))
    title = f"Norms of the rows of {row.method}"
    own = element("g", curve(frame, _thinned(comparison.norms)), class_="own")
    new = series(number, curve(frame, _thinned(row.norms)), leads=True)
    told = f"{_range('Learned rows', comparison.norms)} {_range(f'Rows 0 to {before - 1:,}', row.norms[:before])}"
    told += f" {_range(f'Rows {before:,} to {after - 1:,}', row.norms[before:])}" * (after > before)
    return picture(frame, Said(f"norms-{number}", title, told), own, rule(frame, before), new)


def _thinned(norms: Sequence[float]) -> list[tuple[float, float]]:
    """Return a curve: every norm, or of many the lowest and the highest of each stretch."""
    if len(norms) <= 2 * POINTS:
        return [(place + 0.5, norm) for place, norm in enumerate(norms)]
    found = []
    for start, stop in _stretches(len(norms), POINTS):
        some = range(start, stop)
        ends = sorted({min(some, key=norms.__getitem__), max(some, key=norms.__getitem__)})
        found += [(place + 0.5, norms[place]) for place in ends]
    return found


def _stretches(length: int, count: int) -> list[tuple[int, int]]:
    width = max(-(-length // count), 1)
    return [(start, min(start + width, length)) for start in range(0, length, width)]


def _range(name: str, norms: Sequence[float]) -> str:
    finite = _finite(norms)
    if not finite:
        return f"{name}: no finite norms."
    return f"{name}: from {finite[0]:.3g} to {finite[-1]:.3g}, half of them below {finite[len(finite) // 2]:.3g}."


def _finite(norms: Iterable[float]) -> list[float]:
    """Return the finite ones, the lowest first."""
    return sorted(norm for norm in norms if math.isfinite(norm))


def _norm_numbers(comparison: Comparison, rows: Sequence[Row]) -> Markup:
    stretches = _stretches(max(len(row.norms) for row in rows), STRETCHES)
    heads = ["method", "lowest", "highest", *(f"{start:,}{DASH}{stop - 1:,}" for start, stop in stretches)]
    tables = [("the model's own", comparison.norms), *((row.method, row.norms) for row in rows)]
    found = [[name, *_norm_figures(norms, stretches)] for name, norms in tables]
    return number_table("Norms of the table's rows: the lowest, the highest, and means over positions", heads, found)


def _norm_figures(norms: Sequence[float], stretches: Sequence[tuple[int, int]]) -> list[str]:
    parts = [norms[start:stop] for start, stop in stretches]
    finite = _finite(norms) or [math.nan]
    figures = [finite[0], finite[-1]]
    figures += [math.fsum(part) / len(part) if part else math.nan for part in parts]
    return ["-" if math.isnan(figure) else f"{figure:.4g}" for figure in figures]


def passkey_panel(comparison: Comparison) -> Panel | None:
    """Return a heat map of what each method found; None where nothing was looked for."""
    found = [(number, row, row.final.evaluation.passkey) for number, row in enumerate(comparison.rows)]
    asked = [(number, row, passkey) for number, row, passkey in found if passkey is not None and passkey.lengths]
    if not asked:
        return None
    maps = [_multiple(number, row.method, _map(comparison, number, row, passkey)) for number, row, passkey in asked]
    first = asked[0][2]
    caption = (
        "Share of numbers found again, in percent. Across: tokens of the text; down: how deep in it the number stands, "
        f"from its start (0) to its end (100). Asked by {first.how}, {first.trials} trials a cell; guessing finds "
        f"{100 * first.chance:.3g} %. Texts right of the broken line are longer than the original reads."
    )
    numbers = _passkey_numbers([(row.method, passkey) for _, row, passkey in asked])
    return Panel("passkey", "Passkeys", caption, element("div", *maps, class_="multiples"), numbers)


def _map(comparison: Comparison, number: int, row: Row, passkey: Passkey) -> Markup:
    depths = [f"{100 * depth:.3g}" for depth in passkey.depths]
    x, y = places("", [str(length) for length in passkey.lengths]), places("", depths[::-1])
    frame = Frame(x, y, 220, 150, (4, 8, 26, 34))
    within = sum(length <= comparison.max_len_before for length in passkey.lengths)
    edge = [rule(frame, within)] * (0 < within < len(passkey.lengths))
    said = Said(f"passkey-{number}", f"Passkeys that {row.method} finds", _found(passkey))
    return picture(frame, said, cells(frame, passkey.found), *edge)


def _found(passkey: Passkey) -> str:
    """Say how many were found of each length of text, over all depths."""
    means = [(length, _mean(shares)) for length, shares in zip(passkey.lengths, passkey.found, strict=True)]
    known = [f"{percent(mean)} of texts of {length:,} tokens" for length, mean in means if mean is not None]
    return f"Over all depths: {', '.join(known) or '0 measured'}."


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return math.fsum(known) / len(known) if known else None


def _passkey_numbers(asked: Sequence[tuple[str, Passkey]]) -> Markup:
    lengths = asked[0][1].lengths
    rows = [
        [name, f"{100 * depth:.3g} %", *(percent(shares[place]) for shares in passkey.found)]
        for name, passkey in asked
        for place, depth in enumerate(passkey.depths)
    ]
    heads = ["method", "depth", *(f"{length:,}" for length in lengths)]
    return number_table("Numbers found again, by depth and by tokens of the text", heads, rows)
