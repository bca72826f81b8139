"""`ctxextend resize`."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ctxextend.cli.calibrating import calibrate_plan, check_calibration
from ctxextend.cli.completion import complete_model
from ctxextend.cli.options import (
    FILES,
    LEARNING,
    AsJson,
    ConfigKey,
    DryRun,
    FamilyName,
    Force,
    KeepCode,
    Offset,
    PartName,
    Quiet,
    Resume,
    Revision,
    SeqLen,
    Subfolder,
    TableName,
    Trainable,
    Variant,
    output_folder,
    usage_errors,
)
from ctxextend.cli.output import Output, is_other_process
from ctxextend.cli.resizewording import last_line, plan_text, settings_text
from ctxextend.cli.training import run_training
from ctxextend.errors import OutputError
from ctxextend.tables.method_facts import MethodName, ScopeName

if TYPE_CHECKING:
    from ctxextend.plan.plan import ResizePlan, ResizeResult
    from ctxextend.recipe import Train
__all__ = ["resize", "show_plan"]


def resize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=complete_model,
            help="A folder, a weights file, a bundled name (tiny-gpt2), or a Hub id.",
        ),
    ],
    to: Annotated[int, typer.Option("--to", min=1, metavar="N", help="Usable token positions wanted.")],
    method: Annotated[
        MethodName | None,
        typer.Option(
            metavar="NAME",
            show_default="copy",
            help=f"How new rows are made: {', '.join(get_args(MethodName))} (see methods).",
            rich_help_panel="New rows",
        ),
    ] = None,
    keep_first: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            show_default="0; stretch: 20",
            help="Leave the first K positions as they are.",
            rich_help_panel="New rows",
        ),
    ] = None,
    drop_last: Annotated[
        int,
        typer.Option(
            min=0, metavar="K", help="Make no new row from the last K learned ones.", rich_help_panel="New rows"
        ),
    ] = 0,
    scope: Annotated[
        ScopeName | None,
        typer.Option(
            show_default="new", help="sinusoidal: make the new rows, or replace all.", rich_help_panel="New rows"
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            metavar="A",
            show_default="0.4",
            help="hierarchical: the first digit's weight, above 0, below 1, not 0.5.",
            rich_help_panel="New rows",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="S", show_default="0", help="random: the seed of what is drawn.", rich_help_panel="New rows"
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="S",
            show_default="chosen from the table",
            help="bands: part slow from fast by a Gaussian of S rows; 0: nothing is fast.",
            rich_help_panel="New rows",
        ),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            show_default="chosen from the table",
            help="bands: repeat the fast part of rows A to B-1.",
            rich_help_panel="New rows",
        ),
    ] = None,
    gain: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            show_default="chosen from the table",
            help="bands: move rows away from their mean by this factor.",
            rich_help_panel="New rows",
        ),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrate",
            metavar="PATH...",
            help="bands: choose of these three, by this text, what is not given.",
            rich_help_panel="New rows",
        ),
    ] = None,
    part: PartName = None,
    family: FamilyName = None,
    table: TableName = None,
    offset: Offset = 0,
    config_key: ConfigKey = None,
    mend_limits: Annotated[
        bool,
        typer.Option(
            "--mend-limits",
            help="Make config, tokenizer and side files state the table's length even where it stays.",
            rich_help_panel=FILES,
        ),
    ] = False,
    output: Annotated[Path | None, output_folder("<name>-<N>")] = None,
    revision: Revision = None,
    subfolder: Subfolder = None,
    variant: Variant = None,
    keep_code: KeepCode = False,
    force: Force = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove the output before it takes its name.", rich_help_panel=FILES),
    ] = False,
    train: Annotated[
        list[str] | None,
        typer.Option(
            "--train",
            metavar="PATH...",
            help="Then train it on this text for --steps (see train; more by recipe, see run).",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Optimizer steps.", rich_help_panel=LEARNING)
    ] = None,
    trainable: Trainable = None,
    seq_len: SeqLen = None,
    resume: Resume = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint anew with a position table of another length.

    Examples:
        ctxextend resize tiny-gpt2 --to 512
        ctxextend resize gpt2 --to 4096 --method linear --keep-first 1
        ctxextend resize path/to/bert --to 2048 --output bert-2048 --dry-run
        ctxextend resize facebook/bart-base --to 4096 --part encoder
    """
    from ctxextend.plan.plan import plan_recipe
    from ctxextend.recipe import CheckpointRef, Recipe, Resize

    _check_training(train, steps, {"--trainable": trainable, "--seq-len": seq_len, "--resume": resume}, proves=verify)
    sink = Output(as_json, quiet, silent=is_other_process())
    with usage_errors():
        own = scope, alpha, seed, sigma, _span(repeat), gain
        settings = Resize(to, method, keep_first, drop_last, *own, part, mend_limits, keep_code)
        ref = CheckpointRef(model, revision, subfolder, variant, family, table, config_key, offset)
        training = _training(train, steps, trainable, seq_len)
        recipe = Recipe(ref, settings, training)
        if calibrate:
            check_calibration(settings)
    plan = plan_recipe(recipe)
    for note in plan.notes:
        sink.note(note)
    for warning in plan.warnings:
        sink.warning(warning)
    also: dict[str, Any] = {}
    if calibrate:
        if not (dry_run or training):
            plan.check_output(output, force=force)  # rather than when the text was read
        plan, also["calibration"] = calibrate_plan(sink, plan, calibrate)
    if dry_run:
        also |= {"train": asdict(training)} if training else {}
        _show_dry_run(sink, plan, output, also, force=force)
        return
    if training is not None:
        trained = run_training(
            sink, replace(recipe, resize=plan.settings), output, force=force, resume=resume, told=plan.warnings
        )
        size = sum(file.stat().st_size for file in trained.output.rglob("*") if file.is_file())
        shown = {"output": str(trained.output), "bytes_written": size, "seconds": round(trained.seconds, 3)}
        shown |= {"dry_run": False, "verified": False, "train": trained.as_dict()} | also
        sink.result("resize", plan.as_dict() | shown, trained.warnings)
        return
    result = _execute(sink, plan, output, force=force, proves=verify)
    if verify:
        sink.note("verified: every claim of `ctxextend verify` held before the folder took its name")
    _show_result(sink, result, also, verified=verify)


