"""Plan what a new length changes: position tables, values in config and tokenizer files, and position buffers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.length_limits import Edit, limit_edits
from ctxextend.checkpoints.safetensors_file import NUMPY_DTYPES, numpy_dtype
from ctxextend.errors import CheckpointError, MethodError, ResizeError, flag_name
from ctxextend.families.lookup import Architecture, TableLocation, nested
from ctxextend.families.registry import FAMILIES
from ctxextend.families.rope import RopeLayers, read_rope, rope_changes, rotary_dim
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.json_output import not_in_json
from ctxextend.plan.find_tables import Describe, FoundTable, OpenedModel, check_rows, tables_of_part
from ctxextend.recipe import Resize
from ctxextend.tables.apply import COUNTS, check_source_rows, read_method
from ctxextend.tables.method_facts import DEFAULT_METHOD, FORMULA, LIMITS
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary import KEPT_TYPES, Lengths, RopeChange, resize_rope


class RopePlan(NamedTuple):
    """The planned change to the rotary settings of all layers of one type."""

    before: RopeLayers
    after: RopeChange  # with the method that changes them


@dataclass(frozen=True)
class TablePlan:
    """The planned change to one position table, or to positions without a table of rows."""

    name: str  # tensor name in the checkpoint
    part: str  # encoder, decoder, text, … in models with several tables; else empty
    file: str  # weights file, relative to the checkpoint's root; empty if transformers computes the rows
    config_key: str  # config key of its length, with dots for nested configs
    max_len_before: int  # usable positions
    max_len_after: int
    rows_before: int  # reserved_rows + max_len_before, plus rows after the last position in a few model types
    rows_after: int
    reserved_rows: int  # rows before position 0, which are kept
    hidden_size: int  # columns
    dtype: str  # in safetensors' spelling; empty if transformers computes the rows
    location: TableLocation = field(metadata=not_in_json)  # its registry entry
    # Whether all length limits must agree with the table, even if its length stays the same.
    fixes_limits: bool = field(default=False, metadata=not_in_json)
    rope: tuple[RopePlan, ...] = field(default=(), metadata=not_in_json)  # changes of rotary settings

    json_properties: ClassVar = ("scheme",)

    @property
    def is_stored(self) -> bool:
        """Whether the checkpoint contains its rows; otherwise transformers computes them."""
        return bool(self.dtype)

    @property
    def scheme(self) -> str:
        """The position scheme: learned, sinusoidal, rotary, ALiBi or relative."""
        return self.location.scheme

    @property
    def has_rows(self) -> bool:
        """Whether it is a table of rows, stored or computed."""
        return not self.location.table.scheme

    @property
    def is_changed(self) -> bool:
        """Whether the number of rows changes."""
        return self.rows_before != self.rows_after

    @property
    def keeps_padding(self) -> bool:
        """Whether the tokenizer keeps the old limits: they are also the padding length, on which outputs depend."""
        is_extended = self.rows_after > self.rows_before
        return bool(self.location.family.padding_effect) and is_extended and not self.fixes_limits

    @property
    def same_up_to(self) -> int:
        """The longest input, in tokens, whose outputs can stay: of ``dynamic`` settings, the trained length."""
        is_dynamic = any(plan.before.parameters["rope_type"] == "dynamic" for plan in self.rope)
        return self.location.value(self.location.effective_key) if is_dynamic else self.max_len_before


def with_length(settings: Resize, tables: Sequence[FoundTable], describe: Describe) -> Resize:
    """Replace a factor such as ``4x`` with a number of positions; raise ResizeError if the tables differ in length."""
    if isinstance(settings.to, int):
        return settings
    selected = tables_of_part(tables, settings.part)
    lengths = {table.location.part: table.location.positions(describe(table)[0][0]) for table in selected}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{part} {length}" for part, length in lengths.items())
        hint = "Pass a number with --to, or one table with --part."
        raise ResizeError(f"--to {settings.to}: the tables differ in length ({listed}).", hint)
    return replace(settings, to=lengths.popitem()[1] * int(settings.to[:-1]))


def plan_tables(
    tables: Sequence[FoundTable], settings: Resize, describe: Describe, recorded: Mapping[str, str], has_config: bool
) -> tuple[TablePlan, ...]:
    """Plan the requested tables of a checkpoint or loaded model, whose config must match them if it `has_config`.

    `recorded` contains the methods of rotary positions that a recipe states per table.
    """
    selected = tables_of_part(tables, settings.part)
    for table in tables:
        if table.location.config_key in {location.config_key for location, _ in selected} and table not in selected:
            message = f"--part {settings.part}: {table.name} shares the config key {table.location.config_key}, "
            both = table.location.part.rpartition(".")[0]
            hint = f"Use --part {both}." if both else "Remove --part."
            raise ResizeError(f"{message}so both must be resized together.", hint)
    plans = []
    for table in selected:
        (location, name), ((rows, hidden_size), dtype, file) = table, describe(table)
        if not location.table.scheme:
            check_rows(location, rows, name, has_config=has_config and not settings.fix_limits)
        key, positions = location.config_key, settings.positions  # tables can share a key: it must fit the longest
        after = location.rows(max(other.key_value(positions) for other, _ in tables if other.config_key == key))
        max_lens = location.positions(rows), location.positions(after)
        counts = *max_lens, rows, after, location.reserved_rows, hidden_size
        options = replace(settings, method=recorded.get(name, settings.method)), max_lens, len(selected) > 1
        rope = _plan_rope(location, *options) if location.table.scheme else ()
        plans.append(TablePlan(name, location.part, file, key, *counts, dtype, location, settings.fix_limits, rope))
    changes = {(plan.rows_after > plan.rows_before): plan for plan in plans if plan.is_changed}
    if len(changes) > 1:
        old = {is_longer: f"{plan.name} (from {plan.max_len_before})" for is_longer, plan in changes.items()}
        parts = " or ".join(f"--part {plan.part or '…'}" for plan in changes.values())
        message = f"--to {settings.to} would extend {old[True]} and shrink {old[False]}."
        raise ResizeError(message, f"Resize one at a time: {parts}.")
    for plan in plans:
        if plan.has_rows:  # see `_plan_rope` for others
            _check_length(settings, plan)
    return tuple(plans)


def _plan_rope(location: TableLocation, settings: Resize, lengths: Lengths, has_others: bool) -> tuple[RopePlan, ...]:
    """Plan positions without a table of rows, whose longer inputs need other rotary settings, or none."""
    (before, after), facts = lengths, location.table.rope
    if after < before or (after == before and not settings.fix_limits):
        message = f"The model accepts {before} tokens: its positions are {location.scheme}, so {after} need no change."
        hint = f'To truncate texts at {after} tokens, set "model_max_length": {after} in tokenizer_config.json.'
        if facts and any(item.parameters["rope_type"] != "default" for item in read_rope(location)):
            hint = f"If it was resized, resize its base to {after}: scaled rotary settings change short inputs too."
        raise ResizeError(message, f"Resize other parts than {location.part} with --part." if has_others else hint)
    if counts := [flag_name(key) for key in COUNTS if getattr(settings, key)]:
        message = f"{' and '.join(counts)} cannot be used with {location.scheme} positions, which have no rows."
        raise MethodError(message, f"Remove {' and '.join(counts)}.")
    applicable, name = facts.methods if facts else (), settings.method and read_method(settings.method)[0]
    if name not in (None, DEFAULT_METHOD, *(applicable or (LIMITS,)), *(KEPT_TYPES if applicable else ())):
        message = f"--method {name} does not apply to {location.scheme} positions."
        one_of = f"Use one of {', '.join(applicable)}." if applicable else "Remove --method: only length limits change."
        raise MethodError(message, one_of)
    if not applicable or after == before:
        return ()
    options = settings.method, applicable
    return tuple(
        RopePlan(item, resize_rope(item.parameters, lengths, rotary_dim(location, item.parameters), *options))
        for item in read_rope(location)
        if not item.is_local
    )


def _check_length(settings: Resize, plan: TablePlan) -> None:
    """Raise ResizeError if the model does not support the length, or if a method option does not apply to it."""
    before, after, facts = plan.max_len_before, plan.max_len_after, settings.facts
    if facts.name not in METHODS or settings.settings.keys() - facts.settings.keys():  # rotary methods
        message = f"--method {settings.method} does not apply to {plan.name}, whose positions are {plan.scheme}."
        raise MethodError(message, "List methods and their settings with `ctxextend methods`.")
    if after < before and settings.method_flags:
        flags = ", ".join(settings.method_flags)
        message = f"{flags} {'do' if ',' in flags else 'does'} not apply when shrinking {plan.name} from {before} to "
        raise ResizeError(f"{message}{after} positions: the first {after} are kept.", f"Remove {flags}.")
    is_formula = settings.facts.name == FORMULA and {*settings.settings.values()} <= {None, plan.location.layout}
    if after > before and not (plan.is_stored or is_formula or settings.facts.name == DEFAULT_METHOD):
        message = f"Only --method {FORMULA} applies to {plan.name}: transformers computes its sinusoids."
        raise ResizeError(message, "Remove --method: the length in config.json is all that changes.")
    if after > before:
        check_source_rows(before, after, settings if plan.is_stored else replace(settings, method=FORMULA))
    location = plan.location
    key, unless = location.table.multiple_of, location.table.unless
    if key is None or not plan.is_changed or (unless and location.stated(unless[0]) == unless[1]):
        return
    stated = location.stated(key)
    values = stated if isinstance(stated, list) else [location.family.defaults.get(key) if stated is None else stated]
    step = max((value for value in values if isinstance(value, int) and value > 0), default=1)
    if after % step:
        below, above = after // step * step, (after // step + 1) * step
        message = f"{plan.name}: the length must be a multiple of {step} ({key}, to which inputs are padded)"
        raise ResizeError(f"{message}, got {after}.", f"Use --to {f'{below} or {above}' if below else above}.")


def plan_edits(model: OpenedModel, tables: Sequence[TablePlan]) -> tuple[Edit, ...]:
    """Return the edits to config.json and tokenizer files that the new lengths require."""
    checkpoint = model.checkpoint
    edits = list(_config_edits(checkpoint, model.architecture, tables)) if checkpoint.has_config else []
    stated, ref = checkpoint.config.get("model_type"), model.ref
    is_unknown = stated not in (*FAMILIES, *POSITION_SCHEMES) and "auto_map" not in checkpoint.config
    if edits and ref.tensor is None and (stated is None or (ref.model_type and is_unknown)):
        model_type = model.architecture.family.model_type
        reason = "selects the transformers class"
        edits.append(Edit(checkpoint.config_file, ("model_type",), stated, model_type, reason=reason))
    # A tokenizer's limits follow the first table that its tokens are fed to.
    first = {location.tokenizer: name for location, name in reversed(model.tables) if location.tokenizer is not None}
    for table in tables:
        tokenizer = table.location.tokenizer
        if tokenizer is not None and first[tokenizer] == table.name and not table.keeps_padding:
            lengths, is_fixed = (table.max_len_before, table.max_len_after), bool(table.location.family.padding_effect)
            rules: dict[str, bool] = {"fix_limits": table.fixes_limits, "is_hard": table.has_rows}
            edits += limit_edits(checkpoint, lengths, tokenizer, **rules, fixed_padding=is_fixed)
    return tuple(edits)


def _config_edits(checkpoint: Checkpoint, architecture: Architecture, tables: Sequence[TablePlan]) -> Iterator[Edit]:
    """Yield the edits to config.json, creating nested objects that are missing."""
    config, edits = checkpoint.config, dict[tuple[str, ...], Any]()
    for path, after in config_changes(config, architecture, tables).items():
        while len(path) > 1 and not isinstance(parent := nested(config, path[:-1]), Mapping):
            if parent is not None:
                key = ".".join(path[:-1])
                raise CheckpointError(f"config.json: {key} is {parent!r:.100}, not an object.", "Correct config.json.")
            path, after = path[:-1], {path[-1]: after}
        edits[path] = {**edits.get(path, {}), **after} if isinstance(after, dict) else after
    for path, after in edits.items():
        yield Edit(checkpoint.config_file, path, nested(config, path), after)


def config_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: Sequence[TablePlan]
) -> dict[tuple[str, ...], Any]:
    """Return the config values that the tables' new lengths require, by path of keys."""
    changes: dict[tuple[str, ...], Any] = {}
    for table in tables:
        location, length = replace(table.location, config=config), table.max_len_after
        paths = () if any(plan.after.keeps_max_len for plan in table.rope) else location.length_paths
        lengths = dict.fromkeys(paths, location.key_value(length))
        for plan in table.rope:
            changes |= rope_changes(location, plan.before, plan.after.parameters)
        raised = {(key,): length for key in architecture.family.limits}
        if table.is_changed:
            changes |= lengths | _pinned(table)
            for path in raised:
                stated = config.get(path[0])
                if length > table.max_len_before or not isinstance(stated, int) or stated > length:
                    changes[path] = length
        elif table.fixes_limits and table.has_rows:  # a missing key may stay missing if transformers' default is right
            expected = (lengths | raised).items()
            changes |= {path: value for path, value in expected if nested(config, path) not in (None, value)}
            default = location.family.defaults.get(location.effective_key)
            if location.stated(location.effective_key) is None and default != location.key_value(length):
                changes |= lengths
    return changes


