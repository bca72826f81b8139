"""`ctxextend methods`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.output import Output, Pieces, terminal_width
from ctxextend.cli.tables import labelled

if TYPE_CHECKING:
    from ctxextend.tables.method_facts import Method

MARGIN = 16


def methods(as_json: options.AsJson = False) -> None:
    """List the ways to make new rows, and when to use each.

    Examples:
        ctxextend methods
        ctxextend methods --json

    The first is what resize takes where no --method is given. Every method takes --keep-first (default: 0) and
    --drop-last where nothing else is said.
    """
    from ctxextend.tables.methods import list_methods

    sink, found = Output(as_json), list_methods()
    blocks = [[[], *_block(method)] for method in found]
    sink.screen([line for block in blocks for line in block][1:])
    sink.result("methods", {"methods": found})


def _block(method: "Method") -> Iterator[Pieces]:
    """Yield what a method does, takes and costs."""
    flags = [
        f"--{flag} (default: {'chosen from the table' if default is None else default})"
        for flag, default in method.flags.items()
    ]
    if method.keep_first is None:
        flags.append("no --keep-first")
    elif method.keep_first:
        flags.append(f"--keep-first (default: {method.keep_first})")
    rows = {
        "does": method.summary,
        "learned rows": "stay, bit for bit" if method.keeps_learned_rows else "change",
        "flags": ", ".join(flags),
        "use when": method.when,
        "source": method.source,
    }
    yield [(method.name, "title")]
    yield from labelled([(f"  {label}", value) for label, value in rows.items() if value], terminal_width(), MARGIN)
