"""`ctxextend inspect`."""

import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxextend.cli.completion import complete_model
from ctxextend.cli.options import (
    SHOW,
    AsJson,
    ConfigKey,
    FamilyName,
    Offset,
    PartName,
    Plot,
    Quiet,
    Revision,
    Subfolder,
    TableName,
    Variant,
    check_plot,
    usage_errors,
)
from ctxextend.cli.output import Output, screen_lines, shows_unicode, terminal_width
from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    from ctxextend.inspection.reports import Inspection

__all__ = ["inspect"]

ROWS = re.compile(r"(?P<start>-?\d+|):(?P<stop>-?\d+|)|(?P<one>\d+)")


def inspect(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete_model,
            help="Folders, weights files, bundled names (tiny-gpt2), or Hub ids.",
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Print the figures of rows A to B-1 alone.", rich_help_panel=SHOW),
    ] = None,
    plot: Plot = None,
    width: Annotated[
        int | None,
        typer.Option(
            min=40, metavar="W", help="Characters of a line; the terminal's if not given.", rich_help_panel=SHOW
        ),
    ] = None,
    part: PartName = None,
    family: FamilyName = None,
    table: TableName = None,
    offset: Offset = 0,
    config_key: ConfigKey = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show position tables on one screen, and every limit in the folder.

    Examples:
        ctxextend inspect tiny-gpt2
        ctxextend inspect tiny-gpt2 tiny-gpt2-512 --plot norms.svg
        ctxextend inspect path/to/bart --part encoder --rows 1000:1026 --json

    Of a table: row norms, neighbours, spectrum and rows that stand out.
    """
    # Tables are small: more threads cost more time to start than they save, and each takes memory of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ctxextend.inspection.looking import inspect_subject
    from ctxextend.recipe import CheckpointRef

    sink, chosen = Output(as_json, quiet), _rows(rows)
    check_plot(plot)
    with usage_errors():
        described = revision, subfolder, variant, family, table, config_key, offset
        refs = [CheckpointRef(model, *described) for model in models]
    found = [inspect_subject(ref, part) for ref in refs]
    for note in dict.fromkeys(note for inspection in found for note in inspection.notes):
        sink.note(note)
    if plot is not None:
        from ctxextend.report.figures import plot_tables

        plot_tables(found, plot)
        sink.note(f"The figure is in {plot}.")
    _show(sink, found, chosen, width)
    values = [inspection.as_dict() | _row_values(inspection, chosen) for inspection in found]
    sink.result("inspect", {"models": values})


def _rows(text: str | None) -> slice | None:
    """Read A:B, A:, :B, : or A as Python reads a slice, or one row."""
    if text is None:
        return None
    found = ROWS.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"--rows {text} is no range of rows: write A:B, A:, :B or A.")
    if found["one"]:
        return slice(int(found["one"]), int(found["one"]) + 1)
    start, stop = (int(found[name]) if found[name] else None for name in ("start", "stop"))
    return slice(start, stop)


def _show(sink: Output, found: list["Inspection"], rows: slice | None, width: int | None) -> None:
    from ctxextend.cli.screen import inspection_lines, row_lines

    if rows is not None:
        for table in (table for inspection in found for table in inspection.tables):
            if not range(*rows.indices(table.rows)):
                raise ResizeError(f"--rows selects none of {table.name}'s rows, 0 to {table.rows - 1}.")
        sink.screen(list(row_lines(found, rows)))
    else:
        lines = inspection_lines(found, terminal_width(width), unicode=shows_unicode(), screen=screen_lines())
        sink.screen(list(lines))


def _row_values(inspection: "Inspection", rows: slice | None) -> dict[str, Any]:
    if rows is None:
        return {}
    return {"rows": {table.name: table.row_figures(rows) for table in inspection.tables}}
