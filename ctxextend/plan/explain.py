"""Explain a plan in words: notes, warnings, and what to expect of the output."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ctxextend.checkpoints.folder import source_notes
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.families.rope import read_rope
from ctxextend.limits.generation import generates_text
from ctxextend.plan.edits import plan_edits
from ctxextend.plan.effects import (
    describe_effects,
    growth_notes,
    growth_warnings,
    suggest_kept_rows,
)
from ctxextend.plan.file_warnings import file_warnings
from ctxextend.plan.found_table import ignored_tensors
from ctxextend.plan.gguf_runtime import gguf_statements
from ctxextend.plan.layouts import weight_layouts
from ctxextend.plan.length_notes import (
    generation_edit_notes,
    generation_notes,
    length_key_warnings,
)
from ctxextend.plan.limit_warnings import low_limits, missing_scaling, padding_warnings
from ctxextend.plan.plan import Plan
from ctxextend.plan.runtime_facts import folder_facts
from ctxextend.plan.table_plan import TablePlan
from ctxextend.runtimes.rule_schema import SWITCHED, FolderFacts, RuntimeStatement
from ctxextend.runtimes.runtime_notes import describe_ignored_factor, describe_statements
from ctxextend.runtimes.runtime_statements import runtime_statements


class Explanation(NamedTuple):
    """What commands and model cards say about a plan."""

    summary: str  # the methods with their settings, or what else creates the output
    details: tuple[str, ...]  # the change of each table
    notes: tuple[str, ...]  # how the reference was resolved, and what to know of the model type
    warnings: tuple[str, ...]  # to show before the output is written
    untrained: tuple[str, ...]  # warnings about rows that no training has changed
    choices: tuple[str, ...]  # what a method chose from a table's values, and why
    effects: str  # what to expect of the model's outputs before any training
    keep_hint: str  # how to keep outputs for short inputs, or the next command; may be empty
    runtimes: tuple[RuntimeStatement, ...]  # what each runtime does with the output
    runtime_notes: tuple[str, ...]  # the same in words


def explain(plan: Plan) -> Explanation:
    """Explain the plan of a resize.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    facts = folder_facts(plan)
    runtimes = find_runtimes(facts)
    in_words = runtime_notes(facts, runtimes)
    if gguf_of(plan.checkpoint) is not None:
        runtimes = gguf_statements(plan)
        in_words = describe_statements(runtimes, plan.max_len_after)
    return Explanation(
        summary=_summarise(plan),
        details=tuple(_describe_table(plan, table) for table in plan.tables),
        notes=(
            *model_notes(plan),
            *growth_notes(plan.tables, generates=_generates(plan)),
            *_generation_notes(plan),
        ),
        warnings=(
            *_warnings(plan),
            *_runtime_warnings(facts, runtimes),
            *file_warnings(plan.checkpoint),
        ),
        untrained=tuple(_untrained_warnings(plan)),
        choices=tuple(_describe_choices(plan)),
        effects=describe_effects(plan),
        keep_hint=suggest_kept_rows(plan),
        runtimes=runtimes,
        runtime_notes=in_words,
    )


def _summarise(plan: Plan) -> str:
    """Return the methods with their settings, or what else creates the output, in a few words."""
    parts = list(dict.fromkeys(plan.methods.values())) or [plan.method]
    kept = plan.settings.choice.keep_first
    if plan.creates_rows and kept:
        parts.append(f"--keep-first {kept}")
    return ", ".join(parts)


def _describe_table(plan: Plan, table: TablePlan) -> str:
    """Return the change of a table in a few words."""
    if not table.is_changed:
        return f"{table.name}: {table.max_len_after} positions, unchanged"
    method = plan.method
    if table.choice is not None:
        method = table.choice.name
    return f"{table.name}: {table.max_len_before} -> {table.max_len_after} positions, {method}"


def _describe_choices(plan: Plan) -> Iterator[str]:
    """Yield the settings that a method chose from a table's values, as sentences."""
    for name, choice in plan.choices.items():
        if choice.reason:
            yield f"{name}: {choice.reason}"


def _untrained_warnings(plan: Plan) -> Iterator[str]:
    """Yield a warning for each kind of rows that no training has changed."""
    for table in plan.tables:
        if table.untrained is not None:
            for text in table.untrained.describe():
                yield f"{table.name} {text}"


# ---- notes


def model_notes(plan: Plan) -> Iterator[str]:
    """Yield notes about how the reference was resolved, the model type and its lengths."""
    yield from source_notes(plan.checkpoint)
    yield from ignored_tensors(plan.checkpoint, plan.model.tables)
    families = [table.location.family for table in plan.tables]
    yield from dict.fromkeys(
        f"{family.model_type}: {family.note}." for family in families if family.note
    )
    for table in plan.tables:
        yield from _length_notes(table)
    for table in plan.tables:
        yield from _window_notes(table)


def _length_notes(table: TablePlan) -> Iterator[str]:
    """Yield the three lengths of rotary positions if their key does not state the served one."""
    lengths = table.lengths
    if lengths is None or lengths.stated == lengths.served or not table.rope:
        return
    yield (
        f"{table.name}: first trained at {lengths.first_trained} tokens, serves "
        f"{lengths.served}; {table.location.effective_key} states {lengths.stated}."
    )


