"""Notes on length limits: those that change outputs, and those that disagree."""

from collections.abc import Iterator

from ctxextend.limits.config_edits import length_changes
from ctxextend.limits.config_keys import config_length_keys, may_take, readers
from ctxextend.limits.generation import (
    TASKS,
    deciding_limit,
    generating_table,
    generation_limits,
)
from ctxextend.limits.length_edits import is_of_generation, raises_generation_limit
from ctxextend.limits.statements import MAX_NEW_TOKENS
from ctxextend.limits.trained_length import lower_stated_length, may_lack_scaling
from ctxextend.notes import Code, Level, Note
from ctxextend.plan import Plan
from ctxextend.positions.change import Change
from ctxextend.positions.positions import Keys
from ctxextend.tables.method_facts import LIMITS


def limit_notes(plan: Plan, *, old_length: int | None = None) -> Iterator[Note]:
    """Yield a warning if limits below the old length are raised, which changes outputs.

    Args:
        plan: What changes.
        old_length: If it is not that of the plan: a twin has its new length already.
    """
    if old_length is None:
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


def scaling_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning if a lower limit may state the length of the training of a rotary model.

    Its own length may have been raised by hand, and no scaling is planned up to it.
    """
    if not (plan.extended or plan.settings.fix_limits):
        return
    for table in plan.changes:
        is_stated_by_user = table.settings and table.method == LIMITS
        if is_stated_by_user or not may_lack_scaling(table.positions, plan.checkpoint):
            continue
        before = table.max_len_before
        lower = lower_stated_length(table.positions, plan.checkpoint, before)
        if lower is not None and lower < table.max_len_after:
            text = (
                f"{table.positions.file} {table.positions.length_key} states {before} tokens "
                f"without scaling: if the model was trained at {lower}, pass --trained-length "
                f"{lower}, which scales it."
            )
            yield Note(Code.LENGTHS, Level.WARNING, text)


def padding_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning for each table of a model whose outputs depend on the padding length."""
    for table in plan.changes:
        family = table.positions.family
        if not family.padding_effect or not table.is_changed:
            continue
        before = table.max_len_before
        after = table.max_len_after
        condition = (
            "short texts give the same outputs only if padded as before, for example with "
            f"padding='max_length', max_length={before}"
        )
        if table.keeps_padding:
            files = f"Tokenizer files stay as they are: for longer texts, pass max_length={after}."
        else:
            files = f"Texts padded to {after} tokens give other outputs."
        text = f"{family.model_type} {family.padding_effect}: {condition}. {files}"
        yield Note(Code.PADDING, Level.WARNING, text)


def generation_notes(plan: Plan, *, old_length: int | None = None) -> Iterator[Note]:
    """Yield which limits of `generate()` change, and whether it stops before the new length.

    Args:
        plan: What changes.
        old_length: If it is not that of the plan: a twin has its new length already, and
            ``--fix-limits`` does not apply to it.
    """
    for edit in plan.edits:
        if is_of_generation(edit) and TASKS not in edit.path:
            verb = "raised" if raises_generation_limit(edit) else "lowered"
            text = (
                f"generate(): {edit.key} is {verb} from {edit.before} to {edit.after} "
                f"({edit.file})."
            )
            yield Note(Code.GENERATION, Level.NOTE, text)
    alternative = ""
    if old_length is None:
        if plan.settings.fix_limits:
            return
        alternative = ", or pass --fix-limits"
    generating = generating_table(plan.model.tables)
    name = generating.name if generating else ""
    table = next((table for table in plan.changes if table.name == name), None)
    limit = deciding_limit(generation_limits(plan.checkpoint))
    if table is None or limit is None:
        return
    length = table.max_len_after
    if length <= (old_length or table.max_len_before) or limit.tokens >= length:
        return
    where = f"{limit.file} {'.'.join(limit.path)}"
    if limit.key == MAX_NEW_TOKENS:
        stops = f"generate() still stops after {limit.tokens} new tokens ({where})."
        use = f"To write more of the {length}, raise it"
    else:
        stops = f"generate() still stops at {limit.tokens} tokens ({where})."
        use = f"To use all {length}, set it to {length}"
    yield Note(Code.GENERATION, Level.NOTE, f"{stops} {use}{alternative}.")


def key_notes(plan: Plan) -> Iterator[Note]:
    """Yield a warning for each other length key that disagrees with the old length.

    A key above the length of positions that are scaled may be the length of the training. Any other
    key stays wrong, unless it states the new length already, or ``--fix-limits`` sets it.
    """
    model = plan.model
    stated = dict[Keys, tuple[Change, int]]()
    for table in plan.changes:
        for path, value in config_length_keys(table.positions):
            stated.setdefault(path, (table, value))
    if not stated:
        return
    config = model.checkpoint.config
    agreeing = set[Keys]()
    for location, before, _ in length_changes(config, model.architecture, plan.changes):
        for path, value in config_length_keys(location):
            if value in location.agreeing_values(before):
                agreeing.add(path)

    for path, (table, value) in stated.items():
        if path in agreeing:
            continue
        name = f"{model.checkpoint.config_file} {'.'.join(path)}"
        after = table.max_len_after
        is_scaled = table.settings and table.method != LIMITS
        is_given = table.positions.trained_length is not None
        if is_scaled and value > table.max_len_before and not is_given:
            yield Note(Code.LENGTHS, Level.WARNING, _longer_training(name, value, table))
        elif not plan.settings.fix_limits and value not in table.positions.agreeing_values(after):
            stays = f"{name} is {value}, not {table.max_len_before}, and stays {value}"
            effect = may_take(readers(table.positions, path), value)
            if effect:
                stays += f": {effect} of {after}"
            text = f"{stays}. To set it to {after}, pass --fix-limits."
            yield Note(Code.LENGTHS, Level.WARNING, text)


def _longer_training(name: str, value: int, table: Change) -> str:
    """Return the warning that a rotary model may have been trained at a longer length."""
    after = table.max_len_after
    is_now = "is" if value != after else "is already"
    if after > value:
        advice = f"pass --trained-length {value}, so that only the rest is scaled"
    elif after < value:
        advice = f"use --to {value} --method limits, which raises the limits and scales nothing"
    else:
        advice = "use --method limits, which raises the limits and scales nothing"
    stated = f"{name} {is_now} {value}, but {table.config_key} is {table.positions.lengths.stated}"
    return f"{stated}: if the model was trained at {value} tokens, {advice}."
