"""Print what a resize or a conversion would write, or has written."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.cli.console import Console
from ctxextend.cli.run_steps import show_training, steps_after_training
from ctxextend.cli.tables import Page
from ctxextend.errors import OutputError, listed, size_text, time_text
from ctxextend.json_output import to_json
from ctxextend.runtimes.commands import not_an_option

if TYPE_CHECKING:
    from ctxextend.limits.length_edits import Edit
    from ctxextend.plan.for_runtime import RuntimePlan
    from ctxextend.plan.table_plan import TablePlan
    from ctxextend.planned import Planned, ResizeResult
    from ctxextend.recipe import Recipe
    from ctxextend.settings import Writing

Items = Iterator[tuple[str, str]]

# What a link in an output is.
LINK_TEXTS = {
    "hard": "hard link: the file of the source, not a copy",
    "symbolic": "symbolic link to the Hub cache",
}


def show_plan(
    console: Console,
    recipe: "Recipe",
    planned: "Planned | None",
    output: Path | None,
    *,
    force: bool,
    for_runtime: "RuntimePlan | None" = None,
) -> tuple[dict[str, Any], list[str]]:
    """Print what a recipe would do; return its steps as plain values, and the warnings."""
    from ctxextend.planned import ResizeResult

    resized = None
    warnings = list[str]()
    items = [("source", recipe.checkpoint.source)]
    if output is not None:
        items.append(("output", str(output)))
    if planned is not None:
        explanation = planned.explanation
        warnings += explanation.warnings
        warnings += _show_warnings(console, planned, output, force=force)
        output = output or planned.output.default_folder
        items = list(_plan_items(planned, output))
        console.note(*explanation.choices, *explanation.runtime_notes)
        keep_hint = _keep_hint(planned, for_runtime)
        if keep_hint:
            console.note(keep_hint)
        resized = to_json(ResizeResult(planned, output, choices=explanation.choices, dry_run=True))
    steps = _steps(recipe)
    for step, settings in steps.items():
        items += _step_items(step, settings)
    page = Page.for_terminal()
    page.values(items, margin=10)
    console.screen(page.lines)
    values = {
        "output": None if output is None else str(output),
        "dry_run": True,
        "resize": resized,
        "train": steps.get("train"),
        "evaluate": steps.get("evaluate"),
    }
    return values, warnings


def _show_warnings(
    console: Console, planned: "Planned", output: Path | None, *, force: bool
) -> list[str]:
    """Print and return the warnings of a dry run: what would fail, and rows without training."""
    warnings = list[str]()
    try:
        planned.check_output(output, force=force)
    except OutputError as error:
        warnings.append(f"This would fail: {error}")
    warnings += planned.explanation.untrained
    console.warning(*warnings)
    return warnings


def _steps(recipe: "Recipe") -> dict[str, dict[str, Any]]:
    """Return the settings of the steps after a resize, by name."""
    from ctxextend.recipe import plain_values

    steps = dict[str, dict[str, Any]]()
    if recipe.train is not None:
        steps["train"] = plain_values(recipe.train, defaults=True)
    if recipe.evaluate is not None:
        steps["evaluate"] = plain_values(recipe.evaluate, defaults=True)
    return steps


def _step_items(step: str, settings: Mapping[str, Any]) -> Items:
    """Yield the settings of a step that are given."""
    for name, value in settings.items():
        if value is None or value is False or value == []:
            continue
        items = value if isinstance(value, list) else [value]
        yield step, f"{name}: {' '.join(map(str, items))}"


def _plan_items(planned: "Planned", output: Path) -> Items:
    """Yield the lines of a plan: label and text."""
    plan = planned.plan
    source = planned.model.ref.source
    if planned.convert is not None:
        yield "source", source
        yield "output", str(output)
        yield "convert", planned.explanation.summary
        for detail in planned.explanation.details[1:]:
            yield "", detail
    else:
        yield "source", f"{source} ({plan.model_type})"
        yield "output", str(output)
        yield "method", planned.explanation.summary
        for table in plan.tables:
            yield from _table_items(table)
    yield from _edit_items(plan.edits)
    yield from _file_items(planned, output)


def _table_items(table: "TablePlan") -> Items:
    """Yield the lines of a table: where it is, and its lengths."""
    name = f"{table.name} ({table.part})" if table.part else table.name
    if not table.has_rows:
        yield "positions", f"{table.scheme}: {name}"
        yield "", f"{table.max_len_before} -> {table.max_len_after} tokens"
        return
    where = ", computed by transformers"
    if table.is_stored:
        where = f" in {table.file}, {table.dtype}"
    yield "table", f"{name}{where}, hidden size {table.hidden_size}"
    yield "", f"{table.max_len_before} -> {table.max_len_after} positions"
    rows = f"{table.rows_before} -> {table.rows_after} rows"
    if table.reserved_rows:
        rows += f", {table.reserved_rows} of them reserved"
    yield "", rows


def _edit_items(edits: "Sequence[Edit]") -> Items:
    """Yield a line for each changed value, and one for rotary settings in another dialect."""
    from ctxextend.families.rope_dialects import ADDED

    added = dict[str, list[str]]()
    for edit in edits:
        if edit.reason == ADDED:
            added.setdefault(edit.file, []).append(edit.key)
        else:
            yield "edit", _edit_text(edit)
    for file, keys in added.items():
        yield "edit", f"{file}: {', '.join(keys)} added ({ADDED})"


def _edit_text(edit: "Edit") -> str:
    """Return a changed value, with the reason if there is one."""
    from ctxextend.limits.length_edits import shown_value
    from ctxextend.limits.statements import NO_LIMIT

    before = edit.before
    if before is None:
        before = "unset"
    elif isinstance(before, int | float) and before >= NO_LIMIT:
        before = "no limit"
    text = f"{edit.file}: {edit.key} {shown_value(before)} -> {shown_value(edit.after)}"
    if edit.reason:
        return f"{text} ({edit.reason})"
    return text


def _file_items(planned: "Planned", output: Path) -> Items:
    """Yield the files and buffers of an output, as copied, edited or created ones."""
    from ctxextend.output.card import CARD_FILE

    plan = planned.plan
    files = planned.output.files_in(output)
    if plan.checkpoint.weights.index_file in planned.output.texts:
        yield "edit", f"{plan.checkpoint.weights.index_file}: totals and names"
    for name in plan.dropped:
        yield "drop", f"{name} (a position buffer that transformers creates itself)"
    for buffer in plan.rebuilt_buffers:
        yield "rebuild", f"{buffer.name} (a position buffer that transformers reads)"
    for name in files.rewritten:
        yield "rewrite", name
    if CARD_FILE in files.edited:
        yield "extend", CARD_FILE
    for name in files.created:
        yield "create", name
    for name in files.copied:
        yield "copy", name
    for name, kind in files.linked.items():
        yield "link", f"{name} ({LINK_TEXTS[kind]})"
    for name, reason in plan.checkpoint.omitted.items():
        yield "skip", f"{name} ({reason})"
    yield "write", size_text(planned.output.bytes_to_write)


def show_result(console: Console, result: "ResizeResult") -> None:
    """Print an output that was written, and the next commands."""
    planned = result.planned
    explanation = planned.explanation
    console.warning(*result.warnings[len(explanation.warnings) :])
    if result.verified:
        console.note("Verified: every check of `ctxextend verify` passed.")
    console.note(*explanation.details, *result.choices, *explanation.runtime_notes)
    console.note(*_skipped_notes(result))
    console.note(*_link_notes(result))
    if result.add_weights:
        console.note("Without weights. Add them and all other files:", f"  {result.add_weights}")
    effects = f"{explanation.effects} {_keep_hint(planned, result.for_runtime)}".strip()
    written = f"{size_text(result.bytes_written)} in {time_text(result.seconds)}"
    console.note(written, effects)
    _show_serving(console, result)
    console.data(str(result.output))
    console.next_steps(*_next_steps(result))


def _keep_hint(planned: "Planned", for_runtime: "RuntimePlan | None") -> str:
    """Return how to keep outputs for short inputs, in the requested runtime if there is one."""
    hint = planned.explanation.keep_hint
    if not hint or for_runtime is None:
        return hint
    from ctxextend.plan.effects import suggest_kept_rows

    return suggest_kept_rows(planned.plan, for_runtime.runtime)


def _link_notes(result: "ResizeResult") -> Iterator[str]:
    """Yield what the links of an output depend on, if it was to have any."""
    from ctxextend.output.output import Output

    output = result.planned.output
    if not (isinstance(output, Output) and output.links_weights):
        return
    linked = output.files.linked
    if not linked:
        yield ("Nothing is linked: every weights file changes, or is converted to safetensors.")
    hard = [name for name, kind in linked.items() if kind == "hard"]
    symbolic = [name for name, kind in linked.items() if kind == "symbolic"]
    if hard:
        yield (
            f"Hard-linked: {listed(hard)}. Editing such a file in place edits it here and in "
            f"{result.plan.checkpoint.root}, and in any folder that has a link to it too."
        )
    if symbolic:
        yield (
            f"Linked to the Hub cache: {listed(symbolic)}. The output has no weights without "
            f"the cache, or on another computer. To make a whole copy: {_whole_copy(result.output)}"
        )


def _whole_copy(output: Path) -> str:
    """Return the command that copies a folder with what its links lead to."""
    folder = not_an_option(str(output))
    return shlex.join(["cp", "-RL", folder, f"{folder}-copy"])


def _skipped_notes(result: "ResizeResult") -> Iterator[str]:
    """Yield the files that the output does not have, by reason."""
    by_reason = dict[str, list[str]]()
    for name, reason in result.plan.checkpoint.omitted.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"skipped: {listed(names)} ({reason})"


def _show_serving(console: Console, result: "ResizeResult") -> None:
    """Print the command that serves or converts an output for the requested runtime.

    A GGUF file is always served by llama.cpp.
    """
    if not result.serve:
        return
    if result.for_runtime is not None:
        name = result.for_runtime.runtime.name
    else:
        name = result.planned.explanation.runtimes[0].name
    console.note(f"In {name}:", f"  {result.serve}")


def _next_steps(result: "ResizeResult") -> Iterator[str]:
    """Yield commands to run on an output."""
    folder = shlex.quote(not_an_option(str(result.output)))
    plan = result.plan
    is_conversion = result.planned.convert is not None
    if result.add_weights:
        yield result.add_weights  # all others need them
    if is_conversion or (plan.creates_rows and plan.model.ref.table is None):
        yield f"ctxextend train {folder} --data TEXT --steps 200"
    if not result.verified:
        yield f"ctxextend verify {folder}"
    if result.load_code:
        yield f"python -c {shlex.quote(result.load_code)}"
    yield f"ctxextend inspect {folder}"


def finish(command: str, console: Console, result: "ResizeResult", settings: "Writing") -> None:
    """Print the result of `resize` or `convert`."""
    from ctxextend.recipe import Recipe

    recipe = Recipe(result.planned.source.ref, train=settings.training)
    output = settings.output
    force = settings.force
    values = to_json(result)
    warnings = list(result.warnings)
    if result.dry_run and console.quiet and result.for_runtime is not None:
        from ctxextend.plan.runtime_flags import runtime_flags

        values["flags"] = runtime_flags(result.for_runtime)
        console.data(values["flags"])
    elif result.dry_run:
        plan, warnings = show_plan(
            console,
            recipe,
            result.planned,
            output,
            force=force,
            for_runtime=result.for_runtime,
        )
        if recipe.train is not None:
            values["train"] = plan["train"]
    elif result.training is None:
        show_result(console, result)
    else:
        from ctxextend.training.train_result import TrainResult

        assert isinstance(result.training, TrainResult)
        if result.tuning is None:
            show_training(console, result.training)
        else:
            console.warning(*result.training.warnings)
        console.data(str(result.output))
        _show_serving(console, result)
        console.next_steps(*steps_after_training(result.output))
    if result.for_runtime is not None:
        warnings = [*result.for_runtime.warnings, *warnings]
    console.result(command, values, warnings)
