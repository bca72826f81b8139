"""`ctxextend methods`."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.tables.method_facts import DEFAULT_METHOD, Method


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Show details of these methods.", show_default="all"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods of position tables and of rotary positions.

    Examples:
        ctxextend methods
        ctxextend methods bands stretch
        ctxextend methods --json
    """
    from ctxextend.tables.methods import find_methods, list_methods
    from ctxextend.tables.rotary_methods import ROTARY_METHODS

    with options.usage_errors():
        named = [find_methods(name) for name in names or ()]
    page = Page.for_stdout()
    if named:
        selected = list(chain.from_iterable(named))
        for method in selected:
            if page.lines:
                page.line()
            page.line((method.name, "title"))
            page.values(_details(method), margin=16)
    else:
        tables = list_methods()
        selected = [*tables, *ROTARY_METHODS.values()]
        page.values(((method.name, method.summary) for method in tables), margin=14)
        page.text(f"Default: {DEFAULT_METHOD}. For details, run ctxextend methods NAME.", "faint")
        page.text(f"Rotary: {', '.join(ROTARY_METHODS)}.", "faint")
    console = Console(as_json)
    console.screen(page.lines)
    console.result("methods", {"methods": selected})


def _details(method: Method) -> Iterator[tuple[str, str]]:
    yield "  summary", method.summary
    if method.scheme:
        yield "  positions", method.scheme
    else:
        yield "  learned rows", "kept bit for bit" if method.keeps_learned_rows else "changed"
    for name, setting in method.settings.items():
        if setting.default is not None:
            default = setting.default
        elif setting.unset:
            default = setting.unset
        elif method.scheme:
            default = "chosen from the lengths"
        else:
            default = "chosen from the table"
        spelling = name.replace("_", "-")
        yield "  settings", f"{spelling}: {setting.does} ({setting.must}; default: {default})"
    if not method.scheme:
        keep_first = method.keep_first
        support = "not supported" if keep_first is None else f"default: {keep_first}"
        yield "  --keep-first", support
    yield "  short inputs", method.short_inputs
    yield "  long inputs", method.long_inputs
    yield "  use when", method.when
    yield "  convention", method.convention
    yield "  source", method.source
