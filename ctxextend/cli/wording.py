"""What was found of tables and limits, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ctxextend.inspection.clients import ClientLimit
from ctxextend.inspection.limits import Limit
from ctxextend.inspection.reports import TableReport
from ctxextend.tables.stats import describe_range, describe_rows

__all__ = ["client_text", "figures", "findings", "limit_cells", "origins", "row_text", "short_figures"]

# Findings of one kind that are told one by one.
TOLD = 5


def origins(table: TableReport) -> str:
    """Say which positions are new."""
    spans = [(start - table.offset, stop - table.offset) for start, stop in table.new_rows or ()]
    if spans == [(0, len(table.stats.norms))]:
        return "every position is new"
    return f"new positions: {', '.join(describe_range(*span) for span in spans)}; the others were learned"


def figures(table: TableReport) -> Iterator[tuple[str, str]]:
    """Yield the table's figures in a few lines, each with its label."""
    stats = table.stats
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
        rank, held = min(len(stats.norms), table.hidden_size), stats.components_for(0.95)
        seen = len(stats.eigenvalues)
        of = f"{rank}" if stats.nonfinite or seen >= rank else f"{seen} (from so many rows)"
        yield "spectrum", f"effective rank {stats.effective_rank:.1f} of {of}; {held} components hold 95 %"
        yield from zip(("periods", ""), _periods(table), strict=True)
    yield "mean row", f"{stats.mean_norm:.3g} from zero"


def _periods(table: TableReport) -> Iterator[str]:
    """Yield the periods of the leading components, and how well sinusoids of these fit."""
    length, components = len(table.stats.norms), table.stats.components
    periods = ", ".join(f"{one.period:.0f}{'*' * (one.period > length)}" for one in components)
    yield f"{periods} positions, for {_percent([one.share for one in components])} of the variance"
    longer = "; *: longer than the table" if any(one.period > length for one in components) else ""
    yield f"a sinusoid fits {_percent([one.fit for one in components])} of each{longer}"


def _percent(shares: Sequence[float]) -> str:
    return f"{', '.join(f'{100 * share:.0f}' for share in shares)} %"


def short_figures(table: TableReport) -> Iterator[tuple[str, str]]:
    """Yield the table's figures one by one, each with its label, for columns beside each other."""
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


def findings(table: TableReport) -> Iterator[str]:
    """Yield what is unusual in a table, the gravest first."""
    found = list(_kinds(table))
    yield from found or ["nothing unusual: no row stands out, is empty or repeated, and there is no seam"]


def _kinds(table: TableReport) -> Iterator[str]:
    stats, repeated = table.stats, table.repetition
    if stats.nonfinite:
        yield f"NaN or infinity at {describe_rows(stats.nonfinite)}"
    if stats.zeros:
        yield f"all zero at {describe_rows(stats.zeros)}"
    if repeated.period:
        whole = repeated.start == 0 and repeated.stop == len(stats.norms)
        where = "" if whole else f" over {describe_range(repeated.start, repeated.stop)}"
        yield f"tiled with period {repeated.period}, {repeated.copies:.4g} copies{where}"
    for group in repeated.groups[:TOLD]:
        yield f"the same row stands at {describe_rows(group)}"
    if len(repeated.groups) > TOLD:
        yield f"and {len(repeated.groups) - TOLD} more groups of equal rows"
    for deviation in dict.fromkeys(table.untrained.values()):
        rows = [row for row, fits in table.untrained.items() if fits == deviation]
        what = f"({len(rows)} row{'s' * (len(rows) > 1)} as an initialiser of std {deviation:g} leaves them)"
        yield f"untrained by the look of it: {describe_rows(rows)} {what}"
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
    told = len(own) if len(own) <= TOLD + 1 else TOLD  # what is left out takes a line as well
    for row, why in list(own.items())[:told]:
        yield f"outlier {row}: {why}"
    if len(own) > told:
        yield f"outliers too: {describe_rows(list(own)[told:])}"


def limit_cells(limit: Limit, part: str = "") -> tuple[str, str, str, str]:
    """Return a limit's file, key, value and who obeys it; `part` stands in front of a table's rows."""
    key = f"{part}rows less offset" if limit.key == limit.table else limit.key
    value = "unset" if limit.tokens is None else str(limit.tokens)
    if isinstance(limit.value, int) and limit.key != limit.table and limit.value != limit.tokens:
        value = f"{limit.value} = {value}"
    obeyed = "read by nobody" if limit.client == "none" else limit.client
    return limit.file, key, value, obeyed


def client_text(client: ClientLimit) -> str:
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


def row_text(figures: Mapping[str, Any]) -> str:
    """Return the figures of one row, in columns."""
    position, norm, cosine = (figures[key] for key in ("position", "norm", "cosine_to_next"))
    where = "-" if position is None else str(position)
    size, turn = "-" if norm is None else f"{norm:.4g}", "-" if cosine is None else f"{cosine:.4f}"
    remarks = "; ".join(figures["remarks"])
    return f"{figures['row']:>5}  {where:>8}  {size:>9}  {turn:>14}  {figures['origin']:<7}  {remarks}".rstrip()


def _numbers(values: Sequence[int]) -> str:
    more = f" and {len(values) - 2 * TOLD} more" if len(values) > 2 * TOLD else ""
    return ", ".join(map(str, values[: 2 * TOLD])) + more
