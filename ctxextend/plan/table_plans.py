"""Plan the tables that a resize changes: their new lengths, and whether the model allows them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ctxextend.errors import MethodError, ResizeError
from ctxextend.plan.found_table import context_length, tables_of_part
from ctxextend.plan.rotary_plan import plan_without_rows
from ctxextend.plan.table_checks import check_rows
from ctxextend.plan.table_plan import TablePlan
from ctxextend.positions.positions import Positions, positive_numbers
from ctxextend.positions.rows import Rows
from ctxextend.settings import Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_checks import check_source_rows
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA
from ctxextend.tables.method_parser import default_choice


def with_length(settings: Resize, tables: Sequence[Positions]) -> Resize:
    """Replace a factor such as ``4x`` with a number of positions.

    Raises:
        CheckpointError: The config states no valid length of positions without a table.
        ResizeError: The tables differ in length, so that the factor means several lengths.
    """
    if isinstance(settings.to, int):
        return settings
    lengths = dict[str, int]()
    for table in tables_of_part(tables, settings.part):
        lengths[table.part] = context_length(table)
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{part} {length}" for part, length in lengths.items())
        raise ResizeError(
            f"--to {settings.to}: the tables differ in length ({listed}).",
            "Pass a number with --to, or one table with --part.",
        )
    _, length = lengths.popitem()
    return replace(settings, to=settings.to.times(length))


def plan_tables(
    tables: Sequence[Positions],
    settings: Resize,
    recorded: Mapping[str, MethodChoice],
    *,
    has_config: bool,
) -> tuple[TablePlan, ...]:
    """Plan the requested tables of a checkpoint or of a loaded model.

    Args:
        tables: All tables of the model.
        settings: With the length as a number.
        recorded: Methods of rotary positions that a recipe states, by table name.
        has_config: Whether the tables must have the number of rows that the config states.

    Raises:
        CheckpointError: The config and a table disagree.
        ResizeError: The model does not support the length, or a setting does not apply.
    """
    selected = tables_of_part(tables, settings.part)
    _check_shared_keys(tables, selected, settings)
    plans = list[TablePlan]()
    for table in selected:
        plan = plan_length(table, tables, settings)
        if plan.has_rows:
            is_checked = has_config and not settings.fix_limits
            check_rows(table, has_config=is_checked)
        else:
            options = replace(settings, method=recorded.get(plan.name, settings.method))
            plan = plan_without_rows(plan, options, has_others=len(selected) > 1)
        if plan.location.family.padding_effect and not settings.fix_limits:
            plan = replace(plan, keeps_padding=plan.rows_after > plan.rows_before)
        plans.append(plan)
    _check_directions(plans, settings)
    for plan in plans:
        if plan.has_rows:  # `plan_without_rows` has checked the others
            _check_method(settings, plan)
            _check_multiple(plan)
    return tuple(plans)


def plan_length(table: Positions, tables: Sequence[Positions], settings: Resize) -> TablePlan:
    """Return the lengths of one table, before and after, without what becomes of its positions."""
    location = table
    before = context_length(table)
    key = location.length_key
    # Tables can share a key: it must fit the longest.
    sharing = [other for other in tables if other.length_key == key]
    after = location.rows_for(max(other.key_value(settings.positions) for other in sharing))
    return TablePlan(
        name=table.name,
        part=location.part,
        file=table.weights_file,
        config_key=key,
        max_len_before=before,
        max_len_after=location.positions_in(after),
        rows_before=location.rows_for(location.key_value(before)),
        rows_after=after,
        reserved_rows=location.reserved_rows,
        hidden_size=table.hidden_size,
        dtype=table.dtype,
        location=location,
        has_rows=location.has_rows,
        is_stored=bool(table.dtype),
        scheme=location.scheme,
    )


def _check_shared_keys(
    tables: Sequence[Positions], selected: Sequence[Positions], settings: Resize
) -> None:
    """Raise ResizeError if a table that is not selected shares its config key with one that is."""
    keys = {table.length_key for table in selected}
    for table in tables:
        key = table.length_key
        if key not in keys or table in selected:
            continue
        both = table.part.rpartition(".")[0]
        raise ResizeError(
            f"--part {settings.part}: {table.name} shares the config key {key}, so both must be "
            "resized together.",
            f"Use --part {both}." if both else "Remove --part.",
        )


def _check_directions(plans: Sequence[TablePlan], settings: Resize) -> None:
    """Raise ResizeError if one table would grow and another one shrink."""
    changed = [plan for plan in plans if plan.is_changed]
    by_direction = {plan.rows_after > plan.rows_before: plan for plan in changed}
    if len(by_direction) < 2:
        return
    grows = by_direction[True]
    shrinks = by_direction[False]
    extended = f"{grows.name} (from {grows.max_len_before})"
    shortened = f"{shrinks.name} (from {shrinks.max_len_before})"
    names = [plan.part or "…" for plan in by_direction.values()]
    parts = " or ".join(f"--part {name}" for name in names)
    raise ResizeError(
        f"--to {settings.to} would extend {extended} and shrink {shortened}.",
        f"Resize one at a time: {parts}.",
    )


def _check_method(settings: Resize, plan: TablePlan) -> None:
    """Raise ResizeError if the method or its flags do not apply to a table of rows."""
    choice = settings.choice
    if choice.facts.scheme:  # a rotary method
        message = (
            f"--method {settings.method} does not apply to {plan.name}, whose positions are "
            f"{plan.scheme}."
        )
        raise MethodError(message, "List methods and their settings with `ctxextend methods`.")
    before = plan.max_len_before
    after = plan.max_len_after
    if after < before and settings.method_flags:
        flags = ", ".join(settings.method_flags)
        verb = "do" if len(settings.method_flags) > 1 else "does"
        message = (
            f"{flags} {verb} not apply when shrinking {plan.name} from {before} to {after} "
            f"positions: the first {after} are kept."
        )
        raise ResizeError(message, f"Remove {flags}.")
    if after <= before:
        return
    if plan.is_stored:
        check_source_rows(before, after, choice)
        return
    values = set(choice.settings.values())
    is_formula = choice.name == FORMULA and values <= {None, plan.location.initial_layout}
    if not is_formula and choice.name != DEFAULT_METHOD:
        raise ResizeError(
            f"Only --method {FORMULA} applies to {plan.name}: transformers computes its sinusoids.",
            "Remove --method: the length in config.json is all that changes.",
        )
    check_source_rows(before, after, default_choice(FORMULA).keeping(choice.keep_first))


def _check_multiple(plan: TablePlan) -> None:
    """Raise ResizeError unless the new length is a multiple of what inputs are padded to."""
    location = plan.location
    table = location
    if not plan.is_changed or not isinstance(table, Rows) or table.multiple_of is None:
        return
    lifts = table.multiple_unless
    if lifts is not None and lifts.holds(location.stated(lifts.key)):
        return
    key = table.multiple_of
    stated = location.stated(key)
    if stated is None:
        stated = location.family.defaults.get(key)
    step = max(positive_numbers(stated), default=1)
    after = plan.max_len_after
    below = after // step * step
    if after == below:
        return
    above = below + step
    message = (
        f"{plan.name}: the length must be a multiple of {step} ({key}, to which inputs are "
        f"padded), got {after}."
    )
    allowed = f"{below} or {above}" if below else str(above)
    raise ResizeError(message, f"Use --to {allowed}.")
