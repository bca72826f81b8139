"""`ctxextend verify`."""

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli.completion import complete_model
from ctxextend.cli.options import (
    AsJson,
    ConfigKey,
    FamilyName,
    Offset,
    Quiet,
    Revision,
    Subfolder,
    TableName,
    Variant,
    usage_errors,
)
from ctxextend.cli.output import NOT_PROVED, Output, Pieces, one_line, terminal_width

if TYPE_CHECKING:
    from ctxextend.verification.checks import Check, Verification

__all__ = ["verify"]

# Lines of evidence that are shown of one claim; --json gives all.
SHOWN = 12
# Columns in front of the evidence.
MARGIN = 17


def verify(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE",
            autocompletion=complete_model,
            help="The original: a folder, a weights file, a bundled name, or a Hub id.",
        ),
    ],
    extended: Annotated[
        str,
        typer.Argument(metavar="EXTENDED", autocompletion=complete_model, help="The checkpoint that was made of it."),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also load both in transformers, run them, and compare their outputs.")
    ] = False,
    family: FamilyName = None,
    table: TableName = None,
    offset: Offset = 0,
    config_key: ConfigKey = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prove that a checkpoint is another with a resized table alone.

    Examples:
        ctxextend verify tiny-gpt2 tiny-gpt2-512
        ctxextend verify gpt2 gpt2-4096 --deep
        ctxextend verify path/to/bert bert-2048 --json

    Every byte is read. It exits with 0 where all is proved, and with 3 where it is not.
    """
    from ctxextend.json_output import to_json
    from ctxextend.recipe import CheckpointRef
    from ctxextend.verification.verify import verify_resized

    sink = Output(as_json, quiet)
    with usage_errors():
        ref = CheckpointRef(base, revision, subfolder, variant, family, table, config_key, offset)
    with sink.progress("Comparing") as progress:
        found = verify_resized(ref, extended, deep=deep, progress=progress)
    for note in found.notes:
        sink.note(note)
    sink.screen([line for check in found.checks for line in _check_lines(check)] + [_conclusion(found)])
    sink.result("verify", to_json(found))
    if not found.passed:
        raise typer.Exit(NOT_PROVED)


def _check_lines(check: "Check") -> list[Pieces]:
    """Return a check on a line of its own, and more of its evidence below; wrapped on a terminal alone."""
    mark, style = ("proved", "right") if check.passed else ("FAILED", "wrong")
    more = len(check.evidence) - SHOWN
    evidence = [*check.evidence[:SHOWN], *([f"and {more} more (--json lists all)"] if more > 0 else [])]
    room = terminal_width() - MARGIN if sys.stdout.isatty() else sys.maxsize
    first, *others = (line for text in evidence for line in textwrap.wrap(one_line(text), max(room, 20)))
    head: Pieces = [(f"{mark}  ", style), (f"{check.name:<9}", "label"), (first, "")]
    return [head, *([(f"{'':{MARGIN}}{text}", "")] for text in others)]


def _conclusion(found: "Verification") -> Pieces:
    return [(found.conclusion, "right" if found.passed else "wrong")]
