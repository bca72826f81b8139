"""Notes of a plan about limits of generated texts, and warnings about other length keys."""

from collections.abc import Iterator, Sequence

from ctxextend.families.lookup import Keys
from ctxextend.limits.config_keys import agreeing_values, config_length_keys, may_take, readers
from ctxextend.limits.generation import (
    TASKS,
    deciding_limit,
    generating_table,
    generation_limits,
)
from ctxextend.limits.length_edits import Edit, is_of_generation, is_raised
from ctxextend.limits.statements import MAX_NEW_TOKENS
from ctxextend.plan.edits import length_changes
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.table_plan import TablePlan, stated_length
from ctxextend.recipe import Resize
from ctxextend.tables.method_facts import LIMITS


def generation_notes(
    model: OpenedModel,
    tables: Sequence[TablePlan],
    before: int | None,
    fix: str,
) -> Iterator[str]:
    """Yield a note if `generate()` of an extended model stops before the new length.

    `before` is the old length, or None for that of the table; `fix` is what else raises the limit.
    """
    found = generating_table(model.tables)
    name = found.name if found else ""
    table = next((table for table in tables if table.name == name), None)
    limit = deciding_limit(generation_limits(model.checkpoint))
    if table is None or limit is None:
        return
    old_length = table.max_len_before if before is None else before
    length = table.max_len_after
    if length <= old_length or limit.tokens >= length:
        return
    where = f"{limit.file} {'.'.join(limit.path)}"
    if limit.key == MAX_NEW_TOKENS:
        stops = f"generate() still stops after {limit.tokens} new tokens ({where})."
        use = f"To write more of the {length}, raise it"
    else:
        stops = f"generate() still stops at {limit.tokens} tokens ({where})."
        use = f"To use all {length}, set it to {length}"
    yield f"{stops} {use}{fix}."


def generation_edit_notes(edits: Sequence[Edit]) -> Iterator[str]:
    """Yield a note for each limit that `generate()` may use and a plan changes."""
    for edit in edits:
        if is_of_generation(edit) and TASKS not in edit.path:
            verb = "raised" if is_raised(edit) else "lowered"
            yield (
                f"generate(): {edit.key} is {verb} from {edit.before} to {edit.after} "
                f"({edit.file})."
            )


def length_key_warnings(
    model: OpenedModel,
    tables: Sequence[TablePlan],
    settings: Resize,
) -> Iterator[str]:
    """Yield a warning for each other length key that disagrees with the old length."""
    agreeing = set[Keys]()
    for location, before, _ in length_changes(model.checkpoint.config, model.architecture, tables):
        for path, value in config_length_keys(location):
            if value in agreeing_values(location, before):
                agreeing.add(path)
    stated = dict[Keys, tuple[TablePlan, int]]()
    for table in tables:
        for path, value in config_length_keys(table.location):
            stated.setdefault(path, (table, value))
    for path, (table, value) in stated.items():
        if path in agreeing:
            continue
        name = f"{model.checkpoint.config_file} {'.'.join(path)}"
        before = table.max_len_before
        after = table.max_len_after
        is_scaled = any(plan.choice.name != LIMITS for plan in table.rope)
        if is_scaled and value > before and table.location.trained_length is None:
            yield _longer_training(
                name, value, f"{table.config_key} is {stated_length(table)}", after
            )
        elif not settings.fix_limits and value not in agreeing_values(table.location, after):
            effect = may_take(readers(table.location, path), value)
            stays = f"{name} is {value}, not {before}, and stays {value}"
            if effect:
                stays += f": {effect} of {after}"
            yield f"{stays}. To set it to {after}, pass --fix-limits."


def _longer_training(name: str, value: int, other: str, after: int) -> str:
    """Return the warning that a rotary model may have been trained at a longer length."""
    is_now = "is" if value != after else "is already"
    if after > value:
        advice = f"pass --trained-length {value}, so that only the rest is scaled"
    elif after < value:
        advice = f"use --to {value} --method limits, which raises the limits and scales nothing"
    else:
        advice = "use --method limits, which raises the limits and scales nothing"
    stated = f"{name} {is_now} {value}, but {other}"
    return f"{stated}: if the model was trained at {value} tokens, {advice}."
