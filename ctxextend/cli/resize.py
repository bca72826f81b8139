"""`ctxextend resize`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxextend.cli import options
from ctxextend.cli.console import Console
from ctxextend.cli.options import basic, complete_method, files
from ctxextend.cli.tables import Page
from ctxextend.cli.train import execute, push
from ctxextend.errors import OutputError, size_text, time_text
from ctxextend.json_output import to_json
from ctxextend.tables.method_facts import DEFAULT_METHOD

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Calibration
    from ctxextend.plan.plan import ResizePlan, ResizeResult
    from ctxextend.recipe import Recipe


def resize(
    source: Annotated[
        str, options.model("Folder, weights file, bundled model (tiny-gpt2) or Hub id.")
    ],
    to: options.To,
    method: Annotated[
        str | None,
        basic(
            "--method NAME", "E.g. linear or bands:gain=1.2 (see methods).", "auto", complete_method
        ),
    ] = None,
    data: Annotated[
        list[str] | None, basic("--data PATH", "Tune bands, or choose a method, on this text.")
    ] = None,
    hold_out: options.HoldOut = None,
    keep_first: Annotated[
        int | None, basic("--keep-first K", "Keep the first K rows.", "0; stretch: 20")
    ] = None,
    drop_last: Annotated[
        int, basic("--drop-last K", "Create no new rows from the last K learned ones.")
    ] = 0,
    part: options.Part = None,
    tokenizer: options.Tokenizer = None,
    model_type: options.ModelType = None,
    trained_length: options.TrainedLength = None,
    tensor: options.TensorName = None,
    reserved_rows: options.ReservedRows = 0,
    config_key: options.ConfigKey = None,
    fix_limits: Annotated[
        bool, basic("--fix-limits", "Make all length limits agree with the table.")
    ] = False,
    edit_only: Annotated[
        bool, files("--edit-only", "Write the edited small files, and no weights.")
    ] = False,
    train: Annotated[
        list[str] | None, basic("--train PATH", "Then train on this text; requires --steps.")
    ] = None,
    steps: Annotated[
        int | None, basic("--steps N", "Optimizer steps (other settings: use train or run).")
    ] = None,
    lora: Annotated[
        int | None, basic("--lora R", "With --train: also train adapters of rank R.")
    ] = None,
    output: Annotated[Path | None, options.output_folder("<name>-<N>")] = None,
    revision: options.Revision = None,
    subfolder: options.Subfolder = None,
    variant: options.Variant = None,
    copy_code: options.CopyCode = False,
    force: options.Force = False,
    push_to_hub: options.PushToHub = None,
    verify: Annotated[
        bool, files("--verify", "Verify the output before moving it into place.")
    ] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Resize the position embeddings and save a new checkpoint.

    Examples:
        ctxextend resize gpt2 --to 4096
        ctxextend resize Qwen/Qwen2.5-7B-Instruct --to 128k --edit-only
    """
    flags = locals()
    from ctxextend.plan.find_tables import open_model
    from ctxextend.plan.plan import plan_model
    from ctxextend.recipe import CheckpointRef, Evaluate, Recipe, Resize

    if data and method not in (None, DEFAULT_METHOD):
        raise typer.BadParameter(
            "--data requires --method auto, the default. Remove --method, or --data."
        )
    if hold_out is not None and not data:
        raise typer.BadParameter("--hold-out requires --data. Add --data, or remove --hold-out.")
    if hold_out is not None and (keep_first is not None or drop_last):
        raise typer.BadParameter(
            "--hold-out chooses all settings. Remove --keep-first and --drop-last, or --hold-out."
        )
    training = options.training_flags(flags)
    if edit_only and (train or verify):
        other = "--train" if train else "--verify"
        raise typer.BadParameter(
            f"--edit-only cannot be used with {other}, which needs weights. Remove one of them."
        )
    sink = Console(as_json, quiet)
    with options.usage_errors():
        settings = options.from_flags(Resize, flags)
        recipe = Recipe(options.from_flags(CheckpointRef, flags), settings, training)
    plan = plan_model(open_model(recipe.checkpoint), settings)
    sink.note(*plan.notes)
    sink.warning(*plan.warnings)
    more, warned = dict[str, Any](), tuple[str, ...]()
    if data and not (dry_run or training):
        plan.check_output(output, force=force)  # fail before the measurements
    if data and (hold_out is not None or not plan.tables[0].has_rows):
        from ctxextend.comparison.quick import choose_method
        from ctxextend.report.numbers import NumberFormat
        from ctxextend.report.verdicts import comparison_verdict

        with sink.progress("Choosing", unit="tokens") as progress:
            chosen, comparison = choose_method(plan, data, hold_out, progress)
        sink.note(comparison_verdict(comparison, NumberFormat()).replace("`", ""))
        sink.warning(*comparison.warnings)
        more["comparison"], warned = to_json(comparison), comparison.warnings
        plan = plan_model(plan.model, replace(plan.settings, method=chosen))
    elif data:
        from ctxextend.comparison.calibrate import calibrate_model

        with sink.progress("Tuning", unit="tokens") as progress:
            calibration = calibrate_model(
                plan.model, plan.settings, Evaluate(tuple(data)), progress, sink.warning
            )
        sink.note(
            *(note for note in calibration.notes if note not in plan.notes),
            calibration_text(calibration),
        )
        more["calibration"], warned = to_json(calibration), calibration.warnings
        plan = plan_model(plan.model, replace(plan.settings, method=calibration.method))
    plan = plan.without_weights() if edit_only else plan
    recipe = replace(recipe, resize=plan.settings) if training and not dry_run else recipe
    write(sink, "resize", recipe, plan, flags, more, warned)


