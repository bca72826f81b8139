"""`ctxextend families`."""

from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.errors import UnsupportedModelError
from ctxextend.json_output import to_json


def families(
    model_types: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TYPE",
            autocompletion=options.complete_model_type,
            show_default="all",
            help="Model type, or part of its name.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the supported model types and their position tables.

    Examples:
        ctxextend families
        ctxextend families bart led
        ctxextend families --json

    With TYPE: its tables, or why it has none. Models with a head add a prefix to table names.
    """
    from ctxextend.families.lookup import FamilyTable, list_families
    from ctxextend.families.unsupported import POSITION_SCHEMES

    sink, page = Output(as_json), Page.for_stdout()
    # Asking for a known type without a table is not a usage error.
    with options.usage_errors(*() if POSITION_SCHEMES.keys() & (model_types or ()) else (UnsupportedModelError,)):
        tables = list_families(model_types)
    cleared = {"model_type": ""} if model_types else {"model_type": "", "table": "", "config_key": "", "notes": ()}
    groups: dict[tuple[FamilyTable, ...], list[str]] = {}
    for name, group in groupby(tables, attrgetter("model_type")):
        groups.setdefault(tuple(replace(table, **cleared) for table in group), []).append(name)
    for layout, names in groups.items():
        if model_types:
            page.text(", ".join(names), "title")
        for table in layout if model_types else ():
            named = f"{table.part}: {table.table}".removeprefix(": ")
            page.text(f"{named}, length set by {table.config_key}", indent="  ")
            more = [f"reserved rows: {table.reserved_rows}"] * (table.reserved_rows != "0") + [*table.notes]
            page.text("; ".join(more), indent="    ")
        if not model_types:
            reserved = " or ".join(dict.fromkeys(table.reserved_rows for table in layout if table.reserved_rows != "0"))
            parts = ", ".join(table.part for table in layout if table.part)
            page.text(f"{f'tables: {parts}' if parts else 'one table'}; reserved rows: {reserved or 'none'}", "title")
            page.text(", ".join(names), indent="  ")
    sink.screen(page.lines)
    sink.result("families", {"families": to_json(tables)})
