"""`ctxextend verify`."""

from typing import TYPE_CHECKING, Annotated

import typer

from ctxextend.cli import options
from ctxextend.cli.console import FAILED_CHECK, Console
from ctxextend.cli.tables import GAP, Page

if TYPE_CHECKING:
    from ctxextend.verification.conclusion import Verification

STATUSES = {"passed": "passed", "failed": "FAILED", "not checked": "not checked"}
MIN_MARGIN = 17  # characters before the evidence
MAX_EVIDENCE = 12  # lines printed per check; --json lists all


def verify(
    resized: Annotated[
        str,
        options.model("Resized or converted checkpoint: folder, weights or GGUF file, or Hub id."),
    ],
    base: options.Base = None,
    method: Annotated[
        str | None,
        options.basic(
            "--method NAME", "How it was resized.", "from ctxextend.yaml", options.complete_method
        ),
    ] = None,
    to: Annotated[
        str | None, options.basic("--to N", "Its context length.", "from ctxextend.yaml")
    ] = None,
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
        ctxextend verify by-hand --base gpt2 --method copy --to 4096

    Reads every byte and prints the verdict first; exits with 3 if a check fails. Without
    ctxextend.yaml, it needs --base, --method and --to.
    """
    from ctxextend.recipe import CheckpointRef, Resize
    from ctxextend.report.next_steps import after_verification
    from ctxextend.verification.verify import verify_resized

    console = Console(as_json, quiet)
    flags = {
        "model_type": model_type,
        "trained_length": trained_length,
        "tensor": tensor,
        "reserved_rows": reserved_rows,
        "config_key": config_key,
        "revision": revision,
        "subfolder": subfolder,
        "variant": variant,
    }
    # Check them.
    options.from_flags(CheckpointRef, flags, source=base or "")
    if to is not None:
        options.from_flags(Resize, {"to": to, "method": method})
    # Others are as in the recipe.
    given = {name: value for name, value in flags.items() if value}
    with console.progress("Comparing") as progress:
        verification = verify_resized(
            resized,
            base,
            given,
            method=method,
            to=to,
            deep=deep,
            progress=progress,
            notify=console.note,
        )
    console.note(*verification.notes)
    page = Page.for_terminal()
    add_verification(page, verification)
    console.screen(page.lines)
    console.result("verify", verification)
    console.next_steps(after_verification(resized, passed=verification.passed))
    if not verification.passed:
        raise typer.Exit(FAILED_CHECK)


def add_verification(page: Page, verification: "Verification") -> None:
    """Add the verdict to a page, then each check with its status and evidence."""
    page.verdict(verification.conclusion, is_good=verification.passed)
    labels = [f"{STATUSES[check.status]}  {check.name}" for check in verification.checks]
    margin = max(MIN_MARGIN, *(len(label) + GAP for label in labels))
    for check, label in zip(verification.checks, labels, strict=True):
        lines = list(check.evidence[:MAX_EVIDENCE])
        more = len(check.evidence) - MAX_EVIDENCE
        if more > 0:
            lines.append(f"and {more} more (--json lists all)")
        style = "label" if check.passed else "wrong"
        page.values([(label, line) for line in lines], margin=margin, style=style)