def write(
    sink: Console,
    command: str,
    recipe: "Recipe",
    plan: "ResizePlan",
    flags: Mapping[str, Any],
    more: dict[str, Any],
    warned: Sequence[str] = (),
) -> None:
    """Write, train or only print a plan, as flags say; print the result with `more` values and `warned` in JSON."""
    from ctxextend.plan.plan import ResizeResult, output_path

    output, force = flags["output"], flags["force"]
    if flags["dry_run"]:
        planned, warnings = show_plan(sink, recipe, plan, output, force=force)
        more |= {"train": planned["train"]} if recipe.train else {}
        sink.result(command, planned["resize"] | more, [*warned, *warnings])
    elif recipe.train is not None:
        from ctxextend.training.training_run import RunFolder

        hint = "Resume with the same command; --force starts over."
        resume = (
            not force
            and RunFolder.for_output(output_path(output, plan.default_output)).save is not None
        )
        with options.training_text_is_train():
            trained = execute(
                sink, recipe, plan, output, force=force, resume=resume, resume_hint=hint
            ).training
        assert trained is not None
        size = sum(file.stat().st_size for file in trained.output.rglob("*") if file.is_file())
        result = ResizeResult(
            plan, trained.output, trained.warnings, size, round(trained.seconds, 3)
        )
        more |= push(sink, result.output, flags["push_to_hub"])
        sink.result(
            command,
            to_json(result) | {"train": to_json(trained)} | more,
            (*warned, *trained.warnings),
        )
    else:
        checked: dict[str, Any] = {}
        if flags["verify"]:
            from ctxextend.verification.verify import check_output

            checked["check"] = partial(check_output, plan)
        with sink.progress("Writing") as progress:
            result = replace(
                plan.execute(output, force=force, progress=progress, **checked),
                verified=flags["verify"],
            )
        _show_result(sink, result)
        more |= push(sink, result.output, flags["push_to_hub"])
        sink.result(command, to_json(result) | more, (*warned, *result.warnings))


def calibration_text(calibration: "Calibration") -> str:
    """Describe the chosen method, the text that was used, and the gain."""
    from ctxextend.report.numbers import NumberFormat

    samples, unit = ("windows", "nats/token") if calibration.is_loss else ("documents", "MRR")
    better = calibration.improvement
    amount = NumberFormat().estimate(better)
    if better.ci95 is not None:
        amount = f"{better.mean:.2g} \u00b1 {better.ci95:.1g}"
    gain = f"better than untuned by {amount} (95 %) {unit}"
    if calibration.after == calibration.before:
        gain = "no candidate was better by more than a standard error"
    text = (
        f"{calibration.windows} {samples} of {calibration.length:,} tokens in "
        f"{time_text(calibration.seconds)}"
    )
    return f"tuned on {text}: {calibration.method}; {gain}"


