"""`ctxextend inspect`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Console, Pieces
from ctxextend.cli.tables import MIN_WIDTH, Cell, Page
from ctxextend.errors import ResizeError, counted, size_text

if TYPE_CHECKING:
    from ctxextend.inspection.scheme_report import PositionReport, RopeReport
    from ctxextend.inspection.table_report import Inspection, ModelTable, TableReport

# The limit of a library, and what happens to longer inputs.
BEYOND = {
    "cut": "{}, longer inputs are truncated",
    "fails": "{}, longer inputs fail",
    "last position": "{}, tokens beyond share the last position",
    "more rows": "{}, transformers computes more rows for longer inputs",
    "untrained": "{}, longer inputs reach angles that were never trained",
    "any length": "{}, longer inputs run as well",
    "not cut": "no limit",
    "not loaded": "the model does not load",
}


def inspect(
    models: Annotated[
        list[str], options.model("Folders, weights files, bundled models (tiny-gpt2) or Hub ids.")
    ],
    rows: Annotated[
        str | None, options.basic("--rows A:B", "Print statistics of rows A to B-1.")
    ] = None,
    check: Annotated[
        bool, options.basic("--check", "Print only the verdict; exit 3 if limits disagree.")
    ] = False,
    report: options.Report = None,
    plot: options.Plot = None,
    width: Annotated[
        int | None, options.files("--width W", "Characters per line.", "the terminal's")
    ] = None,
    part: options.Part = None,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tensor: options.TensorName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show position tables, rotary wavelengths and all length limits.

    Examples:
        ctxextend inspect tiny-gpt2
        ctxextend inspect tiny-gpt2 tiny-gpt2-512 --plot norms.svg
        ctxextend inspect path/to/bart --part encoder --rows 1000:1026 --json
        ctxextend inspect tiny-gpt2-512 --check

    Prints the verdict, then row norms, neighbour similarity, spectrum and outliers of each table, or the wavelengths of
    rotary positions, then all limits.
    """
    flags = locals()
    from ctxextend.inspection.inspect import inspect_model
    from ctxextend.json_output import to_json
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef

    sink, page = Console(as_json, quiet), Page.for_stdout(width)
    row_range = options.read_range(f"{rows}:{int(rows) + 1}" if rows and rows.isdecimal() else rows)
    if width is not None and width < MIN_WIDTH:
        raise typer.BadParameter(f"--width must be at least {MIN_WIDTH}, got {width}.")
    options.check_files(plot, report)
    refs = [options.from_flags(CheckpointRef, flags, source=model) for model in models]
    inspections = [inspect_model(open_model(ref), part) for ref in refs]
    for flag in [flag for flag, value in (("--rows", rows), ("--plot", plot)) if value is not None]:
        for item in [inspection for inspection in inspections if not inspection.tables]:
            message = (
                f"{flag} applies to tables of rows; the positions of {item.source} are "
                f"{item.schemes[0].scheme}."
            )
            raise ResizeError(message, f"Remove {flag}.")
    sink.note(*dict.fromkeys(note for inspection in inspections for note in inspection.notes))
    if report is not None:
        from ctxextend.report.html import write_report

        write_report(inspections, report, options.command_line())
    if plot is not None:
        from ctxextend.report.figures import tables_figure, write_figure

        write_figure(plot, lambda: tables_figure(inspections))
    values = [to_json(inspection) for inspection in inspections]
    if row_range is None or check:
        add_inspections(page, inspections, only_verdicts=check)
    if row_range is not None:
        chosen = slice(*row_range)
        for value, inspection in zip(values, inspections, strict=True):
            value["rows"] = {
                table.name: _add_rows(page, inspection, table, chosen)
                for table in inspection.tables
            }
    sink.screen(page.lines)
    sink.result("inspect", {"models": values})
    if check and not all(inspection.agrees for inspection in inspections):
        raise typer.Exit(FAILED_CHECK)


def add_inspections(
    page: Page, inspections: Sequence["Inspection"], *, only_verdicts: bool = False
) -> None:
    """Add the verdicts, the tables (same parts side by side), and the length limits of each model."""
    from ctxextend.inspection.table_report import short_names, tables_by_part

    names = short_names(inspections) if len(inspections) > 1 else {}
    for item in inspections:
        name = f"{names[id(item)]}: " if names else ""
        page.text(f"{name}{item.verdict}", "right" if item.agrees else "wrong")
        for limit in item.limits:
            if limit.remark:
                page.text(f"{name}{limit.file} {limit.key}: {limit.remark}.")
        is_alternative = any(limit.remark and not limit.agrees for limit in item.limits)
        label = "Otherwise: " if is_alternative else "Fix: "
        for fix in dict.fromkeys(limit.fix for limit in item.limits if limit.fix):
            page.command(label, fix)
    if only_verdicts:
        return
    page.line()
    for group in tables_by_part(inspections):
        for inspection, table in group:
            _add_facts(page, inspection, table)
        page.line()
        for pair in [group] if len(group) <= 2 else [[item] for item in group]:
            _add_norms(page, pair, names)
        page.line()
        header = [names[id(inspection)] for inspection, _ in group] if names else []
        _add_columns(page, header, [dict(_statistics(table)) for _, table in group])
        for inspection, table in group:
            page.text(f"Findings in {names[id(inspection)]}" if names else "Findings", "title")
            for finding in list(table.findings()) or [
                "none: no outliers, zero rows, repeated rows or seams"
            ]:
                page.text(finding, indent="  ")
        page.line()
    _add_schemes(page, inspections, names)
    for inspection in inspections:
        page.text(f"Limits of {names[id(inspection)]}" if names else "Limits", "title")
        _add_limits(page, inspection)


