"""The notes of a planned output: what to know before it is used."""

from collections.abc import Iterator, Sequence

from ctxextend.checkpoint.checkpoint import MODULES, Checkpoint
from ctxextend.checkpoint.source import OUTSIDE, dereference_hint
from ctxextend.errors import listed
from ctxextend.limits.edits import length_changes
from ctxextend.limits.statements import (
    MAX_NEW_TOKENS,
    MAXIMA,
    LengthLimit,
    Meaning,
    generating_table,
    generation_limits,
    length_limits,
    lower_stated_length,
    may_lack_scaling,
    may_take,
)
from ctxextend.notes import Code, Level, Note
from ctxextend.plan import Plan
from ctxextend.positions.change import Change, ShortInputs
from ctxextend.positions.facts import BEYOND
from ctxextend.positions.positions import Keys
from ctxextend.serving.engine_statements import Statement, engine_notes
from ctxextend.tables.method_facts import LIMITS
from ctxextend.tables.stats import describe_random, describe_rows

# The start of a note and of cards, which `card` replaces after training.
NOT_TRAINED = "Not yet trained at {}."
# Lengths beyond this many times the trained one get a warning; of sentence encoders, the second.
# Not yet useful and useful lengths: docs/results.md.
FAR_FACTOR = 8
FAR_FACTOR_OF_SEARCH = 16


def plan_notes(plan: Plan, runtimes: Sequence[Statement]) -> tuple[Note, ...]:
    """Return the notes of a planned resize.

    Args:
        plan: The resize.
        runtimes: What engines do with the output.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    model_class = plan.checkpoint.model_class or ""
    generates = plan.checkpoint.generates and not model_class.endswith("ForMaskedLM")
    limits = list(limit_notes(plan))
    notes = list[Note]()
    if plan.is_changed:
        notes += _effect_notes(plan, truncated_before=bool(limits))
        notes += far_notes(plan)
    else:
        notes.append(_unchanged(plan))
    notes += table_notes(plan)
    notes += limits
    notes += _key_notes(plan)
    for change in plan.changes:
        if change.positions.methods:
            notes += _scaling_notes(plan, change)
        if change.is_changed and change.positions.family.padding_effect:
            notes.append(_padding_note(change))
        if change.settings:
            notes += change.positions.notes(change, generates=generates)
    notes += generation_notes(plan)
    notes += model_notes(plan)
    notes += engine_notes(plan, runtimes)
    return tuple(notes)


# What inputs give


def _effect_notes(plan: Plan, *, truncated_before: bool) -> Iterator[Note]:
    after = plan.max_len_after
    conditions = ""
    if any(change.positions.family.padding_effect for change in plan.changes):
        conditions += " if padded as before"
    if truncated_before:
        conditions += " unless they were truncated before"
    if not plan.extended:
        longer = "are not supported"
        if all(change.positions.longer_inputs == "get computed rows" for change in plan.changes):
            longer = "get computed rows"
        text = f"Inputs up to {after} tokens give identical outputs{conditions}; longer inputs"
        yield Note(Code.SHORT_INPUTS, Level.NOTE, f"{text} {longer}.")
        return
    if all(change.settings and not change.scales for change in plan.extended):
        change = plan.extended[0]
        served = change.positions.lengths.served
        start = f"The settings already serve {served} tokens."
        if after > served:
            start = f"Nothing scales: beyond {served} tokens, {BEYOND[change.scheme]}."
        text = (
            f"{start} No position changes its meaning: inputs up to {after} tokens give identical "
            f"outputs{conditions}."
        )
        yield Note(Code.SHORT_INPUTS, Level.NOTE, text)
        return

    kept = old_lengths(plan)
    if plan.changes[0].settings:
        kept = str(plan.changes[0].same_up_to)
    choice = plan.main_choice
    longer = choice.facts.long_inputs
    if choice.name == LIMITS:
        longer = BEYOND[plan.extended[0].scheme]
    text = f"{NOT_TRAINED.format(after)} Beyond {kept}, {longer}."
    yield Note(Code.UNTRAINED, Level.NOTE, text)
    same = "identical outputs"
    if plan.short_inputs is ShortInputs.ROUNDED:
        same = "the same outputs within float32 rounding"
    text = f"Inputs up to {kept} tokens give {same}{conditions}."
    if plan.short_inputs is ShortInputs.CHANGED:
        effect = choice.facts.short_inputs
        if any(change.switches for change in plan.changes):
            effect = "the attention factor applies to short inputs too, so their outputs change"
        if choice.facts.keeps_learned_rows and not choice.keeps_learned_rows:
            effect = "learned rows are replaced, so outputs for short inputs change too"
        if choice.keep_first:
            effect += f" (the first {choice.keep_first} rows are kept)"
        text = f"{effect[:1].upper()}{effect[1:]}."
    yield Note(Code.SHORT_INPUTS, Level.NOTE, text)


def old_lengths(plan: Plan) -> str:
    """Return the tables' old lengths: one number if they agree, else each with its part."""
    lengths = {change.part: change.max_len_before for change in plan.changes}
    if len(set(lengths.values())) == 1:
        return str(plan.max_len_before)
    return " and ".join(f"{length} ({part})" for part, length in lengths.items())


