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
            help="Model type, or a part of its name.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the model types that can be resized, and their tables.

    Examples:
        ctxextend families
        ctxextend families bart led
        ctxextend families --json

    With TYPE: its tables, or why it has none. A model with a head puts a prefix in front of a table's name.
    """
    from ctxextend.families.lookup import FamilyTable, list_families
    from ctxextend.families.unsupported import POSITION_SCHEMES

    sink, page = Output(as_json), Page.of_stdout()
    # To ask for a type that is known to have no table is no misuse.
    with options.usage_errors(*() if POSITION_SCHEMES.keys() & (model_types or ()) else (UnsupportedModelError,)):
        found = list_families(model_types)
    unseen = {"model_type": ""} if model_types else {"model_type": "", "table": "", "config_key": "", "notes": ()}
    groups: dict[tuple[FamilyTable, ...], list[str]] = {}
    for name, tables in groupby(found, attrgetter("model_type")):
        groups.setdefault(tuple(replace(table, **unseen) for table in tables), []).append(name)
    for layout, names in groups.items():
        if model_types:
            page.text(", ".join(names), "title")
        for one in layout if model_types else ():
            page.text(f"{one.part}: " * bool(one.part) + f"{one.table}, as long as {one.config_key}", indent="  ")
            more = [f"reserved rows: {one.reserved_rows}"] * (one.reserved_rows != "0") + [*one.notes]
            page.text("; ".join(more), indent="    ")
        if not model_types:
            reserved = " or ".join(dict.fromkeys(one.reserved_rows for one in layout if one.reserved_rows != "0"))
            parts = ", ".join(one.part for one in layout if one.part) or "one table"
            page.text(f"{parts}; reserved rows: {reserved or 'none'}", "title")
            page.text(", ".join(names), indent="  ")
    sink.screen(page.lines)
    sink.result("families", {"families": to_json(found)})