def _window_notes(table: TablePlan) -> Iterator[str]:
    """Yield a note for layers with rotary positions that see no further than a sliding window."""
    if not table.rope:
        return
    location = table.location
    changed = {plan.before.layer_type for plan in table.rope}
    kept = [layers for layers in read_rope(location) if layers.layer_type not in changed]
    local = [layers.layer_type for layers in kept if layers.is_local]
    if local:
        names = ", ".join(local)
        yield f"{table.name}: {names} layers have a sliding window, so they keep their settings."
        return
    window = location.stated("sliding_window")
    is_used = location.stated("use_sliding_window") is not False
    if isinstance(window, int) and is_used and not location.stated("layer_types"):
        yield (
            f"All layers see {window} tokens (sliding_window): {table.name} does not make them "
            "see further."
        )


def _generates(plan: Plan) -> bool:
    """Whether the model writes text token by token."""
    model_class = plan.checkpoint.model_class or ""
    return generates_text(plan.checkpoint) and not model_class.endswith("ForMaskedLM")


def _generation_notes(plan: Plan) -> Iterator[str]:
    """Yield notes about limits of generated texts that change, or at which they still stop."""
    yield from generation_edit_notes(plan.edits)
    if not plan.settings.fix_limits:
        yield from generation_notes(plan.model, plan.tables, alternative=", or pass --fix-limits")


# ---- warnings


def _warnings(plan: Plan) -> Iterator[str]:
    """Yield the warnings to show before the output is written."""
    if not plan.is_changed:
        yield _nothing_to_do(plan)
    yield from low_limits(plan)
    yield from missing_scaling(plan)
    yield from length_key_warnings(plan.model, plan.tables, plan.settings)
    yield from padding_warnings(plan)
    yield from _missing_config(plan)
    yield from _adapter_warnings(plan)
    yield from growth_warnings(plan.tables, generates=_generates(plan))
    yield from _other_tables(plan)


def _nothing_to_do(plan: Plan) -> str:
    """Say that the length stays, what the output is then, and which flags have no effect."""
    output = "a copy"
    if weight_layouts(plan):
        output = "the same weights as safetensors"
    if plan.edits:
        output += " with fixed length limits"
    text = f"the output is {output}."
    if plan.settings.method_flags:
        text += f" No effect: {', '.join(plan.settings.method_flags)}."
    if _limits_differ(plan):
        text += " Some length limits differ: --fix-limits makes them agree."
    length = plan.max_len_before
    if plan.has_rows:
        return f"The table already has {length} positions: {text}"
    return f"The context length already is {length}: {text}"


def _limits_differ(plan: Plan) -> bool:
    """Whether the files state length limits that --fix-limits would change."""
    if plan.settings.fix_limits or gguf_of(plan.checkpoint) is not None:
        return False
    settings = replace(plan.settings, fix_limits=True)
    return bool(plan_edits(plan.model, plan.tables, settings))


def _missing_config(plan: Plan) -> Iterator[str]:
    """Yield a warning if transformers needs a config to load the output."""
    checkpoint = plan.checkpoint
    if checkpoint.has_config or checkpoint.adapter_of:
        return
    if gguf_of(checkpoint) is not None:
        return
    lengths = {}
    for table in plan.tables:
        lengths[table.config_key] = table.location.key_value(table.max_len_after)
    keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
    yield f"No config.json found. To load the output, transformers needs one with {keys}."


def _adapter_warnings(plan: Plan) -> Iterator[str]:
    """Yield a warning if an adapter contains the table, so that its base must be resized too."""
    base = plan.checkpoint.adapter_of
    if base and plan.is_changed:
        yield (
            f"The adapter now only fits {base} at {plan.max_len_after} positions: resize that "
            "too, and load the adapter onto the result (adapter_config.json is not updated)."
        )


def _other_tables(plan: Plan) -> Iterator[str]:
    """Yield a warning for tensors that may be as long as the one that the user named."""
    table = plan.model.ref.table
    if table is None or not plan.is_changed:
        return
    lengths = {table.rows_before for table in plan.tables}
    lengths |= {table.max_len_before for table in plan.tables}
    for entry in plan.checkpoint.weights.entries.values():
        if entry.name != table.tensor and "pos" in entry.name and lengths & set(entry.shape):
            shape = list(entry.shape)
            yield f"{entry.name} {shape} may depend on the length too, but is not changed."


# ---- runtimes


def find_runtimes(facts: FolderFacts | None) -> tuple[RuntimeStatement, ...]:
    """Return what each runtime does with a folder; of an unknown one, nothing."""
    if facts is None:
        return ()
    return runtime_statements(facts)


def runtime_notes(
    facts: FolderFacts | None, runtimes: tuple[RuntimeStatement, ...]
) -> tuple[str, ...]:
    """Return which runtimes read the new length, and what the others do."""
    if facts is None:
        return ()
    return describe_statements(runtimes, facts.max_len)


def _runtime_warnings(
    facts: FolderFacts | None, runtimes: tuple[RuntimeStatement, ...]
) -> Iterator[str]:
    """Yield a warning if runtimes ignore a setting that changes all outputs."""
    if facts is not None:
        can_add_keys = facts.positions == SWITCHED and not facts.list_mscales
        yield from describe_ignored_factor(runtimes, can_add_keys=can_add_keys)
