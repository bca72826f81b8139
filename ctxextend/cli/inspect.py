"""`ctxextend inspect`."""

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output, screen_of_stdout
from ctxextend.errors import ResizeError

if TYPE_CHECKING:
    from ctxextend.inspection.table_report import Inspection

ROWS = re.compile(r"(?P<start>-?\d+|):(?P<stop>-?\d+|)|(?P<one>\d+)")


def inspect(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            autocompletion=options.complete_model,
            help="Folders, weights files, bundled names (tiny-gpt2), or Hub ids.",
        ),
    ],
    rows: Annotated[str | None, options.show(metavar="A:B", help="Print the figures of rows A to B-1 alone.")] = None,
    plot: options.Plot = None,
    width: Annotated[
        int | None, options.show(min=40, metavar="W", help="Characters of a line; the terminal's if not given.")
    ] = None,
    part: options.PartName = None,
    model_type: options.ModelType = None,
    table: options.TableName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show position tables on one screen, and every limit in the folder.

    Examples:
        ctxextend inspect tiny-gpt2
        ctxextend inspect tiny-gpt2 tiny-gpt2-512 --plot norms.svg
        ctxextend inspect path/to/bart --part encoder --rows 1000:1026 --json

    Of a table: row norms, neighbours, spectrum and rows that stand out.
    """
    flags = locals()
    # Tables are small: more threads cost more time to start than they save, and each takes memory of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ctxextend.inspection.inspect import inspect_model
    from ctxextend.json_output import to_json
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef

    sink, chosen = Output(as_json, quiet), _read_rows(rows)
    options.check_files(plot)
    refs = [options.from_flags(CheckpointRef, flags, source=model) for model in models]
    found = [inspect_model(open_model(ref), part) for ref in refs]
    for note in dict.fromkeys(note for inspection in found for note in inspection.notes):
        sink.note(note)
    if plot is not None:
        from ctxextend.report.figures import tables_figure, write_figure

        write_figure(plot, lambda: tables_figure(found))
        sink.note(f"The figure is in {plot}.")
    _show(sink, found, chosen, width)
    values = [to_json(inspection) for inspection in found]
    if chosen is not None:
        for value, inspection in zip(values, found, strict=True):
            value["rows"] = {table.name: table.row_figures(chosen) for table in inspection.tables}
    sink.result("inspect", {"models": values})


def _read_rows(text: str | None) -> slice | None:
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
    from ctxextend.cli.inspection_screen import inspection_lines, row_lines

    if rows is None:
        sink.screen(inspection_lines(found, screen_of_stdout(width)))
        return
    for table in (table for inspection in found for table in inspection.tables):
        if not range(*rows.indices(table.rows)):
            raise ResizeError(f"--rows selects none of {table.name}'s rows, 0 to {table.rows - 1}.")
    sink.screen(row_lines(found, rows))
