"""An inspection as lines for a terminal."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ctxextend.cli.output import Pieces, Screen
from ctxextend.cli.plots import Curve, chart
from ctxextend.cli.tables import Cell, end_of, labelled, table, wrapped
from ctxextend.inspection.table_report import ClientLimit, Inspection, Shown, TableReport, short_names, tables_by_part
from ctxextend.tables.stats import describe_range, describe_rows

TRAINED = {"new": ", new rows trained", "positions": ", table trained", "all": ", all trained"}
# What is in front of a model's name, and beside several of them.
LOOK_AT = "Look at, in "
LONGEST_LABEL = 24
CLIENT_MARGIN = 22

# Findings of one kind that are told one by one.
TOLD = 5


def inspection_lines(inspections: Sequence[Inspection], screen: Screen) -> Iterator[Pieces]:
    """Yield tables of the same part side by side, then what each model's folder says of its length."""
    names = {id_: end_of(name, screen.width - len(LOOK_AT)) for id_, name in short_names(inspections).items()}
    for group in tables_by_part(inspections):
        yield from _table_lines(group, names, screen)
    for inspection in inspections:
        title = f"Limits of {names[id(inspection)]}" if len(inspections) > 1 else "Limits"
        yield from _limit_lines(inspection, title, screen.width)


def _table_lines(group: list[Shown], names: dict[int, str], screen: Screen) -> Iterator[Pieces]:
    for inspection, shown in group:
        yield from _facts(inspection, shown, screen.width)
    yield []
    for pair in [group] if len(group) <= 2 else [[one] for one in group]:
        yield from _norms(pair, names if len(group) > 1 else {}, screen)
    yield []
    if len(group) == 1:
        yield from labelled(_figures(group[0][1]), screen.width)
    else:
        yield from _side_by_side(group, names, screen.width)
    yield []
    for inspection, shown in group:
        yield [("Look at" if len(group) == 1 else f"{LOOK_AT}{names[id(inspection)]}", "title")]
        nothing = "nothing unusual: no row stands out, is empty or repeated, and there is no seam"
        for finding in list(_findings(shown)) or [nothing]:
            yield from wrapped(finding, screen.width, indent="  ")
    yield []


def _facts(inspection: Inspection, shown: TableReport, width: int) -> Iterator[Pieces]:
    """Yield which table it is, and how large."""
    part = f", {shown.part}" if shown.part else ""
    made = f", made by {inspection.method}" if inspection.method and shown.new_rows else ""
    trained = TRAINED[inspection.trainable] if inspection.trainable else ""
    yield [(inspection.source, "title"), (f" ({inspection.family}{part}{made}{trained})", "")]
    ahead = shown.rows - shown.reserved_rows - shown.positions
    parts = [f"{shown.reserved_rows} offset"] * bool(shown.reserved_rows) + [f"{shown.positions} positions"]
    parts += [f"{ahead} ahead"] * bool(ahead)
    text = (
        f"{shown.name} in {shown.file}: {shown.rows} rows = {' + '.join(parts)}, {shown.hidden_size} wide, "
        f"{shown.dtype}, {shown.bytes:,} bytes, {100 * shown.share:.3g} % of {inspection.parameters:,} parameters"
    )
    yield from wrapped(text, width)


def _norms(pair: list[Shown], names: dict[int, str], screen: Screen) -> Iterator[Pieces]:
    """Yield the norms over the positions as a chart, with a key to what is what, by names where there are any."""
    curves = []
    for (inspection, shown), learned in zip(pair, ("learned", "second"), strict=False):
        styles = ["new" if shown.is_new(position) else learned for position in range(len(shown.stats.norms))]
        key: list[Pieces] = []
        if shown.new_rows:
            key.append([("  learned", learned), (" new", "new")])
        if shown.reserved_rows:
            key.append([(f"  {shown.reserved_rows} offset row{'s' * (shown.reserved_rows > 1)} in front", "offset")])
        name = names.get(id(inspection), "")
        curves.append(Curve(shown.stats.norms.tolist(), styles, shown.reserved_norms.tolist(), name, tuple(key)))
    yield from chart("Norm of each row, by position", "", curves, "both", screen)
    for inspection, shown in pair:
        if shown.new_rows:
            spans = [(start - shown.reserved_rows, stop - shown.reserved_rows) for start, stop in shown.new_rows]
            text = f"new positions: {', '.join(describe_range(*span) for span in spans)}; the others were learned"
            if spans == [(0, len(shown.stats.norms))]:
                text = "every position is new"
            yield from wrapped(f"{names[id(inspection)]}: {text}" if names else text, screen.width, "faint")


