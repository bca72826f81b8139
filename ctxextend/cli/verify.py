"""`ctxextend verify`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, GAP, Console, Page
from ctxextend.errors import not_an_option
from ctxextend.settings import CheckpointRef, Verify

if TYPE_CHECKING:
    from ctxextend.verification.conclusion import Verification

STATUSES = {"passed": "passed", "failed": "FAILED", "not checked": "not checked"}
MIN_MARGIN = 17  # characters before the evidence
MAX_EVIDENCE = 12  # lines printed per check; --json lists all


@options.command(Verify, CheckpointRef, without=("source", "tokenizer"))
def verify(settings: Verify, ref: CheckpointRef, console: Console) -> None:
    """Verify that two checkpoints differ only in their positions.

    Examples:
        ctxextend verify gpt2-4096 --deep
        ctxextend verify bert-2048 --base path/to/bert --json

    Reads every byte and prints the verdict first; exits with 3 if a check fails.
    """
    from ctxextend.verification.verify import verify_checkpoint

    with console.progress("Comparing") as progress:
        verification = verify_checkpoint(settings, ref, progress, console.note)
    console.note(*verification.notes)
    page = Page.for_terminal()
    add_verification(page, verification)
    console.screen(page.lines)
    console.result("verify", verification)
    if verification.passed and not Path(settings.resized).is_file():
        folder = shlex.quote(not_an_option(settings.resized))
        console.next_steps(f"ctxextend evaluate {folder} --data TEXT")
    if not verification.passed:
        raise typer.Exit(FAILED_CHECK)


def add_verification(page: Page, verification: "Verification") -> None:
    """Add the verdict to a page, then each check with its status and evidence."""
    style = "wrong"
    if verification.passed:
        style = "right"
    page.text(verification.conclusion, style)
    labels = [f"{STATUSES[check.status]}  {check.name}" for check in verification.checks]
    margin = max(MIN_MARGIN, *(len(label) + GAP for label in labels))
    for check, label in zip(verification.checks, labels, strict=True):
        lines = list(check.evidence[:MAX_EVIDENCE])
        more = len(check.evidence) - MAX_EVIDENCE
        if more > 0:
            lines.append(f"and {more} more (--json lists all)")
        style = "label" if check.passed else "wrong"
        page.values([(label, line) for line in lines], margin=margin, style=style)
