"""An inspection as lines for a terminal."""

from collections.abc import Iterator, Sequence

from ctxextend.cli.chart import SHARED, WHOLE_SCREEN, Curve, Pieces, chart_height, draw, is_logarithmic, key_marks
from ctxextend.cli.lines import end_of, flowed, labelled, wrapped
from ctxextend.cli.wording import client_text, figures, findings, limit_cells, origins, row_text, short_figures
from ctxextend.inspection.comparing import Shown, short_names, tables_by_part
from ctxextend.inspection.reports import Inspection, TableReport

__all__ = ["inspection_lines", "row_lines"]

NARROWEST_COLUMN = 16
CLIENT_MARGIN = 22
TRAINED = {"new": ", new rows trained", "positions": ", table trained", "all": ", all trained"}
# What stands in front of a model's name.
LOOK_AT = "Look at, in "


def inspection_lines(
    inspections: Sequence[Inspection], width: int, *, unicode: bool, screen: int = WHOLE_SCREEN
) -> Iterator[Pieces]:
    """Yield the screen: tables of the same part side by side, then what each model's folder says of its length.

    Args:
        inspections: What was looked at.
        width: Characters of a line.
        unicode: Whether charts may use more than ASCII.
        screen: Lines of the screen: charts are lower on a small one.
    """
    height = chart_height(screen)
    names = {id_: end_of(name, width - len(LOOK_AT)) for id_, name in short_names(inspections).items()}
    for group in tables_by_part(inspections):
        yield from _table_lines(group, names, (width, height), unicode=unicode)
    for inspection in inspections:
        title = f"Limits of {names[id(inspection)]}" if len(inspections) > 1 else "Limits"
        yield from _limit_lines(inspection, title, width)


def _table_lines(
    group: list[Shown], names: dict[int, str], size: tuple[int, int], *, unicode: bool
) -> Iterator[Pieces]:
    width = size[0]
    for inspection, table in group:
        yield from _what(inspection, table, width)
    yield []
    for pair in [group] if len(group) <= 2 else [[shown] for shown in group]:
        yield from _profile(pair, names if len(group) > 1 else {}, size, unicode=unicode)
    yield []
    if len(group) == 1:
        yield from labelled(figures(group[0][1]), width)
    else:
        yield from _columns(group, names, width)
    yield []
    for inspection, table in group:
        yield [("Look at" if len(group) == 1 else f"{LOOK_AT}{names[id(inspection)]}", "title")]
        for finding in findings(table):
            yield from wrapped("  ", finding, width)
    yield []


def _what(inspection: Inspection, table: TableReport, width: int) -> Iterator[Pieces]:
    part = f", {table.part}" if table.part else ""
    made = f", made by {inspection.method}" if inspection.method and table.new_rows else ""
    trained = TRAINED[inspection.trainable] if inspection.trainable else ""
    yield [(inspection.source, "title"), (f" ({inspection.family}{part}{made}{trained})", "")]
    ahead = table.rows - table.offset - table.positions
    parts = [f"{table.offset} offset"] * bool(table.offset) + [f"{table.positions} positions"]
    parts += [f"{ahead} ahead"] * bool(ahead)
    text = (
        f"{table.name} in {table.file}: {table.rows} rows = {' + '.join(parts)}, {table.hidden_size} wide, "
        f"{table.dtype}, {table.bytes:,} bytes, {100 * table.share:.3g} % of {inspection.parameters:,} parameters"
    )
    yield from wrapped("", text, width)


def _profile(shown: list[Shown], names: dict[int, str], size: tuple[int, int], *, unicode: bool) -> Iterator[Pieces]:
    """Yield the norms over the positions as a chart, with a key to what is what, by names where there are any."""
    width, height = size
    curves = [_curve(table, second=number > 0) for number, (_, table) in enumerate(shown)]
    marks = key_marks(unicode=unicode)
    parts = [[("Norm of each row, by position", "title"), (" (logarithmic)" * is_logarithmic(curves), "")]]
    for (inspection, table), mark, style in zip(shown, marks, ("learned", "second"), strict=False):
        name = names.get(id(inspection))
        parts += [[(f"  {mark} {name}", style)]] if name else []
        parts += _key(table, style)
    parts += [[(f"  {SHARED[not unicode]} both", "axis")]] * (len(shown) > 1)
    yield from flowed(parts, width)
    yield from draw(curves, width, height, unicode=unicode)
    for inspection, table in shown:
        if table.new_rows:
            origin = f"{names[id(inspection)]}: " if names else ""
            yield from wrapped("", f"{origin}{origins(table)}", width, "faint")


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


def _columns(group: list[Shown], names: dict[int, str], width: int) -> Iterator[Pieces]:
    """Yield the figures of several tables, one column each, and as many columns side by side as fit."""
    columns = [(names[id(inspection)], dict(short_figures(table))) for inspection, table in group]
    labels = list(dict.fromkeys(label for _, figures in columns for label in figures))
    margin = max(map(len, labels)) + 1
    fitting = min(max((width - margin) // NARROWEST_COLUMN, 1), len(columns))
    room = max((width - margin) // fitting, NARROWEST_COLUMN)
    for start in range(0, len(columns), fitting):
        beside = columns[start : start + fitting]
        yield [(" " * margin, ""), *((f"{end_of(name, room - 2):>{room}}", "title") for name, _ in beside)]
        for label in labels:
            yield [(f"{label:<{margin}}", "label"), *((f"{found.get(label, '-'):>{room}}", "") for _, found in beside)]


def _limit_lines(inspection: Inspection, title: str, width: int) -> Iterator[Pieces]:
    yield [(title, "title")]
    parts = {table.name: f"{table.part} " * bool(table.part) for table in inspection.tables}
    rows = [limit_cells(limit, parts.get(limit.table, "")) for limit in inspection.limits]
    sizes = [max(len(row[column]) for row in rows) for column in range(3)]
    for limit, row in zip(inspection.limits, rows, strict=True):
        mark, style = ("  ", "") if limit.agrees else ("! ", "wrong")
        cells = "  ".join(f"{cell:<{size}}" for cell, size in zip(row[:3], sizes, strict=True))
        yield [(f"{mark}{cells}  {row[3]}".rstrip(), style)]
        if limit.why:
            yield from wrapped("    ", limit.why, width, style)
    if inspection.clients:
        yield [("What each client reads, in tokens", "title")]
    for client in inspection.clients:
        yield from labelled([(client.client, client_text(client))], width, CLIENT_MARGIN)
    for mend in dict.fromkeys(limit.mend for limit in inspection.limits if limit.mend):
        yield [("mend: ", "label"), (mend, "command")]


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
            for row in table.row_figures(rows):
                yield [(row_text(row), "wrong" if row["remarks"] else "")]