def show_plan(
    sink: Console, recipe: "Recipe", plan: "ResizePlan | None", output: Path | None, *, force: bool
) -> tuple[dict[str, Any], list[str]]:
    """Print what a recipe would do; return the plan of each step as plain values, and the warnings."""
    from ctxextend.plan.plan import ResizeResult

    resized = None
    warnings = list(plan.warnings) if plan else []
    items = [("source", recipe.checkpoint.source), *([("output", str(output))] if output else [])]
    steps = {
        name: asdict(step)
        for name in ("train", "evaluate")
        if (step := getattr(recipe, name)) is not None
    }
    if plan is not None:
        try:
            plan.check_output(output, force=force)
        except OutputError as error:
            warnings.append(f"This would fail: {error}")
            sink.warning(warnings[-1])
        warnings += plan.untrained_warnings
        sink.warning(*plan.untrained_warnings)
        output = output or plan.default_output
        choices = plan.choices
        items = list(_plan_items(plan, output))
        sink.note(*filter(None, (*choices, *plan.runtime_notes, plan.keep_hint)))
        resized = to_json(ResizeResult(plan, output, choices=choices, dry_run=True))
    for step, settings in steps.items():
        given = {
            name: v for name, v in settings.items() if v is not None and v is not False and v != ()
        }
        texts = (
            f"{name}: {' '.join(map(str, v)) if isinstance(v, tuple) else v}"
            for name, v in given.items()
        )
        items += ((step, text) for text in texts)
    page = Page()
    page.values(items, margin=10)
    sink.screen(page.lines)
    values = {"output": str(output) if output else None, "dry_run": True, "resize": resized}
    return values | dict.fromkeys(("train", "evaluate")) | steps, warnings


def _plan_items(plan: "ResizePlan", output: Path) -> Iterator[tuple[str, str]]:
    from ctxextend.plan.output_files import CARD_FILE

    is_conversion = plan.kind == "convert"
    yield "source", plan.ref.source if is_conversion else f"{plan.ref.source} ({plan.model_type})"
    yield "output", str(output)
    yield plan.kind, plan.summary
    yield from (("", text) for text in plan.details[1:] if is_conversion)
    for table in () if is_conversion else plan.tables:
        part = f" ({table.part})" if table.part else ""
        if not table.has_rows:
            yield "positions", f"{table.scheme}: {table.name}{part}"
            yield "", f"{table.max_len_before} -> {table.max_len_after} tokens"
            continue
        reserved = f", {table.reserved_rows} of them reserved" if table.reserved_rows else ""
        where = (
            f" in {table.file}, {table.dtype}" if table.is_stored else ", computed by transformers"
        )
        yield "table", f"{table.name}{part}{where}, hidden size {table.hidden_size}"
        yield "", f"{table.max_len_before} -> {table.max_len_after} positions"
        yield "", f"{table.rows_before} -> {table.rows_after} rows{reserved}"
    for edit in plan.edits:
        is_unlimited = isinstance(edit.before, int | float) and edit.before >= 10**9
        before = "no limit" if is_unlimited else "unset" if edit.before is None else edit.before
        yield (
            "edit",
            f"{edit.file}: {edit.key} {before} -> {edit.after}"
            + (f" ({edit.reason})" if edit.reason else ""),
        )
    if plan.checkpoint.index_file in plan.texts:
        yield "edit", f"{plan.checkpoint.index_file}: totals and names"
    names = {
        "drop": [
            f"{name} (a position buffer that transformers creates itself)" for name in plan.dropped
        ],
        "rebuild": [
            f"{buffer.name} (a position buffer that transformers reads)"
            for buffer in plan.rebuilt_buffers
        ],
        "rewrite": plan.files["rewritten"],
        "extend": [name for name in plan.files["edited"] if name == CARD_FILE],
        "create": plan.files["created"],
        "copy": plan.files["copied"],
        "skip": [f"{name} ({reason})" for name, reason in plan.checkpoint.omitted.items()],
        "write": [size_text(plan.bytes_to_write)],
    }
    yield from ((label, text) for label, texts in names.items() for text in texts)


def _show_result(sink: Console, result: "ResizeResult") -> None:
    plan = result.plan
    sink.warning(*result.warnings[len(plan.warnings) :])
    if result.verified:
        sink.note("Verified: every check of `ctxextend verify` passed.")
    sink.note(*plan.details, *result.choices, *plan.runtime_notes)
    sink.note(*(f"skipped: {name} ({reason})" for name, reason in plan.checkpoint.omitted.items()))
    if result.add_weights:
        sink.note("Without weights. Add them and all other files:", f"  {result.add_weights}")
    effects = f"{plan.consequences} {plan.keep_hint}".strip()
    sink.note(f"{size_text(result.bytes_written)} in {time_text(result.seconds)}", effects)
    sink.data(str(result.output))
    name = str(result.output)
    folder = shlex.quote(f"./{name}" if name.startswith("-") else name)  # not parsed as an option
    is_untrained = plan.kind == "convert" or (plan.creates_rows and plan.ref.tensor is None)
    train = is_untrained and f"ctxextend train {folder} --data TEXT --steps 200"
    verify = not result.verified and f"ctxextend verify {folder}"
    load = result.load_code and f"python -c {shlex.quote(result.load_code)}"
    sink.next_steps(
        *(
            step
            for step in (train, verify, load, f"ctxextend inspect {folder}")
            if isinstance(step, str)
        )
    )
