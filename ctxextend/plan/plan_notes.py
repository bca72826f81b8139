"""The notes of a planned resize, and those that other planned outputs share."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.checkpoints.folder import source_notes
from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.families.rope import read_rope
from ctxextend.limits.generation import generates_text
from ctxextend.notes import Code, Level, Note
from ctxextend.plan.edits import plan_edits
from ctxextend.plan.effects import far_notes, growing_text_notes, keeping_notes, output_notes
from ctxextend.plan.file_notes import file_notes
from ctxextend.plan.for_runtime import RuntimePlan, requested_engine_notes
from ctxextend.plan.layouts import weight_layouts
from ctxextend.plan.length_notes import (
    generation_notes,
    key_notes,
    limit_notes,
    padding_notes,
    scaling_notes,
)
from ctxextend.plan.plan import Plan
from ctxextend.plan.table_plan import TablePlan
from ctxextend.plan.untrained import describe_untrained
from ctxextend.runtimes.runtime_statements import RuntimeStatement, engine_notes
from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.rotary_methods import MSCALE
from ctxextend.tables.stats import describe_rows


def plan_notes(
    plan: Plan,
    statements: Sequence[RuntimeStatement],
    for_runtime: RuntimePlan | None = None,
) -> tuple[Note, ...]:
    """Return the notes of a planned resize.

    Args:
        plan: The resize.
        statements: What engines do with the output.
        for_runtime: What the requested engine does with it.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    model_class = plan.checkpoint.model_class or ""
    generates = generates_text(plan.checkpoint) and not model_class.endswith("ForMaskedLM")
    notes = list[Note]()
    if plan.is_changed:
        notes += output_notes(plan)
        notes += keeping_notes(plan, for_runtime)
        notes += far_notes(plan)
    else:
        notes.append(_unchanged(plan))
    notes += table_notes(plan)
    notes += limit_notes(plan)
    notes += scaling_notes(plan)
    notes += key_notes(plan)
    notes += padding_notes(plan)
    notes += growing_text_notes(plan.tables, generates=generates)
    notes += generation_notes(plan)
    notes += _other_files(plan)
    notes += model_notes(plan)
    if for_runtime is None:
        is_given = plan.settings.choice.settings.get(MSCALE) is not None
        can_add_keys = plan.method == SWITCH and not is_given
        notes += engine_notes(statements, plan.max_len_after, can_add_keys=can_add_keys)
    else:
        notes += requested_engine_notes(for_runtime)
    return tuple(notes)


def model_notes(plan: Plan) -> Iterator[Note]:
    """Yield how the source was read, what is special about its model type, and its files."""
    yield from source_notes(plan.checkpoint)
    families = [table.location.family for table in plan.tables]
    texts = [f"{family.model_type}: {family.note}." for family in families if family.note]
    for text in dict.fromkeys(texts):
        yield Note(Code.SOURCE, Level.NOTE, text)
    for table in plan.tables:
        if table.rope:
            yield from _window_notes(table)
    yield from file_notes(plan.checkpoint)


def _window_notes(table: TablePlan) -> Iterator[Note]:
    """Yield a note for layers with rotary positions that see no further than a sliding window."""
    location = table.location
    changed = {plan.before.layer_type for plan in table.rope}
    local = list[str]()
    for layers in read_rope(location):
        if layers.is_local and layers.layer_type not in changed:
            local.append(layers.layer_type)
    if local:
        names = ", ".join(local)
        text = f"{table.name}: {names} layers have a sliding window, so they keep their settings."
        yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)
        return
    window = location.stated("sliding_window")
    is_used = location.stated("use_sliding_window") is not False
    if isinstance(window, int) and is_used and not location.stated("layer_types"):
        text = (
            f"All layers see {window} tokens (sliding_window): {table.name} does not make them "
            "see further."
        )
        yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)


def table_notes(plan: Plan) -> Iterator[Note]:
    """Yield what a method chose from the values of each table, and its untrained rows."""
    for name, choice in plan.choices.items():
        if choice.reason:
            start = f"{name}: " if len(plan.choices) > 1 else ""
            yield Note(Code.METHOD, Level.NOTE, f"{start}{choice.reason}.")
    for table in plan.tables:
        if table.untrained is None:
            continue
        texts = list(describe_untrained(table.untrained.random))
        if table.untrained.zero:
            texts.insert(0, f"zero rows: {describe_rows(table.untrained.zero)}")
        for text in texts:
            yield Note(Code.TENSORS, Level.WARNING, f"{table.name} {text}.")


def _unchanged(plan: Plan) -> Note:
    """Return the note that the length stays, with the flags that have no effect."""
    output = "a copy"
    if weight_layouts(plan):
        output = "the same weights as safetensors"
    if plan.edits:
        output += " with fixed length limits"
    text = f"the output is {output}."
    if plan.settings.method_flags:
        text += f" No effect: {', '.join(plan.settings.method_flags)}."
    if not plan.settings.fix_limits and gguf_of(plan.checkpoint) is None:
        fixed = replace(plan.settings, fix_limits=True)
        if plan_edits(plan.model, plan.tables, fixed):
            text += " Some length limits differ: --fix-limits makes them agree."
    length = plan.max_len_before
    if plan.has_rows:
        return Note(
            Code.UNCHANGED, Level.WARNING, f"The table already has {length} positions: {text}"
        )
    return Note(Code.UNCHANGED, Level.WARNING, f"The context length already is {length}: {text}")


def _other_files(plan: Plan) -> Iterator[Note]:
    """Yield what must change besides the output: a config, a base, a tensor that was not named."""
    checkpoint = plan.checkpoint
    base = checkpoint.adapter_of
    if not checkpoint.has_config and not base and gguf_of(checkpoint) is None:
        lengths = {}
        for table in plan.tables:
            lengths[table.config_key] = table.location.key_value(table.max_len_after)
        keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
        text = f"No config.json found. To load the output, transformers needs one with {keys}."
        yield Note(Code.FILES, Level.WARNING, text)
    if base and plan.is_changed:
        text = (
            f"The adapter now only fits {base} at {plan.max_len_after} positions: resize that "
            "too, and load the adapter onto the result (adapter_config.json is not updated)."
        )
        yield Note(Code.ADAPTER, Level.WARNING, text)
    named = plan.model.ref.table
    if named is None or not plan.is_changed:
        return
    lengths_before = {table.rows_before for table in plan.tables}
    lengths_before |= {table.max_len_before for table in plan.tables}
    for entry in checkpoint.weights.entries.values():
        is_other = entry.name != named.tensor and "pos" in entry.name
        if is_other and lengths_before & set(entry.shape):
            shape = list(entry.shape)
            text = f"{entry.name} {shape} may depend on the length too, but is not changed."
            yield Note(Code.TENSORS, Level.WARNING, text)
