"""`ctxextend methods`."""

from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page
from ctxextend.tables.method_facts import METHOD_NAMES, Method


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=options.completing(lambda: METHOD_NAMES),
            show_default="all",
            help="Show the details of these methods.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods that make new rows.

    Examples:
        ctxextend methods
        ctxextend methods bands stretch
        ctxextend methods --json
    """
    from ctxextend.tables.methods import find_method, list_methods

    sink, page = Output(as_json), Page.of_stdout()
    with options.usage_errors():
        found = [find_method(name) for name in names] if names else list_methods()
    if names:
        for method in found:
            if page.lines:
                page.line()
            _add_details(page, method)
    else:
        width = max(len(method.name) for method in found) + 2
        page.values(((method.name, method.summary) for method in found), margin=width)
        page.text("copy is the default. Details: ctxextend methods NAME", "faint")
    sink.screen(page.lines)
    sink.result("methods", {"methods": found})


def _add_details(page: Page, method: Method) -> None:
    """Add everything that is known of a method."""
    page.line((method.name, "title"))
    settings = [
        f"{name}: {setting.does} ({setting.must}; "
        f"default: {'chosen from the table' if setting.default is None else setting.default})"
        for name, setting in method.settings.items()
    ]
    kept = "not taken" if method.keep_first is None else f"default: {method.keep_first}"
    texts = {
        "does": [method.summary],
        "learned rows": ["stay, bit for bit" if method.keeps_learned_rows else "change"],
        "settings": settings,
        "--keep-first": [kept],
        "short texts": [method.short_inputs],
        "long texts": [method.long_inputs],
        "use when": [method.when],
        "convention": [method.convention],
        "source": [method.source],
    }
    page.values(((f"  {label}", text) for label, several in texts.items() for text in several), margin=16)