def far_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning if the length is further from the trained one than any measured as useful."""
    after = plan.max_len_after
    served = [change.positions.lengths.served for change in plan.extended]
    trained = min(served, default=plan.max_len_before)
    most = FAR_FACTOR
    if MODULES in plan.checkpoint.copied:
        most = FAR_FACTOR_OF_SEARCH
    if after > most * trained:
        text = (
            f"{after} is {after / trained:.0f} times the trained length of {trained}. Nothing "
            "beyond 4 times was measured as useful for language models: there, untrained, "
            "perplexity is 3 to 13 % higher than in sliding windows with yarn, and 21 to 62 % with "
            "new rows. For search, nothing beyond 16 times was."
        )
        yield Note(Code.FAR, Level.WARNING, text)


def _unchanged(plan: Plan) -> Note:
    output = "a copy"
    if plan.layouts:
        output = "the same weights as safetensors"
    if plan.edits:
        output += " with fixed length limits"
    text = f"the output is {output}."
    if plan.settings.method_flags:
        text += f" No effect: {', '.join(plan.settings.method_flags)}."
    if plan.has_wrong_limits:
        text += " Some length limits differ: --fix-limits makes them agree."
    start = f"The context length already is {plan.max_len_before}"
    return Note(Code.UNCHANGED, Level.WARNING, f"{start}: {text}")


# What is special about the source


def table_notes(plan: Plan) -> Iterator[Note]:
    """Yield what a method chose from the values of each table, and its untrained rows."""
    for change in plan.extended:
        if change.choice is not None and change.choice.reason:
            start = f"{change.name}: " if len(plan.extended) > 1 else ""
            yield Note(Code.METHOD, Level.NOTE, f"{start}{change.choice.reason}.")
    for change in plan.changes:
        if change.untrained is None:
            continue
        texts = list(describe_random(change.untrained.random))
        if change.untrained.zero:
            texts.insert(0, f"zero rows: {describe_rows(change.untrained.zero)}")
        for text in texts:
            yield Note(Code.TENSORS, Level.WARNING, f"{change.name} {text}.")


def model_notes(plan: Plan) -> Iterator[Note]:
    """Yield what is special about the source: its files, how it was read, and its model type."""
    checkpoint = plan.checkpoint
    base = checkpoint.adapter_of
    if not checkpoint.config and not base:
        keys = dict[str, None]()
        for change in plan.changes:
            keys[f"{change.config_key} {change.positions.key_value(change.max_len_after)}"] = None
        text = (
            "No config.json found. To load the output, transformers needs one with "
            f"{', '.join(keys)}."
        )
        yield Note(Code.FILES, Level.WARNING, text)
    if base and plan.is_changed:
        text = (
            f"The adapter now only fits {base} at {plan.max_len_after} positions: resize that "
            "too, and load the adapter onto the result (adapter_config.json is not updated)."
        )
        yield Note(Code.ADAPTER, Level.WARNING, text)
    named = plan.model.ref.table
    lengths_before = {change.rows_before for change in plan.changes}
    lengths_before |= {change.max_len_before for change in plan.changes}
    if named is not None and plan.is_changed:
        for entry in checkpoint.weights.entries.values():
            is_other = entry.name != named.tensor and "pos" in entry.name
            if is_other and lengths_before & set(entry.shape):
                shape = list(entry.shape)
                text = f"{entry.name} {shape} may depend on the length too, but is not changed."
                yield Note(Code.TENSORS, Level.WARNING, text)
    yield from checkpoint.source.notes
    families = [change.positions.family for change in plan.changes]
    texts = [f"{family.model_type}: {family.note}." for family in families if family.note]
    for text in dict.fromkeys(texts):
        yield Note(Code.SOURCE, Level.NOTE, text)
    yield from file_notes(checkpoint)


def file_notes(checkpoint: Checkpoint) -> Iterator[Note]:
    """Yield the files that are not copied, by reason."""
    by_reason = dict[str, list[str]]()
    for name, reason in checkpoint.omitted.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        level = Level.NOTE
        text = f"Not copied: {listed(names)} ({reason})."
        if reason == OUTSIDE:
            level = Level.WARNING
            kind = "symlinks that point" if len(names) > 1 else "a symlink that points"
            hint = dereference_hint(checkpoint.root)
            text = f"Not copied: {listed(names)}, {kind} outside the folder. {hint}"
        yield Note(Code.FILES, level, text)


# Length limits


def limit_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning if limits below the old length are raised, which changes outputs."""
    old_length = plan.max_len_before
    if not (plan.extended or plan.settings.fix_limits):
        return
    raised = []
    for edit in plan.edits:
        is_number = edit.is_limit and isinstance(edit.before, int)
        if is_number and edit.before < old_length:
            raised.append(f"{edit.file} {edit.key} {edit.before}")
    if raised:
        what = plan.changes[0].positions.owner
        text = (
            f"Limits below the {what}'s {old_length} positions are raised "
            f"({', '.join(raised)}): inputs that were truncated there give different outputs now."
        )
        yield Note(Code.LIMITS, Level.WARNING, text)


