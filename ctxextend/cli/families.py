"""`ctxextend families`."""

from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.json_output import to_json

FIELDS = ("model_type", "part", "reserved_rows", "config_key", "table")
HEADER = ("model type", "part", "offset rows", "config key", "table", "notes")


def families(
    model_types: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TYPE",
            autocompletion=options.complete_model_type,
            show_default="all",
            help="Show these alone, or say why one has none.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the model types that can be resized, and their tables.

    Examples:
        ctxextend families
        ctxextend families bart led
        ctxextend families --json

    A table's name is given as a base model has it; a head model writes its own prefix in front of it.
    """
    from ctxextend.families.lookup import list_families

    sink, page, found = Output(as_json), Page(), list_families(model_types)
    page.table(HEADER, [(*(getattr(one, name) for name in FIELDS), "; ".join(one.notes)) for one in found], range(6))
    sink.screen(page.lines)
    sink.result("families", {"families": to_json(found)})
