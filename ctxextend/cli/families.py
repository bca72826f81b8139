"""`ctxextend families`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.errors import UnsupportedModelError
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.families.listing import FamilyTable


def families(
    model_types: Annotated[
        list[str] | None,
        typer.Argument(metavar="TYPE", help="Model type, or part of its name.", show_default="all"),
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
    from ctxextend.families.listing import list_families
    from ctxextend.families.registry import POSITION_SCHEMES

    console = Console(as_json)
    page = Page.for_stdout()
    with options.usage_errors(UnsupportedModelError):
        tables = list_families(model_types)
    others = dict[str, list[str]]()
    groups = dict[tuple[str, ...], list[str]]()
    for model_type, found in groupby(tables, attrgetter("model_type")):
        same_type = list(found)
        details: tuple[str, ...] = (_rule(same_type),)
        if model_types:
            details = tuple(_details(same_type))
        groups.setdefault(details, []).append(model_type)
    if model_types:
        for details, names in groups.items():
            page.text(", ".join(names), "title")
            for number, line in enumerate(details):
                page.text(line, indent="  " * (1 + number % 2))
    else:
        for (rule,), names in sorted(groups.items()):
            page.text(rule, "title")
            page.text(", ".join(names), indent="  ")
        for name in sorted(POSITION_SCHEMES):
            others.setdefault(POSITION_SCHEMES[name].name, []).append(name)
        by_size = sorted(others, key=lambda scheme: -len(others[scheme]))
        counts = ", ".join(f"{len(others[scheme])} {scheme}" for scheme in by_size)
        page.text(f"Not resized; `ctxextend families TYPE` says why: {counts}.", "faint")
    console.screen(page.lines)
    result = {"families": to_json(tables), "others": others}
    console.result("families", result)


def _rule(tables: Sequence["FamilyTable"]) -> str:
    first = tables[0]
    methods = _methods(first)
    if methods:
        return f"{first.scheme}; {methods}"
    counts = [table.reserved_rows for table in tables if table.reserved_rows != "0"]
    reserved = " or ".join(dict.fromkeys(counts)) or "none"
    return f"{first.scheme}; reserved rows: {reserved}"


def _details(tables: Iterable["FamilyTable"]) -> Iterator[str]:
    for table in tables:
        if not table.table:
            first, *more = table.notes
            yield from (first, "; ".join(more))
            continue
        part = f"{table.part}: " if table.part else ""
        yield f"{part}{table.table}, length set by {table.config_key}"
        facts = [table.scheme]
        methods = _methods(table)
        if methods:
            facts.append(methods)
        if table.reserved_rows != "0":
            facts.append(f"reserved rows: {table.reserved_rows}")
        yield "; ".join((*facts, *table.notes))


def _methods(table: "FamilyTable") -> str:
    if table.methods:
        return f"methods: {', '.join(table.methods)}"
    return "only length limits change" if table.only_limits else ""
