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
from ctxextend.limits.length_edits import Edit, is_of_generation, raises_generation_limit
from ctxextend.limits.statements import MAX_NEW_TOKENS
from ctxextend.plan.edits import length_changes
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.table_plan import TablePlan, stated_length
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import LIMITS


def generation_notes(
    model: OpenedModel,
    tables: Sequence[TablePlan],
    *,
    old_length: int | None = None,
    alternative: str = "",
) -> Iterator[str]:
    """Yield a note if `generate()` of an extended model stops before the new length.

    Args:
        model: Its files state the limit.
        tables: The planned ones.
        old_length: By default that of the table.
        alternative: What else raises the limit, as the end of a sentence: ", or pass …".
    """
    found = generating_table(model.tables)
    name = found.name if found else ""
    table = next((table for table in tables if table.name == name), None)
    limit = deciding_limit(generation_limits(model.checkpoint))
    if table is None or limit is None:
        return
    if old_length is None:
        old_length = table.max_len_before
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
    yield f"{stops} {use}{alternative}."


def generation_edit_notes(edits: Sequence[Edit]) -> Iterator[str]:
    """Yield a note for each limit that `generate()` may use and a plan changes."""
    for edit in edits:
        if is_of_generation(edit) and TASKS not in edit.path:
            verb = "raised" if raises_generation_limit(edit) else "lowered"
            yield (
                f"generate(): {edit.key} is {verb} from {edit.before} to {edit.after} "
                f"({edit.file})."
            )


def length_key_warnings(
    model: OpenedModel,
    tables: Sequence[TablePlan],
    settings: Resize,
) -> Iterator[str]:
    """Yield a warning for each other length key that disagrees with the old length.

    A key above the length of positions that are scaled may be the length of the training. Any other
    key stays wrong, unless it states the new length already, or `fix_limits` sets it.
    """
    agreeing = _agreeing_keys(model, tables)
    for path, (table, value) in _stated_keys(tables).items():
        if path in agreeing:
            continue
        name = f"{model.checkpoint.config_file} {'.'.join(path)}"
        if _may_be_trained_length(table, value):
            yield _longer_training(name, value, table)
        elif not settings.fix_limits and not _states_new_length(table, value):
            yield _stays(name, value, table, readers(table.location, path))


def _agreeing_keys(model: OpenedModel, tables: Sequence[TablePlan]) -> set[Keys]:
    """Return the other length keys that agree with the old length of any table."""
    agreeing = set[Keys]()
    for location, before, _ in length_changes(model.checkpoint.config, model.architecture, tables):
        for path, value in config_length_keys(location):
            if value in agreeing_values(location, before):
                agreeing.add(path)
    return agreeing


def _stated_keys(tables: Sequence[TablePlan]) -> dict[Keys, tuple[TablePlan, int]]:
    """Return the first table that each other length key is near to, and the value of the key."""
    stated = dict[Keys, tuple[TablePlan, int]]()
    for table in tables:
        for path, value in config_length_keys(table.location):
            stated.setdefault(path, (table, value))
    return stated


def _may_be_trained_length(table: TablePlan, value: int) -> bool:
    """Whether a value can be the length that scaled positions were trained at, and none is given.

    If it is, the plan scales more than needed.
    """
    is_scaled = any(plan.choice.name != LIMITS for plan in table.rope)
    return is_scaled and value > table.max_len_before and table.location.trained_length is None


def _states_new_length(table: TablePlan, value: int) -> bool:
    """Whether a key already has a value that agrees with the new length."""
    return value in agreeing_values(table.location, table.max_len_after)


def _stays(name: str, value: int, table: TablePlan, programs: Sequence[str]) -> str:
    """Return the warning that a key keeps a value that agrees with neither length."""
    after = table.max_len_after
    stays = f"{name} is {value}, not {table.max_len_before}, and stays {value}"
    effect = may_take(programs, value)
    if effect:
        stays += f": {effect} of {after}"
    return f"{stays}. To set it to {after}, pass --fix-limits."


def _longer_training(name: str, value: int, table: TablePlan) -> str:
    """Return the warning that a rotary model may have been trained at a longer length."""
    after = table.max_len_after
    is_now = "is" if value != after else "is already"
    if after > value:
        advice = f"pass --trained-length {value}, so that only the rest is scaled"
    elif after < value:
        advice = f"use --to {value} --method limits, which raises the limits and scales nothing"
    else:
        advice = "use --method limits, which raises the limits and scales nothing"
    stated = f"{name} {is_now} {value}, but {table.config_key} is {stated_length(table)}"
    return f"{stated}: if the model was trained at {value} tokens, {advice}."
