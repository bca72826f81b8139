"""`ctxextend methods`."""

import textwrap
from typing import TYPE_CHECKING

from ctxextend.cli.options import AsJson
from ctxextend.cli.output import Output, terminal_width
from ctxextend.json_output import to_json

if TYPE_CHECKING:
    from ctxextend.tables.method_facts import Method

__all__ = ["methods"]

LABELS = 14


def methods(as_json: AsJson = False) -> None:
    """List the ways to make new rows, and when to use each.

    Examples:
        ctxextend methods
        ctxextend methods --json

    The first is what resize takes where no --method is given. Every method takes --keep-first (default: 0) and
    --drop-last where nothing else is said.
    """
    from ctxextend.tables.methods import list_methods

    sink, found = Output(as_json), list_methods()
    sink.data("\n\n".join(map(_block, found)))
    sink.result("methods", {"methods": to_json(found)})


def _block(method: "Method") -> str:
    flags = [f"--{flag} (default: {_default(default)})" for flag, default in method.flags.items()]
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
    return "\n".join([method.name, *(_wrapped(label, text) for label, text in rows.items() if text)])


def _default(value: object) -> str:
    return "chosen from the table" if value is None else str(value)


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        terminal_width(),
        initial_indent=f"  {label:<{LABELS}}",
        subsequent_indent=" " * (LABELS + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
