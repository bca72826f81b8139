"""The position tables of one checkpoint: found, checked against its config, and given their new length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.families.lookup import TableLocation
from ctxextend.plan.find_tables import Description, FoundTable, OpenedModel, below, check_rows, describe_table, of_part
from ctxextend.recipe import Resize
from ctxextend.tables.apply import check_source_rows

__all__ = ["TablePlan", "plan_found", "plan_tables"]


@dataclass(frozen=True)
class TablePlan:
    """What becomes of one position table.

    Attributes:
        name: Its tensor in the checkpoint.
        part: What it is called where there are several: encoder, decoder, text, …; else empty.
        file: The file that holds it, below the checkpoint's root.
        config_key: The key of config.json that states its length, with dots where configs are nested.
        max_len_before: Usable positions now.
        max_len_after: Usable positions wanted.
        rows_before: Rows now: offset + max_len_before, and in few families some behind the last position.
        rows_after: Rows wanted.
        offset: Rows in front of position 0, which stay as they are.
        hidden_size: Columns.
        dtype: As safetensors spells it.
        place: Where the registry has it.
        is_mended: Whether what follows its length must say it even where that stays.
    """

    name: str
    part: str
    file: str
    config_key: str
    max_len_before: int
    max_len_after: int
    rows_before: int
    rows_after: int
    offset: int
    hidden_size: int
    dtype: str
    place: TableLocation
    is_mended: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether it gets another length."""
        return self.rows_before != self.rows_after

    @property
    def is_followed(self) -> bool:
        """Whether config, buffers and limits must say its length anew."""
        return self.is_changed or self.is_mended

    def as_dict(self) -> dict[str, Any]:
        """Return all but the last two as plain values."""
        names = (field.name for field in fields(self) if field.name not in ("place", "is_mended"))
        return {name: getattr(self, name) for name in names}


def plan_tables(model: OpenedModel, settings: Resize) -> tuple[TablePlan, ...]:
    """Say what becomes of those of a checkpoint's tables that were asked for.

    Raises:
        CheckpointError: One disagrees with the config, or is of a dtype or shape that it cannot have.
        ResizeError: The length, the part or a flag cannot be served.
    """
    checkpoint = model.checkpoint
    return plan_found(
        model.tables, settings, lambda name: describe_table(checkpoint, name), has_config=bool(checkpoint.config)
    )


def plan_found(
    found: Sequence[FoundTable],
    settings: Resize,
    describe: Callable[[str], Description],
    *,
    has_config: bool = True,
) -> tuple[TablePlan, ...]:
    """Say what becomes of the tables that were found.

    Args:
        found: From `find_tables`.
        settings: What was asked for.
        describe: Gives shape, dtype and file of a tensor by its name.
        has_config: Whether there is a config that must agree with the tables.

    Raises:
        CheckpointError: A table disagrees with the config, or is of a dtype or shape that it cannot have.
        ResizeError: The length, the part or a flag cannot be served.
    """
    plans = []
    for place, name in _chosen(found, settings.part):
        shape, dtype, file = describe(name)
        check_rows(place, shape[0], name, has_config=has_config and not settings.mend_limits)
        rows = rows_after(found, place, settings.to)
        plans.append(
            TablePlan(
                name=name,
                part=place.part,
                file=file,
                config_key=place.config_key,
                max_len_before=place.positions(shape[0]),
                max_len_after=place.positions(rows),
                rows_before=shape[0],
                rows_after=rows,
                offset=place.reserved_rows,
                hidden_size=shape[1],
                dtype=dtype,
                place=place,
                is_mended=settings.mend_limits,
            )
        )
    _check_direction(found, plans, settings)
    for plan in plans:
        check_length(settings, plan)
    return tuple(plans)


def rows_after(found: Sequence[FoundTable], place: TableLocation, to: int) -> int:
    """Return a table's rows at a new length; every table that shares its key must have so many positions at least."""
    return place.rows(max(other.key_value(to) for other, _ in found if other.config_key == place.config_key))


def _chosen(found: Sequence[FoundTable], part: str | None) -> list[FoundTable]:
    chosen = of_part(found, part)
    if shared := _sharing(found, chosen):
        place, name = shared[0]
        raise ResizeError(
            f"--part {part}: {name} has its length by the same key, {place.config_key}, and neither can change alone.",
            f"Use --part {_free_part(found, place)}." if _free_part(found, place) else "Leave --part out.",
        )
    return chosen


def _sharing(found: Sequence[FoundTable], chosen: list[FoundTable]) -> list[FoundTable]:
    """Return the tables that were not chosen and have their length by the key of one that was."""
    keys = {place.config_key for place, _ in chosen}
    return [item for item in found if item[0].config_key in keys and item not in chosen]


def _free_part(found: Sequence[FoundTable], place: TableLocation) -> str:
    """Return the smallest part around a table that can change alone; empty where only the whole model can."""
    path = place.part.split(".")
    parts = (".".join(path[:depth]) for depth in range(len(path), 0, -1))
    return next((part for part in parts if part and not _sharing(found, below(found, part))), "")


def _check_direction(found: Sequence[FoundTable], plans: list[TablePlan], settings: Resize) -> None:
    longer = next((plan for plan in plans if plan.rows_after > plan.rows_before), None)
    shorter = next((plan for plan in plans if plan.rows_after < plan.rows_before), None)
    if longer and shorter:
        raise ResizeError(
            f"{settings.to} positions are more than the {longer.max_len_before} of {longer.name} and fewer than the "
            f"{shorter.max_len_before} of {shorter.name}.",
            "Resize one at a time: "
            f"--part {_free_part(found, longer.place) or '…'} or --part {_free_part(found, shorter.place) or '…'}.",
        )


def check_length(settings: Resize, plan: TablePlan) -> None:
    """Refuse a length that the model cannot have, and flags that mean nothing, or leave nothing, for a table.

    Raises:
        ResizeError: No multiple of what it must be, a method's flag with a shorter table, or no row left to make new
            ones from.
    """
    learned, wanted = plan.max_len_before, plan.max_len_after
    if wanted < learned and settings.method_flags:
        raise ResizeError(
            f"{', '.join(settings.method_flags)} has no meaning here: {wanted} positions are fewer than the "
            f"{learned} that {plan.name} has, and a shorter table is its first rows.",
            "Leave it out.",
        )
    if wanted > learned:
        check_source_rows(learned, wanted, settings.options)
    step = _step(plan.place)
    if plan.is_changed and wanted % step:
        below, above = wanted // step * step, (wanted // step + 1) * step
        raise ResizeError(
            f"{plan.name}: texts are padded to multiples of {step} ({plan.place.table.multiple_of}), which {wanted} "
            "positions are not.",
            f"Use --to {f'{below} or {above}' if below else above}.",
        )


def _step(place: TableLocation) -> int:
    key, unless = place.table.multiple_of, place.table.unless
    if key is None or (unless and place.stated(unless[0]) == unless[1]):
        return 1
    stated = place.stated(key)
    values = stated if isinstance(stated, list) else [place.family.defaults.get(key) if stated is None else stated]
    return max((value for value in values if isinstance(value, int) and value > 0), default=1)