def _pinned(table: TablePlan) -> dict[tuple[str, ...], Any]:
    """Return values for config keys that depend on the length, so that the model's outputs do not change."""
    location, changes = table.location, dict[tuple[str, ...], Any]()
    before, after = (location.key_value(length) for length in (table.max_len_before, table.max_len_after))
    for pin in location.family.pins:
        if pin.condition is not None and not location.stated(pin.condition):
            continue
        stated = location.stated(pin.key)
        value = before if not isinstance(stated, int) or stated < 1 else None  # unset, it defaults to the length
        if pin.keeps == "blocks":  # keep the total number of blocks: divide it among the new number of block rows
            rows, new_rows = before // pin.block_size, after // pin.block_size
            blocks = min(rows * location.value(pin.key), rows**2)
            value = blocks // new_rows if new_rows and blocks and blocks % new_rows == 0 else None
        if value is not None:
            changes |= dict.fromkeys(location.paths_of(pin.key), value)
    return changes


# The axes of a buffer that are as long as the context, by `Buffer.content`.
BUFFER_AXES = {"arange": (-1,), "zeros": (-1,), "causal": (-2, -1), "rows": (0,)}


@dataclass(frozen=True)
class BufferPlan:
    """A position buffer to rebuild at the new length."""

    name: str  # tensor name
    content: str  # see `Buffer.content`
    shape: tuple[int, ...]  # new shape
    dtype: str  # in safetensors' spelling
    start: int  # first value of an ``arange``


