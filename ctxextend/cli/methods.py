"""`ctxextend methods`."""

from collections.abc import Iterator
from typing import Annotated

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.tables import Page
from ctxextend.tables.method_facts import DEFAULT_METHOD, Method
from ctxextend.tables.method_names import rotary_method_names, table_method_names

complete_name = options.completing(
    lambda: dict.fromkeys([*table_method_names(), *rotary_method_names()])
)


def methods(
    names: Annotated[
        list[str] | None,
        options.argument("NAME", "Show details of these methods.", "all", complete_name),
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

    sink, page = Console(as_json), Page.for_stdout()
    with options.usage_errors():
        named = [method for name in names or () for method in find_methods(name)]
    selected = named or [*list_methods(), *ROTARY_METHODS.values()]
    if names:
        for method in selected:
            if page.lines:
                page.line()
            page.line((method.name, "title"))
            page.values(_details(method), margin=16)
    else:
        page.values(((method.name, method.summary) for method in list_methods()), margin=14)
        page.text(f"Default: {DEFAULT_METHOD}. For details, run ctxextend methods NAME.", "faint")
        page.text(f"Rotary: {', '.join(ROTARY_METHODS)}.", "faint")
    sink.screen(page.lines)
    sink.result("methods", {"methods": selected})


def _details(method: Method) -> Iterator[tuple[str, str]]:
    yield "  summary", method.summary
    if method.scheme:
        yield "  positions", method.scheme
    else:
        yield "  learned rows", "kept bit for bit" if method.keeps_learned_rows else "changed"
    for name, setting in method.settings.items():
        chosen = f"chosen from the {'lengths' if method.scheme else 'table'}"
        default = chosen if setting.default is None else setting.default
        yield "  settings", f"{name}: {setting.does} ({setting.must}; default: {default})"
    if not method.scheme:
        yield (
            "  --keep-first",
            "not supported" if method.keep_first is None else f"default: {method.keep_first}",
        )
    yield "  short inputs", method.short_inputs
    yield "  long inputs", method.long_inputs
    yield "  use when", method.when
    yield "  convention", method.convention
    yield "  source", method.source
