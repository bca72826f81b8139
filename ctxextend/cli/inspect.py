"""`ctxextend inspect`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Cell, Console, Page
from ctxextend.errors import CtxextendError, MethodError, size_text
from ctxextend.settings import TRAINABLE, CheckpointRef, Inspect

if TYPE_CHECKING:
    from ctxextend.inspection.inspection_result import Inspection, Limit
    from ctxextend.positions.position_report import PositionReport, RopeReport
    from ctxextend.positions.table_report import TableReport


@options.command(CheckpointRef, Inspect, without=("source", "tokenizer"))
def inspect(ref: CheckpointRef, settings: Inspect, console: Console) -> None:
    """Show position tables, rotary wavelengths and all length limits.

    Examples:
        ctxextend inspect tiny-gpt2
        ctxextend inspect tiny-gpt2 tiny-gpt2-512 --plot norms.svg
        ctxextend inspect path/to/bart --part encoder --json
        ctxextend inspect tiny-gpt2-512 --check

    Prints the verdict, then row norms, neighbour similarity and outliers of each table, or the
    wavelengths of rotary positions, then all limits.
    """
    options.check_figures(settings)
    if settings.format is not None:
        if console.as_json:
            message = "--format github cannot be used with --json."
            raise options.WrongFlags(message, "Remove one of them.")
        _annotate(console, ref, settings)
        return
    inspections = [_inspect_model(ref, model, settings.part) for model in settings.models]
    for inspection in inspections:
        if settings.plot is not None and not inspection.tables:
            where = f"the positions of {inspection.source} are {inspection.schemes[0].scheme}"
            raise MethodError(f"--plot applies to tables of rows; {where}.", "Remove --plot.")
    notes = [note for inspection in inspections for note in inspection.notes]
    console.note(*dict.fromkeys(notes))
    agrees = all(inspection.agrees for inspection in inspections)
    if settings.report is not None:
        from ctxextend.report.next_steps import after_inspection
        from ctxextend.report.page import write_report

        next_command = after_inspection(inspections)
        write_report(inspections, settings.report, options.command_line(), next_command)
    if settings.plot is not None:
        from ctxextend.report.figures import write_figure
        from ctxextend.report.table_plots import tables_figure

        write_figure(settings.plot, lambda: tables_figure(inspections))
    page = Page.for_stdout()
    if console.as_json:
        page.has_charts = False
    for inspection in inspections:
        name = inspection.source if len(inspections) > 1 else ""
        add_inspection(page, inspection, name, only_verdict=settings.check)
    console.screen(page.lines)
    console.result("inspect", {"models": inspections})
    if settings.check and not agrees:
        raise typer.Exit(FAILED_CHECK)
    if agrees and not settings.check:
        from ctxextend.report.next_steps import after_inspection

        console.next_steps(after_inspection(inspections))


def _annotate(console: Console, ref: CheckpointRef, settings: Inspect) -> None:
    from ctxextend.cli.github import ERROR_TITLE, annotations, workflow_command

    agrees = True
    for model in settings.models:
        try:
            inspection = _inspect_model(ref, model, settings.part)
        except CtxextendError as error:
            console.lines(workflow_command({"title": ERROR_TITLE}, str(error)))
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


def add_inspection(
    page: Page, inspection: "Inspection", name: str = "", *, only_verdict: bool = False
) -> None:
    """Add the verdict with the commands that fix limits, then the positions and all limits."""
    prefix = f"{name}: " if name else ""
    style = "wrong"
    if inspection.agrees:
        style = "right"
    page.text(f"{prefix}{inspection.verdict}", style)
    for remark in dict.fromkeys(limit.remark for limit in inspection.limits):
        if remark:
            page.text(f"{prefix}{remark}")
    for fix in dict.fromkeys(limit.fix for limit in inspection.limits):
        if fix is not None:
            page.command("Fix: ", fix)
    if only_verdict:
        return
    page.line()
    for table in inspection.tables:
        _add_table(page, inspection, table)
    for scheme in inspection.schemes:
        _add_title(page, inspection, scheme)
        if scheme.text:
            page.text(scheme.text)
        for rope in scheme.layers:
            if rope.layers:
                page.text(rope.layers, "title")
            _add_wavelengths(page, rope)
            _add_values(page, _rope_statistics(rope))
        page.line()
    page.text("Limits", "title")
    rows = [_limit_row(inspection, limit) for limit in inspection.limits]
    page.table((), rows or [["  none"]], left=range(4), wrap=True)
    for limit in inspection.limits:
        if not limit.agrees:
            page.text(f"{limit.file} {limit.key}: {limit.reason}", "wrong", indent="    ")


# Positions


def _add_title(
    page: Page, inspection: "Inspection", report: "PositionReport", created: str = ""
) -> None:
    facts = [inspection.model_type, report.part, created]
    if inspection.trainable:
        facts.append(f"{TRAINABLE[inspection.trainable]} trained")
    page.text(f"{inspection.source} ({', '.join(filter(None, facts))})", "title")


def _add_values(page: Page, values: Iterator[tuple[str, str]]) -> None:
    page.table((), [[(label, "label"), value] for label, value in values], left=(0, 1), wrap=True)


def _add_table(page: Page, inspection: "Inspection", table: "TableReport") -> None:
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
    if table.file:
        share = f"{100 * table.share:.3g} % of {inspection.parameters:,} parameters"
        stored = f"{table.dtype}, {size_text(table.bytes)}, {share}"
        page.text(f"{table.name} in {table.file}: {size}, {stored}")
    else:
        how = f"transformers computes it (sinusoids, {table.location.initial_layout})"
        page.text(f"{table.name}: {size}, not stored: {how}")
    if page.has_charts:
        import numpy as np

        from ctxextend.cli.plots import Curve, add_chart

        norms = table.norms[table.reserved_rows :]
        is_new = [table.is_new(position) for position in range(len(norms))]
        learned = Curve(np.where(is_new, np.nan, norms), "learned", "learned")
        curves = [learned, Curve(np.where(is_new, norms, np.nan), "new", "new")]
        add_chart(page, "Row norm by position", curves)
    page.line()
    _add_values(page, _statistics(table))
    page.text("Findings", "title")
    for finding in [*table.findings()] or ["none: no outliers, zero rows or repeated rows"]:
        page.text(finding, indent="  ")
    page.line()


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


def _add_wavelengths(page: Page, rope: "RopeReport") -> None:
    if rope.is_local:
        page.text("a sliding window, which longer inputs do not change")
    elif page.has_charts:
        from ctxextend.cli.plots import Curve, add_chart

        curves = [Curve(rope.wavelengths, "new", str(rope.parameters["rope_type"]))]
        if rope.slowed:
            curves.append(Curve(rope.unscaled_wavelengths, "learned", "unscaled"))
        trained = rope.trained_length
        level = [trained] * len(rope.wavelengths)
        curves.append(Curve(level, "faint", f"trained length {trained}"))
        add_chart(page, "Wavelength in tokens by pair", curves)


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


# Limits


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
