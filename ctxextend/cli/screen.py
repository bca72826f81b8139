"""An inspection as lines for a terminal."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ctxextend.cli.chart import Curve, Pieces, draw, is_logarithmic
from ctxextend.inspection.comparing import Shown, short_names, tables_by_part
from ctxextend.inspection.limits import ClientLimit, Limit
from ctxextend.inspection.reports import Inspection, TableReport
from ctxextend.tables.rownumbers import range_words, ranges

__all__ = ["inspection_lines", "row_lines"]

NARROWEST_COLUMN = 16
CLIENT_MARGIN = 22
NARROWEST_TEXT = 18
CHART_LINES = 8
# Findings of one kind that are told one by one.
TOLD = 5
# What stands in front of a model's name.
LOOK_AT = "Look at, in "


def inspection_lines(inspections: Sequence[Inspection], width: int, *, unicode: bool) -> Iterator[Pieces]:
    """Yield the screen: tables of the same part side by side, then what each model's folder says of its length.

    Args:
        inspections: What was looked at.
        width: Characters of a line.
        unicode: Whether charts may use more than ASCII.
    """
    names = {id_: _end(name, width - len(LOOK_AT)) for id_, name in short_names(inspections).items()}
    for group in tables_by_part(inspections):
        yield from _table_lines(group, names, width, unicode=unicode)
    for inspection in inspections:
        title = f"Limits of {names[id(inspection)]}" if len(inspections) > 1 else "Limits"
        yield from _limit_lines(inspection, title, width)


def _table_lines(group: list[Shown], names: dict[int, str], width: int, *, unicode: bool) -> Iterator[Pieces]:
    for inspection, table in group:
        yield from _what(inspection, table, width)
    yield []
    for pair in [group] if len(group) <= 2 else [[shown] for shown in group]:
        yield from _profile(pair, names if len(group) > 1 else {}, width, unicode=unicode)
    yield []
    if len(group) == 1:
        yield from _labelled(_figures(group[0][1]), width)
    else:
        yield from _columns(group, names, width)
    yield []
    for inspection, table in group:
        yield [("Look at" if len(group) == 1 else f"{LOOK_AT}{names[id(inspection)]}", "title")]
        for finding in _findings(table):
            yield from _wrapped("  ", finding, width)
    yield []


def _what(inspection: Inspection, table: TableReport, width: int) -> Iterator[Pieces]:
    part = f", {table.part}" if table.part else ""
    made = f", made by {inspection.method}" if inspection.method and table.new_rows else ""
    yield [(inspection.source, "title"), (f" ({inspection.family}{part}{made})", "")]
    ahead = table.rows - table.offset - table.positions
    parts = [f"{table.offset} offset"] * bool(table.offset) + [f"{table.positions} positions"]
    parts += [f"{ahead} ahead"] * bool(ahead)
    text = (
        f"{table.name} in {table.file}: {table.rows} rows = {' + '.join(parts)}, {table.hidden_size} wide, "
        f"{table.dtype}, {table.bytes:,} bytes, {100 * table.share:.2g} % of {inspection.parameters:,} parameters"
    )
    yield from _wrapped("", text, width)


def _profile(shown: list[Shown], names: dict[int, str], width: int, *, unicode: bool) -> Iterator[Pieces]:
    """Yield the norms over the positions as a chart, with a key to what is what, by names where there are any."""
    curves = [_curve(table, second=number > 0) for number, (_, table) in enumerate(shown)]
    marks = ("\u28ff", "\u2588") if unicode else ("*", "o")
    parts = [[("Norm of each row, by position", "title"), (" (logarithmic)" * is_logarithmic(curves), "")]]
    for (inspection, table), mark, style in zip(shown, marks, ("learned", "second"), strict=False):
        name = names.get(id(inspection))
        parts += [[(f"  {mark} {name}", style)]] if name else []
        parts += _key(table, style)
    yield from _flowed(parts, width)
    yield from draw(curves, width, CHART_LINES, unicode=unicode)
    for inspection, table in shown:
        if table.new_rows:
            origin = f"{names[id(inspection)]}: " if names else ""
            yield from _wrapped("", f"{origin}{_origins(table)}", width, "faint")


def _curve(table: TableReport, *, second: bool) -> Curve:
    learned, new = ("second", "second new") if second else ("learned", "new")
    return Curve(
        table.stats.norms.tolist(),
        table.offset_norms.tolist(),
        lambda position: new if table.is_new(position) else learned,
    )


def _key(table: TableReport, style: str) -> Iterator[Pieces]:
    """Yield what the colours of a curve mean."""
    if table.new_rows:
        yield [("  learned", style), (" new", "new")]
    if table.offset:
        yield [(f"  {table.offset} offset row{'s' * (table.offset > 1)} in front", "offset")]


def _flowed(parts: Iterable[Pieces], width: int) -> Iterator[Pieces]:
    """Yield parts behind one another, in as many lines as that takes."""
    line: Pieces = []
    for part in parts:
        if line and sum(len(text) for text, _ in (*line, *part)) > width:
            yield line
            line = []
        line = [*line, *part]
    yield line


def _origins(table: TableReport) -> str:
    """Say which positions are new."""
    new = ", ".join(range_words(start - table.offset, stop - table.offset) for start, stop in table.new_rows or ())
    return f"new positions: {new}; the others were learned"


def _figures(table: TableReport) -> Iterator[tuple[str, str]]:
    """Yield the table's figures in a few lines, each with its label."""
    stats = table.stats
    norms, cosines = stats.finite_norms, stats.cosines[~np.isnan(stats.cosines)]
    if norms.size:
        low, middle, high = norms.min(), np.median(norms), norms.max()
        yield (
            "norms",
            f"min {low:.3g}, median {middle:.3g}, max {high:.3g}, coefficient of variation {stats.norm_variation:.3g}",
        )
    worst = stats.worst_neighbours
    if worst is not None:
        yield (
            "neighbours",
            f"cosine to the next row: median {np.median(cosines):.3g}, mean {cosines.mean():.3g}, "
            f"worst {cosines.min():.3g} ({worst} to {worst + 1})",
        )
    if stats.components:
        rank = min(len(stats.norms), table.hidden_size)
        yield (
            "spectrum",
            f"effective rank {stats.effective_rank:.1f} of {rank}; {stats.components_for(0.95)} components hold 95 %",
        )
        yield from zip(("periods", *[""] * len(stats.components)), _periods(table), strict=False)
    yield "mean row", f"{stats.mean_norm:.3g} from zero"


