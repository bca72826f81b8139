"""`ctxextend resize`, and what it, `convert`, `run` and `train` print of an output."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.cli.show_training import show_training
from ctxextend.errors import counted, listed, not_an_option, size_text, time_text
from ctxextend.notes import Level
from ctxextend.runtimes.engines import ENGINES
from ctxextend.settings import ATTENTION_WINDOWS, CheckpointRef, Resize

if TYPE_CHECKING:
    from ctxextend.pipeline import RunResult
    from ctxextend.planned import Planned, ResizeResult

Items = Iterator[tuple[str, str]]

LABEL_WIDTH = 10  # width of the column of labels
# What a link in an output is.
LINK_TEXTS = {
    "hard": "hard link: the file of the source, not a copy",
    "symbolic": "symbolic link to the Hub cache",
}


@options.command(CheckpointRef, Resize)
def resize(ref: CheckpointRef, settings: Resize, console: Console) -> None:
    """Resize the position embeddings and save a new checkpoint.

    Examples:
        ctxextend resize gpt2 --to 4096
        ctxextend resize Qwen/Qwen2.5-7B-Instruct --to 128k --edit-only
    """
    from ctxextend.resizing import resize_checkpoint

    result = resize_checkpoint(ref, settings, console)
    finish("resize", console, result)


def finish(command: str, console: Console, result: "ResizeResult") -> None:
    """Print the result of `resize` or `convert`."""
    if result.dry_run:
        show_plan(console, result.source, result)
    else:
        show_output(console, result)
    console.result(command, result, warnings=None)


def show_plan(
    console: Console,
    source: str,
    result: "ResizeResult | None",
    *,
    output: Path | None = None,
    **steps: Any,
) -> None:
    """Print what would be written.

    Args:
        console: Prints it.
        source: The reference of the checkpoint.
        result: The resize or conversion, of a dry run.
        output: The output folder without one, if it is known.
        steps: The settings of the steps after it, by name.
    """
    from ctxextend.recipe import plain_values

    items = [("source", source)]
    if result is not None:
        items = list(_plan_items(result))
    elif output is not None:
        items.append(("output", str(output)))
    for name, settings in steps.items():
        if settings is None:
            continue
        for key, value in plain_values(settings, defaults=True).items():
            if value is None or value is False or value == []:
                continue
            values = value if isinstance(value, list) else [value]
            items.append((name, f"{key}: {' '.join(map(str, values))}"))
    page = Page.for_terminal()
    page.values(items, margin=LABEL_WIDTH)
    console.screen(page.lines)
    if result is not None:
        _show_notes(console, result)


def _plan_items(result: "ResizeResult") -> Items:
    from ctxextend.card import CARD_FILE

    planned = result.planned
    plan = planned.plan
    checkpoint = plan.checkpoint
    source = result.source
    if plan.convert is None:
        source = f"{source} ({plan.model_type})"
    yield "source", source
    yield "output", str(result.output)
    yield from _change_items(planned, with_settings=True)
    yield from _edit_items(planned)
    if checkpoint.weights.index_file in getattr(planned.output, "texts", ()):
        yield "edit", f"{checkpoint.weights.index_file}: totals and names"
    for name in plan.dropped:
        yield "drop", f"{name} (a position buffer that transformers creates itself)"
    for name in plan.buffers:
        yield "rebuild", f"{name} (a position buffer that transformers reads)"
    files = result.files
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
    for name, reason in checkpoint.omitted.items():
        yield "skip", f"{name} ({reason})"
    yield "write", size_text(result.bytes_to_write)


def _change_items(planned: "Planned", *, with_settings: bool = False) -> Items:
    plan = planned.plan
    if plan.convert is not None:
        before = planned.base.architecture.family.model_type
        yield "convert", f"{before} -> {plan.model_type} ({plan.convert.result})"
        if plan.convert.scheme != ATTENTION_WINDOWS:
            return
    for table in plan.changes:
        change = "unchanged"
        if table.is_changed:
            method = plan.method
            if table.choice is not None:
                method = table.choice.name
            if table.choice is not None and with_settings:
                method = table.choice.text
                if table.choice.keep_first:
                    method += f" --keep-first {table.choice.keep_first}"
            change = f"{table.max_len_before} -> {table.max_len_after} positions by {method}"
        if table.reserved_rows:
            change += f", after {counted(table.reserved_rows, 'reserved row')}"
        name = f"{table.name} ({table.part})" if table.part else table.name
        yield "positions", f"{table.scheme}: {name}, {change}"


def _edit_items(planned: "Planned") -> Items:
    from ctxextend.checkpoint.json_edit import shown_value
    from ctxextend.limits.statements import NO_LIMIT
    from ctxextend.positions.rotary_dialects import ADDED

    added = dict[str, list[str]]()
    for edit in planned.edits:
        if edit.reason == ADDED:
            added.setdefault(edit.file, []).append(edit.key)
            continue
        before = edit.before
        if before is None:
            before = "unset"
        elif isinstance(before, int | float) and before >= NO_LIMIT:
            before = "no limit"
        text = f"{edit.file}: {edit.key} {shown_value(before)} -> {shown_value(edit.after)}"
        if edit.reason:
            text = f"{text} ({edit.reason})"
        yield "edit", text
    for file, keys in added.items():
        yield "edit", f"{file}: {', '.join(keys)} added ({ADDED})"


def _show_notes(console: Console, result: "ResizeResult") -> None:
    page = Page.for_terminal()
    for note in result.notes:
        line = note.text
        if note.level == Level.WARNING:
            line = f"Warning: {line}"
        if line not in console.printed:  # a warning may be printed before the output is written
            page.text(line, "wrong" if note.level == Level.WARNING else "")
            console.printed.add(line)
    console.report(page.lines)
    if result.dry_run:
        return
    if result.add_weights:
        console.note("Without weights. Add them and all other files:", f"  {result.add_weights}")
    if result.serve:
        name = ENGINES[result.plan.engine or ""].name
        console.note(f"In {name}:", f"  {result.serve}")


def _next_step(result: "ResizeResult") -> str:
    folder = shlex.quote(not_an_option(str(result.output)))
    plan = result.planned.plan
    if result.train is not None:
        return f"ctxextend evaluate {folder} --data TEXT"
    base = plan.checkpoint.adapter_of
    if base and plan.is_changed:
        return f"ctxextend resize {shlex.quote(base)} --to {plan.max_len_after}"
    if not result.verified:
        return f"ctxextend verify {folder}"
    if plan.convert is not None or plan.extended:
        return f"ctxextend train {folder} --data TEXT --steps 200"
    return f"ctxextend inspect {folder}"


def show_output(console: Console, result: "ResizeResult") -> None:
    """Print an output that was written: its length, what changed, what to know, and what is next.

    On a terminal, the first line names the output; in a pipe, its path is all of stdout.
    """
    from ctxextend.plan_notes import old_lengths

    planned = result.planned
    plan = planned.plan
    before = old_lengths(plan)
    length = f"{plan.max_len_after} tokens ({before} before)"
    if before == str(plan.max_len_after):
        length = f"{before} tokens, as before"
    items = list(_change_items(planned))
    keys = dict[str, list[str]]()
    for edit in plan.edits:
        keys.setdefault(edit.file, []).append(edit.key)
    if keys:
        edited = [f"{file} {', '.join(names)}" for file, names in keys.items()]
        items.append(("edited", "; ".join(edited)))
    buffers = [*plan.dropped, *plan.buffers]
    if buffers:
        items.append(("buffers", listed(buffers)))
    if result.verified:
        items.append(("verified", "every check of ctxextend verify passed"))
    written = f"{size_text(result.bytes_written)} in {time_text(result.seconds)}"
    page = Page.for_terminal()
    page.text(f"{result.output}: {length}, {written}", "title")
    page.values(items, margin=LABEL_WIDTH)
    console.report(page.lines)
    _show_notes(console, result)
    if console.quiet or not (sys.stdout.isatty() and sys.stderr.isatty()):
        console.data(str(result.output))
    if not result.add_weights:  # else the command that adds them is next
        console.next_steps(_next_step(result))


def show_steps(console: Console, result: "RunResult") -> None:
    """Print what a resize, a conversion or a training did."""
    from ctxextend.planned import ResizeResult
    from ctxextend.training.train_result import TrainResult

    if isinstance(result.resize, ResizeResult):
        show_output(console, result.resize)
    elif isinstance(result.train, TrainResult):
        show_training(console, result.train)
        console.data(str(result.train.output))
        if result.evaluate is None:
            folder = shlex.quote(str(result.train.output))
            console.next_steps(f"ctxextend evaluate {folder} --data TEXT")