def _figures(shown: TableReport) -> Iterator[tuple[str, str]]:
    """Yield a table's figures in a few lines, each with its label."""
    stats = shown.stats
    norms, cosines = stats.finite_norms, stats.cosines[~np.isnan(stats.cosines)]
    if norms.size:
        low, middle, high = norms.min(), np.median(norms), norms.max()
        variation = f"coefficient of variation {stats.norm_variation:.3g}"
        yield "norms", f"min {low:.3g}, median {middle:.3g}, max {high:.3g}, {variation}"
    worst = stats.worst_neighbours
    if worst is not None:
        lowest = f"worst {cosines.min():.3g} ({worst} to {worst + 1})"
        yield "neighbours", f"cosine to next: median {np.median(cosines):.3g}, mean {cosines.mean():.3g}, {lowest}"
    if stats.components:
        rank, held = min(len(stats.norms), shown.hidden_size), stats.components_for(0.95)
        seen = len(stats.eigenvalues)
        of = f"{rank}" if stats.nonfinite or seen >= rank else f"{seen} (from so many rows)"
        yield "spectrum", f"effective rank {stats.effective_rank:.1f} of {of}; {held} components hold 95 %"
        length = len(stats.norms)
        periods = ", ".join(f"{one.period:.0f}{'*' * (one.period > length)}" for one in stats.components)
        yield "periods", f"{periods} positions, for {_percent(one.share for one in stats.components)} of the variance"
        longer = "; *: longer than the table" if any(one.period > length for one in stats.components) else ""
        yield "", f"a sinusoid fits {_percent(one.fit for one in stats.components)} of each{longer}"
    yield "mean row", f"{stats.mean_norm:.3g} from zero"


def _percent(shares: Iterable[float]) -> str:
    return f"{', '.join(f'{100 * share:.0f}' for share in shares)} %"


def _side_by_side(group: list[Shown], names: dict[int, str], width: int) -> Iterator[Pieces]:
    """Yield the figures of several tables, one column each."""
    columns = [dict(_short_figures(shown)) for _, shown in group]
    labels = dict.fromkeys(label for column in columns for label in column)
    header = ["", *(end_of(names[id(inspection)], width - LONGEST_LABEL - 2) for inspection, _ in group)]
    rows: list[list[Cell]] = [[(label, "label"), *(column.get(label, "-") for column in columns)] for label in labels]
    yield from table(header, rows, width)


def _short_figures(shown: TableReport) -> Iterator[tuple[str, str]]:
    """Yield a table's figures one by one, each with its label."""
    stats = shown.stats
    norms, cosines = stats.finite_norms, stats.cosines[~np.isnan(stats.cosines)]
    yield "positions", str(shown.positions)
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


