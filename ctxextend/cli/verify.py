"""`ctxextend verify`."""

import sys
from typing import Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Console
from ctxextend.cli.tables import Page

STATUSES = {"passed": "passed", "failed": "FAILED", "not checked": "not checked"}
MARGIN = 17
MAX_EVIDENCE = 12  # lines printed per check; --json lists all


def verify(
    resized: Annotated[
        str, options.model("Resized or converted checkpoint: folder, weights file or Hub id.")
    ],
    base: options.Base = None,
    deep: Annotated[
        bool, options.basic("--deep", "Also run both in transformers and compare outputs.")
    ] = False,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tensor: options.TensorName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Verify that two checkpoints differ only in their positions.

    Examples:
        ctxextend verify gpt2-4096 --deep
        ctxextend verify bert-2048 --base path/to/bert --json

    Reads every byte and prints the verdict first; exits with 3 if a check fails.
    """
    flags = locals()
    from ctxextend.recipe import CheckpointRef
    from ctxextend.verification.verify import verify_resized

    sink = Console(as_json, quiet)
    options.from_flags(CheckpointRef, flags, source=base or "")
    given = {
        name: value for name, value in options.given_flags(flags, CheckpointRef).items() if value
    }
    with sink.progress("Comparing") as progress:
        verification = verify_resized(resized, base, given, deep=deep, progress=progress)
    sink.note(*verification.notes)
    page = Page.for_stdout() if sys.stdout.isatty() else Page()  # do not wrap lines in a pipe
    page.text(verification.conclusion, "right" if verification.passed else "wrong")
    labels = {
        check.name: f"{STATUSES[check.status]}  {check.name}" for check in verification.checks
    }
    margin = max(MARGIN, *(len(label) + 2 for label in labels.values()))
    for check in verification.checks:
        label = labels[check.name]
        style = "label" if check.passed else "wrong"
        more = len(check.evidence) - MAX_EVIDENCE
        evidence = [
            *check.evidence[:MAX_EVIDENCE],
            *([f"and {more} more (--json lists all)"] if more > 0 else []),
        ]
        page.values([(label, line) for line in evidence], margin=margin, style=style)
    sink.screen(page.lines)
    sink.result("verify", verification)
    if not verification.passed:
        raise typer.Exit(FAILED_CHECK)
