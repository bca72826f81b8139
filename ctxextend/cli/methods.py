"""`ctxextend methods`."""

from ctxextend.cli import options
from ctxextend.cli.output import Output
from ctxextend.cli.tables import Page


def methods(as_json: options.AsJson = False) -> None:
    """List the ways to make new rows, and when to use each.

    Examples:
        ctxextend methods
        ctxextend methods --json

    The first is what resize takes where no --method is given. Every method takes --keep-first (default: 0) and
    --drop-last where nothing else is said.
    """
    from ctxextend.tables.methods import list_methods

    sink, page, found = Output(as_json), Page.of_stdout(), list_methods()
    for method in found:
        flags = [
            f"--{flag} (default: {'chosen from the table' if default is None else default})"
            for flag, default in method.flags.items()
        ]
        if method.keep_first != 0:
            kept = method.keep_first
            flags.append("no --keep-first" if kept is None else f"--keep-first (default: {kept})")
        rows = {
            "  does": method.summary,
            "  learned rows": "stay, bit for bit" if method.keeps_learned_rows else "change",
            "  flags": ", ".join(flags),
            "  use when": method.when,
            "  source": method.source,
        }
        if page.lines:
            page.line()
        page.line((method.name, "title"))
        page.values(((label, value) for label, value in rows.items() if value), margin=16)
    sink.screen(page.lines)
    sink.result("methods", {"methods": found})