def _scaling_notes(plan: Plan, table: Change) -> Iterator[Note]:
    """Yield a warning if a lower limit may state the length of the training of a rotary model.

    Its own length may have been raised by hand, and no scaling is planned up to it.
    """
    if not (plan.extended or plan.settings.fix_limits):
        return
    is_stated_by_user = table.settings and table.method == LIMITS
    if is_stated_by_user or not may_lack_scaling(table.positions, plan.checkpoint):
        return
    before = table.max_len_before
    lower = lower_stated_length(table.positions, plan.checkpoint, before)
    if lower is not None and lower < table.max_len_after:
        text = (
            f"{table.positions.file} {table.positions.length_key} states {before} tokens "
            f"without scaling: if the model was trained at {lower}, pass --trained-length "
            f"{lower}, which scales it."
        )
        yield Note(Code.LENGTHS, Level.WARNING, text)


def _padding_note(change: Change) -> Note:
    family = change.positions.family
    before = change.max_len_before
    after = change.max_len_after
    files = f"Texts padded to {after} tokens give other outputs."
    if change.keeps_padding:
        files = f"Tokenizer files stay as they are: for longer texts, pass max_length={after}."
    text = (
        f"{family.model_type} {family.padding_effect}: short texts give the same outputs only if "
        f"padded as before, for example with padding='max_length', max_length={before}. {files}"
    )
    return Note(Code.PADDING, Level.WARNING, text)


def generation_notes(plan: Plan) -> Iterator[Note]:
    """Yield at which limit `generate()` still stops before the new length."""
    alternative = ""
    if plan.convert is None:
        if plan.settings.fix_limits:
            return
        alternative = ", or pass --fix-limits"
    generating = generating_table(plan.model.tables)
    used = dict[str, LengthLimit]()
    for limit in generation_limits(plan.checkpoint):
        if limit.readers:
            used[limit.path[-1]] = limit
    stops = [used[key] for key in MAXIMA if key in used]
    for table in plan.changes:
        if generating is None or table.name != generating.name or not stops:
            continue
        limit = stops[0]
        length = table.max_len_after
        before = plan.length_before or table.max_len_before
        if before < length > limit.value:
            where = f"{limit.file} {'.'.join(limit.path)}"
            text = f"generate() still stops at {limit.value} tokens ({where})."
            if limit.path[-1] == MAX_NEW_TOKENS:
                text = f"generate() still stops after {limit.value} new tokens ({where})."
            text = f"{text} To use more of the {length}, raise it{alternative}."
            yield Note(Code.GENERATION, Level.NOTE, text)


def _key_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning for each other length key that disagrees with the old length.

    A key above the length of positions that are scaled may be the length of the training. Any other
    key stays wrong, unless it states the new length already, or ``--fix-limits`` sets it.
    """
    checkpoint = plan.checkpoint
    table_of = {table.name: table for table in plan.changes}
    stated = dict[tuple[str, Keys], LengthLimit]()
    for limit in length_limits(checkpoint, plan.model.tables):
        if limit.meaning is Meaning.LENGTH and limit.table in table_of:
            stated.setdefault((limit.file, limit.path), limit)
    if not stated:
        return
    architecture = plan.model.architecture
    for location, before, _ in length_changes(checkpoint.config, architecture, plan.changes):
        for key, limit in list(stated.items()):
            if limit.value in location.values_of_length(before):
                del stated[key]

    for limit in stated.values():
        value = limit.value
        table = table_of[limit.table]
        name = f"{limit.file} {'.'.join(limit.path)}"
        positions = table.positions
        after = table.max_len_after
        is_scaled = table.settings and table.method != LIMITS
        if is_scaled and value > table.max_len_before and positions.trained_length is None:
            is_now = "is" if value != after else "is already"
            flags = "--method limits" if after == value else f"--to {value} --method limits"
            advice = f"use {flags}, which raises the limits and scales nothing"
            if after > value:
                advice = f"pass --trained-length {value}, so that only the rest is scaled"
            text = (
                f"{name} {is_now} {value}, but {table.config_key} is {positions.lengths.stated}: "
                f"if the model was trained at {value} tokens, {advice}."
            )
            yield Note(Code.LENGTHS, Level.WARNING, text)
        elif not plan.settings.fix_limits and value not in positions.values_of_length(after):
            text = f"{name} is {value}, not {table.max_len_before}, and stays {value}"
            effect = may_take(limit.readers, value)
            if effect:
                text += f": {effect} of {after}"
            text += f". To set it to {after}, pass --fix-limits."
            yield Note(Code.LENGTHS, Level.WARNING, text)
