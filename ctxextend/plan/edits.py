"""What a new length changes: the rows of tables, values in config and side files, and position buffers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.length_limits import Edit, limit_edits
from ctxextend.checkpoints.safetensors_file import NUMPY_DTYPES, numpy_dtype
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lookup import Architecture, TableLocation, nested
from ctxextend.families.registry import FAMILIES
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.json_output import not_in_json
from ctxextend.plan.find_tables import FoundTable, OpenedModel, TableShape, check_rows, of_part
from ctxextend.recipe import Resize
from ctxextend.tables.apply import check_source_rows


@dataclass(frozen=True)
class TablePlan:
    """What becomes of one position table."""

    name: str  # its tensor in the checkpoint
    part: str  # what it is called where there are several: encoder, decoder, text, …; else empty
    file: str  # that holds it, below the checkpoint's root
    config_key: str  # that states its length, with dots where configs are nested
    max_len_before: int  # usable positions
    max_len_after: int
    rows_before: int  # reserved_rows + max_len_before, and in few families some behind the last position
    rows_after: int
    reserved_rows: int  # before position 0, which stay as they are
    hidden_size: int  # columns
    dtype: str  # as safetensors spells it
    location: TableLocation = field(metadata=not_in_json)  # where the registry has it
    # Whether what follows its length must state it even where that stays.
    fixes_limits: bool = field(default=False, metadata=not_in_json)

    @property
    def is_changed(self) -> bool:
        """Whether it gets another length."""
        return self.rows_before != self.rows_after


def with_length(settings: Resize, found: Sequence[FoundTable], describe: Callable[[str], TableShape]) -> Resize:
    """Return settings whose length is a number: ``4x`` is four times that of the tables, which must agree."""
    if isinstance(settings.to, int):
        return settings
    chosen = of_part(found, settings.part)
    lengths = {location.part: location.positions(describe(name)[0][0]) for location, name in chosen}
    if len(set(lengths.values())) > 1:
        named = ", ".join(f"{part} {length}" for part, length in lengths.items())
        raise ResizeError(f"--to {settings.to}: the tables differ in length ({named}).", "Give a number, or --part.")
    return replace(settings, to=lengths.popitem()[1] * int(settings.to[:-1]))


def plan_tables(
    found: Sequence[FoundTable], settings: Resize, describe: Callable[[str], TableShape], *, has_config: bool = True
) -> tuple[TablePlan, ...]:
    """Plan those of a checkpoint's or a loaded model's tables that were asked for; a config must agree with them."""
    chosen = of_part(found, settings.part)
    keys = {location.config_key for location, _ in chosen}
    for table in found:
        if table.location.config_key in keys and table not in chosen:
            what = f"--part {settings.part}: {table.name} has its length by the same key, {table.location.config_key}"
            both = table.location.part.rpartition(".")[0]
            hint = f"Use --part {both}." if both else "Leave --part out."
            raise ResizeError(f"{what}, and neither can change alone.", hint)
    plans = []
    for location, name in chosen:
        (rows, hidden_size), dtype, file = describe(name)
        check_rows(location, rows, name, has_config=has_config and not settings.fix_limits)
        key = location.config_key  # of the tables that have their length by it, the longest counts
        after = location.rows(max(other.key_value(settings.positions) for other, _ in found if other.config_key == key))
        max_lens = location.positions(rows), location.positions(after)
        counts = *max_lens, rows, after, location.reserved_rows, hidden_size
        plans.append(TablePlan(name, location.part, file, key, *counts, dtype, location, settings.fix_limits))
    changes = {(plan.rows_after > plan.rows_before): plan for plan in plans if plan.is_changed}
    if len(changes) > 1:
        than = {is_longer: f"than the {plan.max_len_before} of {plan.name}" for is_longer, plan in changes.items()}
        parts = " or ".join(f"--part {plan.part or '…'}" for plan in changes.values())
        what = f"{settings.to} positions are more {than[True]} and fewer {than[False]}."
        raise ResizeError(what, f"Resize one at a time: {parts}.")
    for plan in plans:
        _check_length(settings, plan)
    return tuple(plans)


def _check_length(settings: Resize, plan: TablePlan) -> None:
    """Refuse a length that the model cannot have, and flags that mean nothing, or leave nothing, for a table."""
    learned, wanted = plan.max_len_before, plan.max_len_after
    if wanted < learned and settings.method_flags:
        what = f"{', '.join(settings.method_flags)} has no meaning here: {wanted} positions are fewer than the "
        what += f"{learned} that {plan.name} has, and a shorter table is its first rows."
        raise ResizeError(what, "Leave it out.")
    if wanted > learned:
        check_source_rows(learned, wanted, settings)
    location = plan.location
    key, unless = location.table.multiple_of, location.table.unless
    if key is None or not plan.is_changed or (unless and location.stated(unless[0]) == unless[1]):
        return
    stated = location.stated(key)
    values = stated if isinstance(stated, list) else [location.family.defaults.get(key) if stated is None else stated]
    step = max((value for value in values if isinstance(value, int) and value > 0), default=1)
    if wanted % step:
        below, above = wanted // step * step, (wanted // step + 1) * step
        what = f"{plan.name}: texts are padded to multiples of {step} ({key}), which {wanted} positions are not."
        raise ResizeError(what, f"Use --to {f'{below} or {above}' if below else above}.")


def plan_edits(model: OpenedModel, tables: Sequence[TablePlan]) -> tuple[Edit, ...]:
    """Return the edits of config.json and of the tokenizers' limits that go with the tables' new lengths."""
    checkpoint = model.checkpoint
    edits = list(_config_edits(checkpoint, model.architecture, tables)) if checkpoint.has_config else []
    stated, ref = checkpoint.config.get("model_type"), model.ref
    is_unknown = stated not in (*FAMILIES, *POSITION_SCHEMES) and "auto_map" not in checkpoint.config
    if edits and ref.tensor is None and (stated is None or (ref.model_type and is_unknown)):
        model_type = model.architecture.family.model_type
        edits.append(
            Edit(checkpoint.config_file, ("model_type",), stated, model_type, reason="transformers loads by it")
        )
    # A tokenizer's limits follow the first table that reads its texts.
    first = {location.tokenizer: name for location, name in reversed(model.tables) if location.tokenizer is not None}
    for table in tables:
        tokenizer = table.location.tokenizer
        if tokenizer is not None and first[tokenizer] == table.name:
            lengths = table.max_len_before, table.max_len_after
            edits += limit_edits(checkpoint, *lengths, tokenizer, fix_limits=table.fixes_limits)
    return tuple(edits)


def _config_edits(checkpoint: Checkpoint, architecture: Architecture, tables: Sequence[TablePlan]) -> Iterator[Edit]:
    """Yield the changes to config.json; objects that it lacks are made."""
    config, edits = checkpoint.config, dict[tuple[str, ...], Any]()
    for path, after in config_changes(config, architecture, tables).items():
        while len(path) > 1 and not isinstance(holder := nested(config, path[:-1]), Mapping):
            if holder is not None:
                key = ".".join(path[:-1])
                raise CheckpointError(f"config.json: {key} is {holder!r:.100}, not an object.", "Correct config.json.")
            path, after = path[:-1], {path[-1]: after}
        edits[path] = {**edits.get(path, {}), **after} if isinstance(after, dict) else after
    for path, after in edits.items():
        yield Edit(checkpoint.config_file, path, nested(config, path), after)


def config_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: Sequence[TablePlan]
) -> dict[tuple[str, ...], Any]:
    """Return the values that a config must state for the tables' new lengths, by their paths of keys."""
    changes: dict[tuple[str, ...], Any] = {}
    for table in tables:
        location, length = table.location, table.max_len_after
        lengths = dict.fromkeys(location.length_paths, location.key_value(length))
        raised = {(key,): length for key in architecture.family.limits}
        if table.is_changed:
            changes |= lengths | _pinned(table)
            for path in raised:
                stated = config.get(path[0])
                if length > table.max_len_before or not isinstance(stated, int) or stated > length:
                    changes[path] = length
        elif table.fixes_limits:  # what a config leaves out may stay out where transformers' default is right
            wanted = (lengths | raised).items()
            changes |= {path: value for path, value in wanted if nested(config, path) not in (None, value)}
            default = location.family.defaults.get(location.effective_key)
            if location.stated(location.effective_key) is None and default != location.key_value(length):
                changes |= lengths
    return changes


