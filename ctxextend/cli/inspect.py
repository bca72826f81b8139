"""`ctxextend inspect`."""

import os
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.errors import ResizeError


def inspect(
    models: Annotated[list[str], options.model("Folders, weights files, bundled names (tiny-gpt2), or Hub ids.")],
    rows: Annotated[str | None, options.show("A:B", "Print the figures of rows A to B-1 alone.")] = None,
    plot: options.Plot = None,
    width: Annotated[
        int | None, options.show("W", "Characters of a line; the terminal's if not given.", min=40)
    ] = None,
    part: options.Part = None,
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
    from ctxextend.cli.inspection_screen import add_inspections, add_rows
    from ctxextend.inspection.inspect import inspect_model
    from ctxextend.json_output import to_json
    from ctxextend.plan.find_tables import open_model
    from ctxextend.recipe import CheckpointRef

    sink, chosen, page = Output(as_json, quiet), _read_rows(rows), Page.of_stdout(width)
    options.check_files(plot)
    refs = [options.from_flags(CheckpointRef, flags, source=model) for model in models]
    found = [inspect_model(open_model(ref), part) for ref in refs]
    sink.note(*dict.fromkeys(note for inspection in found for note in inspection.notes))
    if plot is not None:
        from ctxextend.report.figures import tables_figure, write_figure

        write_figure(plot, lambda: tables_figure(found))
        sink.note(f"The figure is in {plot}.")
    values = [to_json(inspection) for inspection in found]
    if chosen is None:
        add_inspections(page, found)
    else:
        for table_found in (table_found for inspection in found for table_found in inspection.tables):
            if not range(*chosen.indices(table_found.rows)):
                raise ResizeError(f"--rows selects none of {table_found.name}'s rows, 0 to {table_found.rows - 1}.")
        add_rows(page, found, chosen)
        for value, inspection in zip(values, found, strict=True):
            value["rows"] = {shown.name: shown.row_figures(chosen) for shown in inspection.tables}
    sink.screen(page.lines)
    sink.result("inspect", {"models": values})


def _read_rows(text: str | None) -> slice | None:
    """Read A:B, A:, :B, : or A as Python reads a slice, or one row."""
    if text is not None and text.isdecimal():
        return slice(int(text), int(text) + 1)
    ends = options.read_range(text)
    return ends and slice(*ends)