def plan_buffers(checkpoint: Checkpoint, tables: Sequence[TablePlan]) -> tuple[tuple[str, ...], tuple[BufferPlan, ...]]:
    """Return the names of buffers to drop (transformers creates them) and the plans of those to rebuild."""
    dropped, plans = list[str](), list[BufferPlan]()
    changed = [table for table in tables if table.is_changed or table.fixes_limits]
    for name in checkpoint.names:
        candidates = ((table, table.location.buffer(name)) for table in changed)
        table, buffer = next(((table, buffer) for table, buffer in candidates if buffer), (None, None))
        if table is None or buffer is None:
            continue
        if not buffer.is_kept:
            dropped.append(name)
            continue
        entry = checkpoint.entries[name]
        axes = BUFFER_AXES[buffer.content]
        shape = list(entry.shape)
        if len(shape) < len(axes) or entry.dtype not in NUMPY_DTYPES:
            message = f"{name} has dtype {entry.dtype} and shape {list(entry.shape)}, not those of a position buffer."
            raise CheckpointError(message, "Save the model again.")
        for axis in axes:
            shape[axis] = table.location.key_value(table.max_len_after)
        start = 0 if table.location.table.reserved.inside_key else table.reserved_rows
        plans.append(BufferPlan(name, buffer.content, tuple(shape), entry.dtype, start))
    return tuple(dropped), tuple(plans)


def new_buffer(plan: BufferPlan) -> NDArray[Any]:
    """Create a buffer in its planned shape and dtype."""
    values = np.zeros(plan.shape, numpy_dtype(plan.dtype))
    if plan.content == "arange":
        values[...] = np.arange(plan.start, plan.start + plan.shape[-1], dtype=values.dtype)
    elif plan.content == "causal":
        values[...] = np.tri(*plan.shape[-2:], dtype=values.dtype)
    return values