def _pinned(table: TablePlan) -> dict[tuple[str, ...], Any]:
    """Return the values of keys that depend on the length, such that the model computes what it did."""
    location, changes = table.location, dict[tuple[str, ...], Any]()
    before, after = (location.key_value(length) for length in (table.max_len_before, table.max_len_after))
    for pin in location.family.pins:
        if pin.condition is not None and not location.stated(pin.condition):
            continue
        stated = location.stated(pin.key)
        value = before if not isinstance(stated, int) or stated < 1 else None  # which meant the old length
        if pin.keeps == "blocks":  # a row of blocks must have so many that their sum stays
            rows, wanted = before // pin.block_size, after // pin.block_size
            blocks = min(rows * location.value(pin.key), rows**2)
            value = blocks // wanted if wanted and blocks and blocks % wanted == 0 else None
        if value is not None:
            changes |= dict.fromkeys(location.paths_of(pin.key), value)
    return changes


@dataclass(frozen=True)
class BufferPlan:
    """A position buffer that is made anew."""

    name: str  # its tensor
    content: str  # what it holds, as `Buffer.content`
    shape: tuple[int, ...]  # its new shape
    dtype: str  # as safetensors spells it
    start: int  # for ``arange``, its first number


def plan_buffers(checkpoint: Checkpoint, tables: Sequence[TablePlan]) -> tuple[tuple[str, ...], tuple[BufferPlan, ...]]:
    """Return the names of the buffers to drop, which transformers makes itself, and plans of those that it reads."""
    dropped, plans = list[str](), list[BufferPlan]()
    changed = [table for table in tables if table.is_changed or table.fixes_limits]
    for name in checkpoint.names:
        found = ((table, table.location.buffer(name)) for table in changed)
        table, buffer = next(((table, buffer) for table, buffer in found if buffer), (None, None))
        if table is None or buffer is None:
            continue
        if not buffer.is_kept:
            dropped.append(name)
            continue
        entry = checkpoint.entries[name]
        axes = {"arange": (-1,), "zeros": (-1,), "causal": (-2, -1), "rows": (0,)}[buffer.content]
        shape = list(entry.shape)
        if len(shape) < len(axes) or entry.dtype not in NUMPY_DTYPES:
            message = f"{name} is {entry.dtype} {list(entry.shape)}, which no such buffer can be."
            raise CheckpointError(message, "Save the model again.")
        for axis in axes:
            shape[axis] = table.location.key_value(table.max_len_after)
        start = 0 if table.location.table.reserved.inside_key else table.reserved_rows
        plans.append(BufferPlan(name, buffer.content, tuple(shape), entry.dtype, start))
    return tuple(dropped), tuple(plans)


def make_buffer(plan: BufferPlan) -> NDArray[Any]:
    """Return a buffer's values, of the shape and dtype that are planned."""
    dtype = numpy_dtype(plan.dtype)
    if plan.content == "arange":
        values = np.arange(plan.start, plan.start + plan.shape[-1], dtype=dtype)
    elif plan.content == "causal":
        values = np.tri(*plan.shape[-2:], dtype=dtype)
    else:
        values = np.zeros(plan.shape, dtype)
    return np.ascontiguousarray(np.broadcast_to(values, plan.shape))
