"""`ctxextend verify`."""

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.output import FAILED_CHECK, Output, Pieces, printable, terminal_width

if TYPE_CHECKING:
    from ctxextend.verification.checks import Check

# Lines of evidence that are shown of one claim; --json gives all.
SHOWN = 12
# Columns in front of the evidence.
MARGIN = 17


def verify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="BASE",
            autocompletion=options.complete_model,
            help="The original: a folder, a weights file, a bundled name, or a Hub id.",
        ),
    ],
    extended: Annotated[
        str,
        typer.Argument(
            metavar="EXTENDED", autocompletion=options.complete_model, help="The checkpoint that was made of it."
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also load both in transformers, run them, and compare their outputs.")
    ] = False,
    model_type: options.ModelType = None,
    table: options.TableName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Prove that a checkpoint is another with a resized table alone.

    Examples:
        ctxextend verify tiny-gpt2 tiny-gpt2-512
        ctxextend verify gpt2 gpt2-4096 --deep
        ctxextend verify path/to/bert bert-2048 --json

    Every byte is read. It exits with 0 where all is proved, and with 3 where it is not.
    """
    flags = locals()
    from ctxextend.recipe import CheckpointRef
    from ctxextend.verification.verify import verify_resized

    sink = Output(as_json, quiet)
    ref = options.from_flags(CheckpointRef, flags)
    with sink.progress("Comparing") as progress:
        found = verify_resized(ref, extended, deep=deep, progress=progress)
    sink.note(*found.notes)
    conclusion = (found.conclusion, "right" if found.passed else "wrong")
    sink.screen([*(line for check in found.checks for line in _check_lines(check)), [conclusion]])
    sink.result("verify", found)
    if not found.passed:
        raise typer.Exit(FAILED_CHECK)


def _check_lines(check: "Check") -> list[Pieces]:
    """Return a check on a line of its own, and more of its evidence below; wrapped on a terminal alone."""
    mark, style = ("proved", "right") if check.passed else ("FAILED", "wrong")
    more = len(check.evidence) - SHOWN
    evidence = [*check.evidence[:SHOWN], *([f"and {more} more (--json lists all)"] if more > 0 else [])]
    room = max(terminal_width() - MARGIN, 20) if sys.stdout.isatty() else sys.maxsize
    first, *others = (line for text in evidence for line in textwrap.wrap(printable(text), room))
    head = [(f"{mark}  ", style), (f"{check.name:<9}", "label"), (first, "")]
    return [head, *([(f"{'':{MARGIN}}{text}", "")] for text in others)]
