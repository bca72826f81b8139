"""`ctxextend families`."""

from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli.completion import complete_model_type
from ctxextend.cli.options import AsJson
from ctxextend.cli.output import Output

if TYPE_CHECKING:
    from ctxextend.families.lookup import FamilyTable

__all__ = ["families"]

HEADINGS = ("model type", "part", "offset rows", "config key", "table", "notes")


def families(
    model_types: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TYPE",
            autocompletion=complete_model_type,
            show_default="all",
            help="Show these alone, or say why one has none.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the model types that can be resized, and their tables.

    Examples:
        ctxextend families
        ctxextend families bart led
        ctxextend families --json

    A table's name is given as a base model has it; a head model writes its own prefix in front of it.
    """
    from ctxextend.families.lookup import list_families

    sink, tables = Output(as_json), list_families(model_types)
    sink.data(_aligned([HEADINGS, *map(_row, tables)]))
    sink.result("families", {"families": [table.as_dict() for table in tables]})


def _row(table: "FamilyTable") -> tuple[str, ...]:
    notes = "; ".join(table.notes)
    return (table.model_type, table.part, table.offset, table.config_key, table.table, notes)


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