def _periods(table: TableReport) -> Iterator[str]:
    for number, component in enumerate(table.stats.components, 1):
        longer = " (longer than the table)" if component.period > len(table.stats.norms) else ""
        yield (
            f"component {number} ({100 * component.share:.0f} %) {component.period:.0f} positions{longer}, "
            f"fits {100 * component.fit:.0f} %"
        )


def _columns(group: list[Shown], names: dict[int, str], width: int) -> Iterator[Pieces]:
    """Yield the figures of several tables, one column each, and as many columns side by side as fit."""
    columns = [(names[id(inspection)], dict(_short_figures(table))) for inspection, table in group]
    labels = list(dict.fromkeys(label for _, figures in columns for label in figures))
    margin = max(map(len, labels)) + 1
    fitting = min(max((width - margin) // NARROWEST_COLUMN, 1), len(columns))
    room = max((width - margin) // fitting, NARROWEST_COLUMN)
    for start in range(0, len(columns), fitting):
        beside = columns[start : start + fitting]
        yield [(" " * margin, ""), *((f"{_end(name, room - 2):>{room}}", "title") for name, _ in beside)]
        for label in labels:
            yield [(f"{label:<{margin}}", "label"), *((f"{found.get(label, '-'):>{room}}", "") for _, found in beside)]


def _short_figures(table: TableReport) -> Iterator[tuple[str, str]]:
    stats = table.stats
    norms, cosines = stats.finite_norms, stats.cosines[~np.isnan(stats.cosines)]
    yield "positions", str(table.positions)
    if norms.size:
        yield "norm min", f"{norms.min():.3g}"
        yield "norm median", f"{np.median(norms):.3g}"
        yield "norm max", f"{norms.max():.3g}"
        yield "norm variation", f"{stats.norm_variation:.3g}"
    if cosines.size:
        yield "cosine to next, median", f"{np.median(cosines):.3g}"
        yield "cosine to next, mean", f"{cosines.mean():.3g}"
        yield "cosine to next, worst", f"{cosines.min():.3g} at {stats.worst_neighbours}"
    yield "effective rank", f"{stats.effective_rank:.1f}"
    yield "components for 95 %", str(stats.components_for(0.95))
    for number, component in enumerate(stats.components, 1):
        yield f"period of component {number}", f"{component.period:.0f} ({100 * component.fit:.0f} % fit)"
    yield "mean row from zero", f"{stats.mean_norm:.3g}"


def _findings(table: TableReport) -> Iterator[str]:
    """Yield what is unusual in a table, the gravest first."""
    found = list(_kinds(table))
    yield from found or ["nothing unusual: no row stands out, is empty, repeated or untrained, and there is no seam"]


def _kinds(table: TableReport) -> Iterator[str]:
    stats, repeated = table.stats, table.repetition
    if stats.nonfinite:
        yield f"NaN or infinity at {ranges(stats.nonfinite)}"
    if stats.zeros:
        yield f"all zero at {ranges(stats.zeros)}"
    if repeated.period:
        whole = repeated.start == 0 and repeated.stop == len(stats.norms)
        where = "" if whole else f" over {range_words(repeated.start, repeated.stop)}"
        yield f"tiled with period {repeated.period}, {repeated.copies:.4g} copies{where}"
    for group in repeated.groups[:TOLD]:
        yield f"the same row stands at {ranges(group)}"
    if len(repeated.groups) > TOLD:
        yield f"and {len(repeated.groups) - TOLD} more groups of equal rows"
    for deviation in dict.fromkeys(table.untrained.values()):
        rows = [row for row, fits in table.untrained.items() if fits == deviation]
        what = f"({len(rows)} row{'s' * (len(rows) > 1)} as an initialiser of std {deviation:g} leaves them)"
        yield f"untrained by the look of it: {ranges(rows)} {what}"
    for length, positions in table.seams.items():
        yield f"seam: the table jumps at {_numbers(positions)}{_multiples(length, positions)}"
    yield from _outliers(table)


def _multiples(length: int, positions: tuple[int, ...]) -> str:
    return f", multiples of {length}" if len(positions) > 1 else ", where a shorter table may have ended"


def _outliers(table: TableReport) -> Iterator[str]:
    """Yield the rows that stand out; of a tiled table those of the first tile, since the others are its copies."""
    period = table.repetition.period
    start = table.repetition.start
    own = {row: why for row, why in table.outliers.items() if not period or row < start + period}
    for row, why in list(own.items())[:TOLD]:
        yield f"position {row} stands out: {why}"
    if len(own) > TOLD:
        yield f"and {len(own) - TOLD} more: {ranges(list(own)[TOLD:])}"


def _limit_lines(inspection: Inspection, title: str, width: int) -> Iterator[Pieces]:
    yield [(title, "title")]
    rows = [_limit_row(limit) for limit in inspection.limits]
    sizes = [max(len(row[column]) for row in rows) for column in range(3)]
    for limit, row in zip(inspection.limits, rows, strict=True):
        mark, style = ("  ", "") if limit.agrees else ("! ", "wrong")
        cells = "  ".join(f"{cell:<{size}}" for cell, size in zip(row[:3], sizes, strict=True))
        yield [(f"{mark}{cells}  {row[3]}".rstrip(), style)]
        if limit.why:
            yield from _wrapped("    ", limit.why, width, style)
    for client in inspection.clients:
        yield from _labelled([(client.client, _client_text(client))], width, CLIENT_MARGIN)
    for mend in dict.fromkeys(limit.mend for limit in inspection.limits if limit.mend):
        yield [("mend: ", "label"), (mend, "command")]


def _limit_row(limit: Limit) -> tuple[str, str, str, str]:
    key = "rows less offset" if limit.key == limit.table else limit.key
    value = "unset" if limit.tokens is None else str(limit.tokens)
    obeyed = "read by nobody" if limit.client == "none" else limit.client
    return limit.file, key, value, obeyed


def _client_text(client: ClientLimit) -> str:
    if client.beyond == "not loaded":
        return f"the model does not load ({client.decided_by})"
    beyond = {
        "cut": "longer texts are cut",
        "fails": "longer texts fail in the model",
        "last position": "the end of longer texts shares the last position",
        "not cut": "texts are not cut",
    }[client.beyond]
    length = "any length" if client.tokens is None else f"{client.tokens} tokens"
    return f"{length}; {beyond} ({client.decided_by})"


def row_lines(inspections: Sequence[Inspection], rows: slice) -> Iterator[Pieces]:
    """Yield the figures of single rows as a table.

    Args:
        inspections: What was looked at.
        rows: Which rows of each tensor, offset rows included.
    """
    for inspection in inspections:
        for table in inspection.tables:
            yield [(f"{inspection.source} {table.name}", "title")]
            yield [("  row  position       norm  cosine to next  origin   remarks", "label")]
            for figures in table.row_figures(rows):
                yield [(_row_text(figures), "wrong" if figures["remarks"] else "")]


def _row_text(figures: Mapping[str, Any]) -> str:
    position, norm, cosine = (figures[key] for key in ("position", "norm", "cosine_to_next"))
    where = "-" if position is None else str(position)
    size, turn = "-" if norm is None else f"{norm:.4g}", "-" if cosine is None else f"{cosine:.4f}"
    remarks = "; ".join(figures["remarks"])
    return f"{figures['row']:>5}  {where:>8}  {size:>9}  {turn:>14}  {figures['origin']:<7}  {remarks}".rstrip()


def _labelled(items: Iterable[tuple[str, str]], width: int, margin: int = 12) -> Iterator[Pieces]:
    for label, text in items:
        lines = textwrap.wrap(text, max(width - margin, NARROWEST_TEXT), break_on_hyphens=False) or [""]
        yield [(f"{label:<{margin}}", "label"), (lines[0], "")]
        yield from ([(" " * margin + line, "")] for line in lines[1:])


def _wrapped(indent: str, text: str, width: int, style: str = "") -> Iterator[Pieces]:
    behind = indent + "  "
    # Hyphens stand in ranges and names, which stay whole.
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=behind, break_on_hyphens=False)
    yield from ([(line, style)] for line in lines)


def _numbers(values: Sequence[int]) -> str:
    more = f" and {len(values) - 2 * TOLD} more" if len(values) > 2 * TOLD else ""
    return ", ".join(map(str, values[: 2 * TOLD])) + more


def _end(text: str, room: int) -> str:
    return text if len(text) <= room else f"...{text[len(text) - room + 3 :]}"