def _span(text: str | None) -> tuple[int, int] | None:
    """Read A:B."""
    if text is None:
        return None
    ends = text.split(":")
    if len(ends) != 2 or not all(end.isascii() and end.isdigit() for end in ends):
        raise typer.BadParameter(f"--repeat {text} is no stretch of rows: write A:B for rows A to B-1.")
    return int(ends[0]), int(ends[1])


def _check_training(train: list[str] | None, steps: int | None, others: dict[str, Any], *, proves: bool) -> None:
    """Refuse flags of a training without one, and a training without its steps."""
    given = [flag for flag, value in {"--steps": steps, **others}.items() if value]
    if not train and given:
        raise typer.BadParameter(f"{given[0]} belongs to a training: add --train PATH, or leave it out.")
    if train and steps is None:
        raise typer.BadParameter("--train needs --steps: say for how many steps.")
    if train and proves:
        raise typer.BadParameter("--verify proves a resize alone: leave it out, and run verify on what was trained.")


def _training(data: list[str] | None, steps: int | None, trainable: str | None, seq_len: int | None) -> "Train | None":
    from ctxextend.recipe import Train

    if not data or steps is None:
        return None
    return Train(tuple(data), steps, trainable=trainable or "positions", seq_len=seq_len)


def _execute(sink: Output, plan: "ResizePlan", output: Path | None, *, force: bool, proves: bool) -> "ResizeResult":
    """Carry the plan out under one bar, which goes on where the output is then proved."""
    if not proves:
        with sink.progress("Writing") as progress:
            return plan.execute(output, force=force, progress=lambda moved: progress(moved, plan.bytes_to_write))
    from ctxextend.verification.tensors import bytes_to_compare
    from ctxextend.verification.verify import check_output

    total = plan.bytes_to_write + bytes_to_compare(plan)
    with sink.progress("Writing and proving") as progress:
        return plan.execute(
            output,
            force=force,
            progress=lambda moved: progress(moved, total),
            check=lambda folder: check_output(plan, folder, progress=lambda moved, _, label="": progress(moved, total)),
        )


def _show_dry_run(sink: Output, plan: "ResizePlan", output: Path | None, also: dict[str, Any], *, force: bool) -> None:
    values, warnings = show_plan(sink, plan, output, force=force)
    if "train" in also:
        sink.data(settings_text("train", also["train"]))
    sink.result("resize", values | also, warnings)


def show_plan(
    sink: Output, plan: "ResizePlan", output: Path | None, *, force: bool
) -> tuple[dict[str, Any], list[str]]:
    """Print a plan that is not carried out; return it as plain values, with its warnings."""
    warnings = list(plan.warnings)
    try:
        plan.check_output(output, force=force)
    except OutputError as error:
        warnings.append(f"As things stand the run would be refused: {error}")
        sink.warning(warnings[-1])
    folder = output or plan.default_output
    sink.data(plan_text(plan, folder))
    choices = plan.choices()
    for choice in choices:
        sink.note(choice)
    values = plan.as_dict() | {"output": str(folder), "bytes_written": 0, "seconds": 0.0}
    return values | {"dry_run": True, "verified": False, "choices": list(choices)}, warnings


def _show_result(sink: Output, result: "ResizeResult", also: dict[str, Any], *, verified: bool) -> None:
    plan = result.plan
    for warning in result.warnings[len(plan.warnings) :]:
        sink.warning(warning)
    for table in plan.tables:
        lengths = f"{table.max_len_before} -> {table.max_len_after} positions, {plan.method}"
        sink.note(f"{table.name}: {lengths if table.is_changed else f'{table.max_len_after} positions, as they were'}")
    for choice in result.choices:
        sink.note(choice)
    omitted = ", ".join(f"{name} ({why})" for name, why in plan.checkpoint.omitted.items())
    if omitted:
        sink.note(f"left out: {omitted}")
    sink.note(f"{result.bytes_written:,} bytes in {result.seconds:.1f} s")
    sink.data(str(result.output))
    values = plan.as_dict() | {
        "output": str(result.output),
        "bytes_written": result.bytes_written,
        "seconds": round(result.seconds, 3),
        "dry_run": False,
        "verified": verified,
        "choices": list(result.choices),
    }
    sink.result("resize", values | also, result.warnings)
    sink.note(last_line(result))
