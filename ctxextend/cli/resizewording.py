"""What `resize` says: its plan, and what to do with its output."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.cli.output import one_line

if TYPE_CHECKING:
    from ctxextend.plan.plan import ResizePlan, ResizeResult
    from ctxextend.recipe import CheckpointRef

__all__ = ["NEXT_COMMANDS", "last_line", "plan_text", "settings_text"]

# What to type next, by the command.
NEXT_COMMANDS = {
    "inspect": "to look: ctxextend inspect {output}{variant}{described}",
    "verify": "to prove: ctxextend verify {source} {output}{origin}{described}",
    "train": "to train: ctxextend train {output} --data TEXT --steps 200",
}


def last_line(result: "ResizeResult") -> str:
    """Say what the output is worth, and what to type next."""
    name = str(result.output)
    output = shlex.quote(f"./{name}" if name.startswith("-") else name)  # no option
    words = _source_words(result.plan.ref)
    steps = [text.format(output=output, **words) for text in NEXT_COMMANDS.values()]
    if result.plan.checkpoint.has_config and not result.plan.checkpoint.is_adapter and _class(result):
        steps.append(f"to load: python -c {_load(result)}")
    steps.append(f"to share: hf upload {shlex.quote(result.output.name)} {output}")
    return f"{result.plan.consequences} Next, {'; '.join(steps)}"


def _source_words(ref: "CheckpointRef") -> dict[str, str]:
    """Return the source, and the flags that say which part of it was taken and what it is, as they are typed."""
    from ctxextend.recipe import flag_words

    flags: dict[str, dict[str, Any]] = {
        "origin": {"revision": ref.revision, "subfolder": ref.subfolder, "variant": ref.variant},
        "variant": {"variant": ref.variant},
        "described": {
            **{"family": ref.model_type, "table": ref.table, "config-key": ref.config_key},
            "offset": ref.reserved_rows or None,
        },
    }
    typed = {name: shlex.join(["", *flag_words(values)])[2:] for name, values in flags.items()}
    return {"source": shlex.quote(ref.source), **typed}


def _class(result: "ResizeResult") -> str | None:
    """Return the class that loads the result; None for a model of the user's own."""
    ref, checkpoint = result.plan.ref, result.plan.checkpoint
    is_own = ref.table is not None or ref.model_type is not None or "auto_map" in checkpoint.config
    return None if is_own else checkpoint.model_class or "AutoModel"


def _load(result: "ResizeResult") -> str:
    folder = str(result.output / result.plan.checkpoint.model)
    variant = result.plan.checkpoint.stored.variant
    flags = f"{folder!r}" + (f", variant={variant!r}" if variant else "")
    load = f"from transformers import {_class(result)}; {_class(result)}.from_pretrained({flags})"
    return shlex.quote(load) if set(load) & set('"$`\\!') else f'"{load}"'


def plan_text(plan: "ResizePlan", output: Path) -> str:
    """Return a plan, a line for each thing that it does."""
    from ctxextend.plan.changes import CARD_FILE

    lines = [("source", f"{plan.ref.source} ({plan.family})"), ("output", str(output))]
    typed = plan.settings.options.typed
    given = "".join(f", --{flag} {value}" for flag, value in typed.items() if value is not None)
    lines += [("method", plan.method + given * plan.makes_rows)]
    for table in plan.tables:
        offset = f", {table.offset} rows in front of position 0" if table.offset else ""
        part = f" ({table.part})" if table.part else ""
        lines += [
            ("table", f"{table.name}{part} in {table.file}, {table.dtype}, {table.hidden_size} wide"),
            ("", f"{table.max_len_before} -> {table.max_len_after} positions"),
            ("", f"{table.rows_before} -> {table.rows_after} rows{offset}"),
        ]
    for edit in plan.edits:
        why = f" ({edit.why})" if edit.why else ""
        lines += [("edit", f"{edit.file}: {edit.key} {_shown(edit.before)} -> {_shown(edit.after)}{why}")]
    lines += [("edit", f"{plan.checkpoint.index_file}: totals and names")] * plan.edits_index
    lines += [("drop", f"{name} (a position buffer that transformers makes itself)") for name in plan.dropped]
    lines += [("make anew", f"{buffer.name} (a position buffer that transformers reads)") for buffer in plan.remade]
    lines += [("rewrite", name) for name in plan.rewritten]
    lines += [("add to", name) for name in plan.edited if name == CARD_FILE]
    lines += [("create", name) for name in plan.created]
    lines += [("copy", name) for name in plan.copied]
    lines += [("leave out", f"{name} ({why})") for name, why in plan.checkpoint.omitted.items()]
    lines += [("write", f"{plan.bytes_to_write:,} bytes")]
    if shared := plan.bytes_shared(output):
        rest = plan.bytes_to_write - shared
        lines += [("share", f"{shared:,} of them with the source, as this disk can; {rest:,} take room")]
    shown, previous = [], ""
    for label, text in lines:
        shown.append(one_line(f"{'' if label == previous else label:<10}{text}"))
        previous = label or previous
    return "\n".join(shown)


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    return "no limit" if isinstance(value, int | float) and value >= 10**9 else str(value)


def settings_text(step: str, settings: dict[str, Any]) -> str:
    """Return the settings of a step that say something, one a line."""
    given = {
        name: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value is not None and value is not False and value != ()
    }
    lines = [f"{name}: {value}" for name, value in given.items()]
    return "\n".join(f"{step if number == 0 else '':<10}{line}" for number, line in enumerate(lines))
