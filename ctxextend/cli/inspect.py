"""`ctxextend inspect`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Cell, Console, Page, Pieces
from ctxextend.errors import CtxextendError, MethodError, ResizeError, size_text
from ctxextend.settings import CheckpointRef, Inspect

if TYPE_CHECKING:
    from ctxextend.inspection.inspection_result import Inspection, Limit, ModelTable
    from ctxextend.positions.position_report import PositionReport, RopeReport
    from ctxextend.positions.table_report import TableReport

ALL_ROWS = "all"  # value of --rows


@options.command(CheckpointRef, Inspect, without=("source", "tokenizer"))
def inspect(ref: CheckpointRef, settings: Inspect, console: Console) -> None:
    """Show position tables, rotary wavelengths and all length limits.

    Examples:
        ctxextend inspect tiny-gpt2
        ctxextend inspect tiny-gpt2 tiny-gpt2-512 --plot norms.svg
        ctxextend inspect path/to/bart --part encoder --rows 1000:1026 --json
        ctxextend inspect tiny-gpt2-512 --check

    Prints the verdict, then row norms, neighbour similarity and outliers of each table, or the
    wavelengths of rotary positions, then all limits.
    """
    rows = settings.rows
    check = settings.check
    options.check_figures(settings)
    if settings.format is not None:
        if console.as_json:
            message = "--format github cannot be used with --json."
            raise options.WrongFlags(message, "Remove one of them.")
        _annotate(console, ref, settings)
        return
    page = Page.for_stdout()
    if rows is not None:
        page.has_charts = page.unicode
    if check or console.as_json:
        page.has_charts = False
    row_range = None
    if rows is not None:
        row_range = slice(None) if rows == ALL_ROWS else slice(*rows)
    inspections = [_inspect_model(ref, model, settings.part) for model in settings.models]
    if rows not in (None, ALL_ROWS):
        _require_tables("--rows", inspections)
    if settings.plot is not None:
        _require_tables("--plot", inspections)
    notes = [note for inspection in inspections for note in inspection.notes]
    console.note(*dict.fromkeys(notes))
    if settings.report is not None:
        from ctxextend.report.next_steps import after_inspection
        from ctxextend.report.page import write_report

        next_command = after_inspection(inspections)
        write_report(inspections, settings.report, options.command_line(), next_command)
    if settings.plot is not None:
        from ctxextend.report.figures import write_figure
        from ctxextend.report.table_plots import tables_figure

        write_figure(settings.plot, lambda: tables_figure(inspections))
    if row_range is None or check:
        add_inspections(page, inspections, only_verdicts=check)
    statistics = list[dict[str, Any]]()
    for item in inspections:
        added = dict[str, Any]()
        if row_range is not None:
            for table in item.tables:
                added[table.name] = _add_rows(page, item, table, row_range)
        statistics.append(added)
    if rows == ALL_ROWS:
        _add_pairs(page, inspections)
    console.screen(page.lines)
    if console.as_json:
        from ctxextend.inspection.inspection_json import check_json, summary_json, with_rows

        values = list[dict[str, Any]]()
        for inspection, added in zip(inspections, statistics, strict=True):
            value = summary_json(inspection, with_pairs=rows == ALL_ROWS)
            if check and rows != ALL_ROWS:
                value = check_json(inspection)
            values.append(with_rows(value, added))
        console.result("inspect", {"models": values})
    agrees = all(inspection.agrees for inspection in inspections)
    if agrees and row_range is None and not check:
        from ctxextend.report.next_steps import after_inspection

        console.next_steps(after_inspection(inspections))
    if check and not agrees:
        raise typer.Exit(FAILED_CHECK)


def _annotate(console: Console, ref: CheckpointRef, settings: Inspect) -> None:
    from ctxextend.cli.github import ERROR_TITLE, annotations, workflow_command

    agrees = True
    for model in settings.models:
        try:
            inspection = _inspect_model(ref, model, settings.part)
        except CtxextendError as error:
            console.lines(workflow_command("error", {"title": ERROR_TITLE}, str(error)))
            raise
        console.note(*inspection.notes, f"{model}: {inspection.verdict}")
        console.lines(*annotations(inspection))
        agrees = agrees and inspection.agrees
    if not agrees:
        raise typer.Exit(FAILED_CHECK)


def _inspect_model(ref: CheckpointRef, model: str, part: str | None) -> "Inspection":
    from ctxextend.inspection.inspect import inspect_model
    from ctxextend.opening.opened_model import open_model

    return inspect_model(open_model(replace(ref, source=model)), part)


def _require_tables(flag: str, inspections: Sequence["Inspection"]) -> None:
    for inspection in inspections:
        if not inspection.tables:
            report = inspection.schemes[0]
            scheme = report.scheme
            if report.location.rows:
                scheme += ", and quantised"
            where = f"the positions of {inspection.source} are {scheme}"
            message = f"{flag} applies to tables of rows; {where}."
            raise MethodError(message, f"Remove {flag}.")


def add_inspections(
    page: Page, inspections: Sequence["Inspection"], *, only_verdicts: bool = False
) -> None:
    """Add the verdicts, the tables (same parts side by side), and the limits of each model."""
    from ctxextend.inspection.inspection_result import short_names, tables_by_part

    names: Mapping[int, str] = {id(inspection): "" for inspection in inspections}
    if len(inspections) > 1:
        names = short_names(inspections)
    for inspection in inspections:
        _add_verdict(page, inspection, names[id(inspection)])
    if only_verdicts:
        return
    page.line()
    for group in tables_by_part(inspections):
        _add_tables(page, group, names)
    _add_schemes(page, inspections, names)
    for inspection in inspections:
        heading = "Limits"
        if names[id(inspection)]:
            heading += f" of {names[id(inspection)]}"
        page.text(heading, "title")
        rows = [_limit_row(inspection, limit) for limit in inspection.limits]
        page.table((), rows or [["  none"]], left=range(4), wrap=True)
        for limit in inspection.limits:
            if not limit.agrees:
                page.text(f"{limit.file} {limit.key}: {limit.reason}", "wrong", indent="    ")
        if inspection.libraries:
            page.line(("Effective limit per library (tokens)", "title"))
        for library in inspection.libraries:
            page.values([(library.name, f"{library.text} ({library.decided_by})")], margin=22)


def _add_verdict(page: Page, inspection: "Inspection", name: str) -> None:
    """Add the verdict, the remarks on limits, and the commands that fix them.

    What several limits have in common is added once.
    """
    prefix = f"{name}: " if name else ""
    style = "wrong"
    if inspection.agrees:
        style = "right"
    page.text(f"{prefix}{inspection.verdict}", style)
    label = "Fix: "
    for limit in inspection.limits:
        if limit.remark:
            page.text(f"{prefix}{limit.file} {limit.key}: {limit.remark}.")
            if not limit.agrees:
                label = "Otherwise: "
    for fix in dict.fromkeys(limit.fix for limit in inspection.limits):
        if fix is not None:
            page.command(label, fix)
    choices = dict.fromkeys(choice for limit in inspection.limits for choice in limit.choices)
    for choice in choices:
        page.command(f"Fix, if {choice.condition}: ", choice.command)


# Tables of rows


def _add_tables(page: Page, group: list["ModelTable"], names: Mapping[int, str]) -> None:
    for inspection, table in group:
        _add_facts(page, inspection, table)
    page.line()
    if len(group) <= 2:
        _add_norms(page, group, names)
    else:
        for item in group:
            _add_norms(page, [item], names)
    if page.lines[-1]:
        page.line()
    header = [names[id(inspection)] for inspection, _ in group]
    _add_columns(page, header, [dict(_statistics(table)) for _, table in group])
    for inspection, table in group:
        heading = "Findings"
        if names[id(inspection)]:
            heading += f" in {names[id(inspection)]}"
        page.text(heading, "title")
        findings = list(table.findings())
        for finding in findings or ["none: no outliers, zero rows or repeated rows"]:
            page.text(finding, indent="  ")
    page.line()


def _add_facts(page: Page, inspection: "Inspection", table: "TableReport") -> None:
    created = ""
    if table.new_rows:
        created = f"rows created by {inspection.method}"
    _add_title(page, inspection, table, created)
    counts = {
        "reserved": table.reserved_rows,
        "positions": table.positions,
        "after the last position": table.rows - table.reserved_rows - table.positions,
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    size = f"{table.rows} rows = {' + '.join(parts)}, hidden size {table.hidden_size}"
    if not table.file:
        how = f"transformers computes it (sinusoids, {table.location.initial_layout})"
        page.text(f"{table.name}: {size}, not stored: {how}")
        return
    share = f"{100 * table.share:.3g} % of {inspection.parameters:,} parameters"
    stored = f"{table.dtype}, {size_text(table.bytes)}, {share}"
    page.text(f"{table.name} in {table.file}: {size}, {stored}")


def _add_title(
    page: Page, inspection: "Inspection", report: "PositionReport", created: str = ""
) -> None:
    from ctxextend.settings import TRAINABLE

    facts = [inspection.model_type]
    if report.part:
        facts.append(report.part)
    if created:
        facts.append(created)
    if inspection.trainable:
        facts.append(f"{TRAINABLE[inspection.trainable]} trained")
    page.text(f"{inspection.source} ({', '.join(facts)})", "title")


def _add_norms(page: Page, tables: list["ModelTable"], names: Mapping[int, str]) -> None:
    from ctxextend.tables.stats import describe_range

    if page.has_charts:
        from ctxextend.cli.plots import Curve, add_chart

        curves = list[Curve]()
        for (inspection, table), learned in zip(tables, ("learned", "second"), strict=False):
            positions = range(len(table.stats.norms))
            key = list[Pieces]()
            if table.new_rows:
                key.append([("  learned", learned), (" new", "new")])
            curve = Curve(
                values=table.norms[table.reserved_rows :].tolist(),
                styles=["new" if table.is_new(position) else learned for position in positions],
                name=names[id(inspection)],
                key=tuple(key),
            )
            curves.append(curve)
        add_chart(page, "Row norm by position", curves)
    for inspection, table in tables:
        if not table.new_rows:
            continue
        ranges = list[str]()
        for start, stop in table.new_rows:
            ranges.append(describe_range(start - table.reserved_rows, stop - table.reserved_rows))
        prefix = names[id(inspection)]
        if prefix:
            prefix += ": "
        page.text(f"{prefix}new positions: {', '.join(ranges)}", "faint")


def _statistics(table: "TableReport") -> Iterator[tuple[str, str]]:
    norm = table.norm
    cosine = table.neighbour_cosine
    if norm["median"] is not None:
        yield "norm, min to max", f"{norm['min']:.3g} to {norm['max']:.3g}"
        yield "norm, median", f"{norm['median']:.3g}"
    if cosine["median"] is not None:
        yield "cosine to next, median", f"{cosine['median']:.3g}"
        assert cosine["worst_row"] is not None
        worst = int(cosine["worst_row"]) - table.reserved_rows
        yield "cosine to next, min", f"{cosine['min']:.3g} at {worst}"
    if table.sinusoidal:
        yield "sinusoidal", f"all rows ({table.sinusoidal})"


def _add_columns(page: Page, names: Sequence[str], columns: Sequence[Mapping[str, str]]) -> None:
    labels = dict.fromkeys(label for column in columns for label in column)
    if not labels:  # of rows that are not finite
        return
    rows = list[list[Cell]]()
    for label in labels:
        values = [column.get(label, "-") for column in columns]
        rows.append([(label, "label"), *values])
    if any(names):
        page.table(["", *names], rows, left=(0,), wrap=True)
    else:  # one model with one type of layers
        page.table([], rows, left=(0, 1), wrap=True)
    page.line()


# Positions without a table of rows


def _add_schemes(page: Page, inspections: Sequence["Inspection"], names: Mapping[int, str]) -> None:
    columns = dict[str, dict[str, str]]()
    for inspection in inspections:
        for report in inspection.schemes:
            _add_title(page, inspection, report)
            if report.text:
                page.text(report.text)
            for rope in report.layers:
                words = (names[id(inspection)], report.part, rope.layers)
                name = " ".join(word for word in words if word)
                columns[name] = dict(_rope_statistics(rope))
                _add_wavelengths(page, rope)
            page.line()
    if columns:
        _add_columns(page, list(columns), list(columns.values()))


def _add_wavelengths(page: Page, rope: "RopeReport") -> None:
    if rope.is_local:
        page.text(f"{rope.layers}: a sliding window, which longer inputs do not change")
        return
    if not page.has_charts:
        return
    from ctxextend.cli.plots import Curve, add_chart

    pairs = len(rope.wavelengths)
    rope_type = str(rope.parameters["rope_type"])
    curves = [Curve(values=rope.wavelengths.tolist(), styles=["new"] * pairs, name=rope_type)]
    if rope.slowed:
        unscaled = rope.unscaled_wavelengths.tolist()
        curves.append(Curve(values=unscaled, styles=["learned"] * len(unscaled), name="unscaled"))
    trained = rope.trained_length
    curves.append(
        Curve(
            values=[float(trained)] * pairs,
            styles=["faint"] * pairs,
            name=f"trained length {trained}",
        )
    )
    title = "Wavelength in tokens by pair"
    if rope.layers:
        title += f" of {rope.layers}"
    add_chart(page, title, curves)


def _rope_statistics(rope: "RopeReport") -> Iterator[tuple[str, str]]:
    pairs = len(rope.wavelengths)
    trained = rope.trained_length
    rope_type = rope.parameters["rope_type"]
    factor = rope.parameters.get("factor")
    if factor:
        rope_type += f", factor {factor:g}"
    shortest = rope.wavelengths.min()
    longest = rope.wavelengths.max()
    yield "rope type", rope_type
    yield "rope_theta", f"{rope.parameters['rope_theta']:g}"
    yield "trained length", str(trained)
    yield "attention factor", f"{rope.attention_factor:.4g}"
    yield "wavelength, min to max", f"{shortest:.3g} to {longest:.3g} tokens"
    if rope.positions != trained:
        yield "slowed", f"{rope.slowed} of {pairs} pairs, up to {rope.slowdown:.3g} x"
        yield "beyond trained angles", f"{rope.untrained} of {pairs} pairs"


def _limit_row(inspection: "Inspection", limit: "Limit") -> list[Cell]:
    parts = {table.name: table.part for table in inspection.tables}
    value = "unset"
    if limit.tokens is not None:
        value = str(limit.tokens)
    elif isinstance(limit.value, str):
        value = limit.value
    if limit.key in parts:
        key = f"{parts.get(limit.table, '')} rows minus reserved".lstrip()
    else:
        key = limit.key
        if isinstance(limit.value, int) and limit.value != limit.tokens:
            value = f"{limit.value} = {value}"
    used_by = "unused" if limit.used_by == "none" else limit.used_by
    if limit.agrees:
        return [f"  {limit.file}", key, value, used_by]
    return [(text, "wrong") for text in (f"! {limit.file}", key, value, used_by)]


# Statistics of rows


def _add_rows(
    page: Page, inspection: "Inspection", table: "TableReport", rows: slice
) -> list[dict[str, Any]]:
    from ctxextend.json_output import to_json
    from ctxextend.lab.numbers import number
    from ctxextend.positions.table_report import report_rows

    if not range(*rows.indices(table.rows)):
        raise ResizeError(
            f"--rows selects no row of {table.name}, which has rows 0 to {table.rows - 1}."
        )
    page.text(f"{inspection.source} {table.name}", "title")
    _add_norms(page, [(inspection, table)], {id(inspection): ""})
    statistics: list[dict[str, Any]] = [to_json(row) for row in report_rows(table, rows)]
    cells = list[list[Cell]]()
    for row in statistics:
        texts = (
            f"  {row['row']}",
            "-" if row["position"] is None else str(row["position"]),
            number(row["norm"]),
            number(row["cosine_to_next"]),
            row["origin"],
            "; ".join(row["remarks"]),
        )
        style = "wrong" if row["remarks"] else ""
        cells.append([(text, style) for text in texts])
    header = ("  row", "position", "norm", "cosine to next", "origin", "remarks")
    page.table(header, cells, left=(4, 5), wrap=True)
    return statistics


# Pairs of rotary positions


def _add_pairs(page: Page, inspections: Sequence["Inspection"]) -> None:
    for inspection in inspections:
        for report in inspection.schemes:
            for rope in report.layers:
                words = (inspection.source, report.part, rope.layers)
                page.text(" ".join(word for word in words if word), "title")
                _add_wavelengths(page, rope)
                wavelengths = zip(rope.wavelengths, rope.unscaled_wavelengths, strict=True)
                cells = list[list[Cell]]()
                for pair, (scaled, unscaled) in enumerate(wavelengths):
                    cells.append([f"  {pair}", f"{scaled:.5g}", f"{unscaled:.5g}"])
                page.table(("  pair", "wavelength", "unscaled"), cells, left=())