def _findings(shown: TableReport) -> Iterator[str]:
    """Yield what is unusual in a table, the gravest first."""
    stats, repeated = shown.stats, shown.repetition
    if stats.nonfinite:
        yield f"NaN or infinity at {describe_rows(stats.nonfinite)}"
    if stats.zeros:
        yield f"all zero at {describe_rows(stats.zeros)}"
    if repeated.period:
        whole = repeated.start == 0 and repeated.stop == len(stats.norms)
        where = "" if whole else f" over {describe_range(repeated.start, repeated.stop)}"
        yield f"tiled with period {repeated.period}, {repeated.copies:.4g} copies{where}"
    for same in repeated.groups[:TOLD]:
        yield f"the same row stands at {describe_rows(same)}"
    if len(repeated.groups) > TOLD:
        yield f"and {len(repeated.groups) - TOLD} more groups of equal rows"
    for deviation in dict.fromkeys(shown.untrained.values()):
        rows = [row for row, fits in shown.untrained.items() if fits == deviation]
        what = f"({len(rows)} row{'s' * (len(rows) > 1)} as an initialiser of std {deviation:g} leaves them)"
        yield f"untrained by the look of it: {describe_rows(rows)} {what}"
    for length, positions in shown.seams.items():
        numbers = ", ".join(map(str, positions[: 2 * TOLD]))
        more = f" and {len(positions) - 2 * TOLD} more" if len(positions) > 2 * TOLD else ""
        why = f"multiples of {length}" if len(positions) > 1 else "where a shorter table may have ended"
        yield f"seam: the table jumps at {numbers}{more}, {why}"
    # Of a tiled table the outliers of the first tile, since the others are its copies.
    first = repeated.start + repeated.period if repeated.period else len(stats.norms)
    outliers = [(row, why) for row, why in shown.outliers.items() if row < first]
    told = len(outliers) if len(outliers) <= TOLD + 1 else TOLD  # what is left out takes a line as well
    yield from (f"outlier {row}: {why}" for row, why in outliers[:told])
    if len(outliers) > told:
        yield f"outliers too: {describe_rows([row for row, _ in outliers[told:]])}"


def _limit_lines(inspection: Inspection, title: str, width: int) -> Iterator[Pieces]:
    yield [(title, "title")]
    parts = {shown.name: f"{shown.part} " * bool(shown.part) for shown in inspection.tables}
    styles = ["" if limit.agrees else "wrong" for limit in inspection.limits]
    rows = []
    for limit in inspection.limits:
        is_table = limit.key == limit.table
        value = "unset" if limit.tokens is None else str(limit.tokens)
        if isinstance(limit.value, int) and not is_table and limit.value != limit.tokens:
            value = f"{limit.value} = {value}"
        key = f"{parts.get(limit.table, '')}rows less offset" if is_table else limit.key
        obeyed = "read by nobody" if limit.client == "none" else limit.client
        rows.append([f"{'  ' if limit.agrees else '! '}{limit.file}", key, value, obeyed])
    for limit, style, line in zip(inspection.limits, styles, table((), rows, left=range(4)), strict=True):
        yield [("".join(text for text, _ in line).rstrip(), style)]
        if limit.why:
            yield from wrapped(limit.why, width, style, indent="    ")
    if inspection.clients:
        yield [("What each client reads, in tokens", "title")]
    for client in inspection.clients:
        yield from labelled([(client.client, _client_text(client))], width, CLIENT_MARGIN)
    for mend in dict.fromkeys(limit.mend for limit in inspection.limits if limit.mend):
        yield [("mend: ", "label"), (mend, "command")]


def _client_text(client: ClientLimit) -> str:
    """Say what a client makes of a text, and which place decides it."""
    if client.beyond == "not loaded":
        return f"the model does not load: {client.decided_by}"
    beyond = {
        "cut": f"{client.tokens}, then cut",
        "fails": f"{client.tokens}, longer texts fail",
        "last position": f"{client.tokens}, and the rest of longer texts shares the last position",
        "not cut": "any length, not cut",
    }[client.beyond]
    return f"{beyond}: {client.decided_by}"


def row_lines(inspections: Sequence[Inspection], rows: slice) -> Iterator[Pieces]:
    """Yield the figures of single rows as a table.

    Args:
        inspections: What was looked at.
        rows: Which rows of each tensor, offset rows included.
    """
    for inspection in inspections:
        for shown in inspection.tables:
            yield [(f"{inspection.source} {shown.name}", "title")]
            cells = []
            for row in shown.row_figures(rows):
                remarks = "; ".join(row["remarks"])
                position, norm, cosine = row["position"], row["norm"], row["cosine_to_next"]
                texts = [
                    f"  {row['row']}",
                    "-" if position is None else str(position),
                    "-" if norm is None else f"{norm:.4g}",
                    "-" if cosine is None else f"{cosine:.4f}",
                    row["origin"],
                    remarks,
                ]
                cells.append([(text, "wrong" if remarks else "") for text in texts])
            header = ("  row", "position", "norm", "cosine to next", "origin", "remarks")
            yield from table(header, cells, left=(4, 5))
