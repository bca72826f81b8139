"""`ctxextend families`."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.tables import Page
from ctxextend.errors import UnsupportedModelError
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.families.lookup import FamilyTable


def families(
    model_types: Annotated[
        list[str] | None,
        options.argument(
            "TYPE", "Model type, or part of its name.", "all", options.complete_model_type
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the model types and their position schemes.

    Examples:
        ctxextend families
        ctxextend families bart llama
        ctxextend families --json

    With TYPE: its tables, or why it has none. Models with a head add a prefix to table names.
    """
    from ctxextend.families.lookup import list_families
    from ctxextend.families.unsupported import POSITION_SCHEMES

    sink, page = Console(as_json), Page.for_stdout()
    with options.usage_errors(UnsupportedModelError):
        tables = list_families(model_types)
    others: dict[str, list[str]] = {}
    for name in sorted(POSITION_SCHEMES) if not model_types else ():
        others.setdefault(POSITION_SCHEMES[name].name, []).append(name)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, group in groupby(tables, attrgetter("model_type")):
        found = list(group)
        reserved = dict.fromkeys(
            table.reserved_rows for table in found if table.reserved_rows != "0"
        )
        rows = f"reserved rows: {' or '.join(reserved) or 'none'}"
        rule = f"{found[0].scheme}; {_methods(found[0]) or rows}"
        groups.setdefault(tuple(_details(found)) if model_types else (rule,), []).append(name)
    for lines, names in groups.items() if model_types else sorted(groups.items()):
        listed = ", ".join(names)
        title, *body = (listed, *lines) if model_types else (*lines, listed)
        page.text(title, "title")
        for number, line in enumerate(body):
            page.text(line, indent="  " * (1 + number % 2))
    if others:
        by_size = sorted(others, key=lambda name: -len(others[name]))
        counts = ", ".join(f"{len(others[name])} {name}" for name in by_size)
        page.text(f"Not resized; `ctxextend families TYPE` says why: {counts}.", "faint")
    sink.screen(page.lines)
    sink.result("families", {"families": to_json(tables), "others": others})


def _details(tables: Sequence["FamilyTable"]) -> Iterator[str]:
    for table in tables:
        named = f"{table.part}: {table.table}, length set by {table.config_key}".removeprefix(": ")
        reserved = [f"reserved rows: {table.reserved_rows}"] * (table.reserved_rows != "0")
        scheme = filter(None, (table.scheme, _methods(table)))
        first, *more = (named, *scheme, *reserved, *table.notes) if table.table else table.notes
        yield from (first, "; ".join(more))


def _methods(table: "FamilyTable") -> str:
    """Return the methods of positions without rows; empty for a table of rows."""
    if table.methods:
        return f"methods: {', '.join(table.methods)}"
    return "" if table.scheme in ("learned", "sinusoidal") else "only length limits change"