def _add_facts(page: Page, inspection: "Inspection", table: "TableReport") -> None:
    _add_title(
        page, inspection, table, f", rows created by {inspection.method}" * bool(table.new_rows)
    )
    extra = table.rows - table.reserved_rows - table.positions
    counts = {
        "reserved": table.reserved_rows,
        "positions": table.positions,
        "after the last position": extra,
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    size = f"{table.rows} rows = {' + '.join(parts)}, hidden size {table.hidden_size}"
    share = f"{100 * table.share:.3g} % of {inspection.parameters:,} parameters"
    stored = f"{table.dtype}, {size_text(table.bytes)}, {share}"
    computed = f"not stored: transformers computes it (sinusoids, {table.location.table.layout})"
    where = f"{table.name} in {table.file}".removesuffix(" in ")
    page.text(f"{where}: {size}, {stored if table.file else computed}")


def _add_title(
    page: Page, inspection: "Inspection", report: "PositionReport", created: str = ""
) -> None:
    from ctxextend.recipe import TRAINABLE

    part = f", {report.part}" if report.part else ""
    trained = f", {TRAINABLE[inspection.trainable]} trained" if inspection.trainable else ""
    page.text(f"{inspection.source} ({inspection.model_type}{part}{created}{trained})", "title")


def _add_schemes(page: Page, inspections: Sequence["Inspection"], names: dict[int, str]) -> None:
    """Add positions without a table of rows: charts of rotary wavelengths, and a column for each type of layers."""
    from ctxextend.cli.plots import Curve, add_chart

    columns = dict[str, dict[str, str]]()
    for inspection in inspections:
        for report in inspection.schemes:
            _add_title(page, inspection, report)
            if not report.layers:
                page.text(
                    f"{report.scheme} positions: any length runs once the limits below allow it"
                )
            elif report.lengths:
                page.text(report.lengths)
            for rope in report.layers:
                name = " ".join(filter(None, (names.get(id(inspection)), report.part, rope.layers)))
                columns[name] = dict(_rope_statistics(rope))
                if rope.is_local:
                    page.text(f"{rope.layers}: a sliding window, which longer inputs do not change")
                    continue
                lines = {rope.parameters["rope_type"]: ("new", rope.wavelengths)}
                lines |= {"unscaled": ("learned", rope.unscaled_wavelengths)} if rope.slowed else {}
                trained = rope.trained_length
                level = 0 * rope.wavelengths + rope.trained_length
                lines |= {f"trained length {trained}": ("faint", level)}
                curves = [
                    Curve(line.tolist(), [style] * len(line), name=key)
                    for key, (style, line) in lines.items()
                ]
                layers = f" of {rope.layers}" * bool(rope.layers)
                add_chart(page, f"Wavelength in tokens by pair{layers}", curves, "shared")
            page.line()
    if columns:
        _add_columns(page, [*columns] if any(columns) else [], [*columns.values()])


def _add_columns(page: Page, names: Sequence[str], columns: Sequence[dict[str, str]]) -> None:
    """Add a table with a column of labels and a column of values for each name, or for one model without a name."""
    labels = dict.fromkeys(label for column in columns for label in column)
    rows: list[list[Cell]] = [
        [(label, "label"), *(item.get(label, "-") for item in columns)] for label in labels
    ]
    page.table(["", *names] if names else [], rows, left=(0,) if names else (0, 1), wrap=True)
    page.line()


def _rope_statistics(rope: "RopeReport") -> Iterator[tuple[str, str]]:
    pairs = len(rope.wavelengths)
    trained = rope.trained_length
    factor = rope.parameters.get("factor")
    yield "rope type", rope.parameters["rope_type"] + (f", factor {factor:g}" if factor else "")
    yield "rope_theta", f"{rope.parameters['rope_theta']:g}"
    yield "trained length", str(trained)
    yield "attention factor", f"{rope.attention_factor:.4g}"
    yield (
        "wavelength, min to max",
        f"{rope.wavelengths.min():.3g} to {rope.wavelengths.max():.3g} tokens",
    )
    yield f"less than a turn in {trained}", f"{rope.trained_partial_turns} of {pairs} pairs"
    if rope.positions != trained:
        yield f"less than a turn in {rope.positions}", f"{rope.partial_turns} of {pairs} pairs"
        yield "slowed", f"{rope.slowed} of {pairs} pairs, up to {rope.slowdown:.3g} x"
        yield "beyond trained angles", f"{rope.untrained} of {pairs} pairs"


def _add_norms(page: Page, pair: list["ModelTable"], names: dict[int, str]) -> None:
    from ctxextend.cli.plots import Curve, add_chart
    from ctxextend.tables.stats import describe_range

    curves = []
    for (inspection, table), learned in zip(pair, ("learned", "second"), strict=False):
        styles = [
            "new" if table.is_new(position) else learned
            for position in range(len(table.stats.norms))
        ]
        key: list[Pieces] = [[("  learned", learned), (" new", "new")]] if table.new_rows else []
        if table.reserved_rows:
            key.append([(f"  {counted(table.reserved_rows, 'reserved row')}", "reserved")])
        norms, name = table.norms.tolist(), names.get(id(inspection), "")
        curves.append(
            Curve(
                norms[table.reserved_rows :], styles, norms[: table.reserved_rows], name, tuple(key)
            )
        )
    add_chart(page, "Row norm by position", curves, "both")
    for inspection, table in pair:
        if table.new_rows:
            name = f"{names[id(inspection)]}: " if names else ""
            reserved = table.reserved_rows
            new = ", ".join(
                describe_range(start - reserved, stop - reserved) for start, stop in table.new_rows
            )
            page.text(f"{name}new positions: {new}", "faint")


def _statistics(table: "TableReport") -> Iterator[tuple[str, str]]:
    stats = table.stats
    more = table.json_more()
    norm, cosine = more["norm"], more["neighbour_cosine"]
    if norm["median"] is not None:
        yield "norm, min to max", f"{norm['min']:.3g} to {norm['max']:.3g}"
        yield "norm, median", f"{norm['median']:.3g}"
        yield "norm variation", f"{norm['variation']:.3g}"
    if cosine["median"] is not None:
        yield "cosine to next, median", f"{cosine['median']:.3g}"
        yield "cosine to next, min", f"{cosine['min']:.3g} at {stats.worst_neighbours}"
    if stats.components:
        yield (
            "effective rank",
            f"{stats.effective_rank:.1f} of {min(len(stats.norms), table.hidden_size)}",
        )
    for number, component in enumerate(stats.components, 1):
        yield (
            f"period of component {number}",
            f"{component.period:.0f} ({100 * component.fit:.0f} % fit)",
        )
    yield "norm of mean row", f"{stats.mean_norm:.3g}"
    fit = table.sinusoidal
    if fit:
        share = "all rows" if fit.is_formula else f"{100 * fit.explained:.3g} %"
        yield "sinusoidal variance", f"{share} ({fit.layout})"
    if fit and fit.first_deviating_row is not None:
        yield "first deviating row", str(fit.first_deviating_row)


def _add_limits(page: Page, inspection: "Inspection") -> None:
    parts = {table.name: f"{table.part} " * bool(table.part) for table in inspection.tables}
    rows = list[list[Cell]]()
    for limit in inspection.limits:
        is_table = limit.key in parts
        value = "unset" if limit.tokens is None else str(limit.tokens)
        if isinstance(limit.value, int) and not is_table and limit.value != limit.tokens:
            value = f"{limit.value} = {value}"
        key = f"{parts.get(limit.table, '')}rows minus reserved" if is_table else limit.key
        library = "unused" if limit.used_by == "none" else limit.used_by
        mark, style = ("  ", "") if limit.agrees else ("! ", "wrong")
        rows.append([(text, style) for text in (f"{mark}{limit.file}", key, value, library)])
    page.table((), rows or [["  none"]], left=range(4), wrap=True)
    for limit in inspection.limits:
        if limit.reason:
            page.text(
                f"{limit.file} {limit.key}: {limit.reason}",
                "" if limit.agrees else "wrong",
                indent="    ",
            )
    if inspection.libraries:
        page.line(("Effective limit per library (tokens)", "title"))
    for item in inspection.libraries:
        page.values(
            [(item.name, f"{BEYOND[item.beyond].format(item.tokens)} ({item.decided_by})")],
            margin=22,
        )


def _add_rows(
    page: Page, inspection: "Inspection", table: "TableReport", rows: slice
) -> list[dict[str, Any]]:
    """Add statistics of some rows of a tensor (reserved rows included) as a table; return them as plain values."""
    if not range(*rows.indices(table.rows)):
        raise ResizeError(
            f"--rows selects no row of {table.name}, which has rows 0 to {table.rows - 1}."
        )
    page.text(f"{inspection.source} {table.name}", "title")
    statistics = [*table.row_statistics(rows)]
    cells = list[list[Cell]]()
    for row in statistics:
        remarks = "; ".join(row["remarks"])
        position = "-" if row["position"] is None else str(row["position"])
        norm, cosine = (page.numbers.number(row[name], None) for name in ("norm", "cosine_to_next"))
        texts = (f"  {row['row']}", position, norm, cosine, row["origin"], remarks)
        cells.append([(text, "wrong" if remarks else "") for text in texts])
    page.table(
        ("  row", "position", "norm", "cosine to next", "origin", "remarks"),
        cells,
        left=(4, 5),
        wrap=True,
    )
    return statistics
