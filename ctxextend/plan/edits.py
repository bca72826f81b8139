"""Plan what a new length changes: position tables, values in config and tokenizer files, and
position buffers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.generation_limits import generation_edits
from ctxextend.checkpoints.length_limits import Edit, limit_edits
from ctxextend.checkpoints.safetensors_file import NUMPY_DTYPES, numpy_dtype
from ctxextend.errors import CheckpointError, MethodError, ResizeError, flag_name
from ctxextend.families.length_keys import LengthChange, generating_table, length_key_changes
from ctxextend.families.lengths import PositionLengths, layer_lengths, position_lengths
from ctxextend.families.lookup import Architecture, TableLocation, nested
from ctxextend.families.rope import (
    RopeLayers,
    copied_length_paths,
    read_rope,
    rope_changes,
    rotary_dim,
)
from ctxextend.json_output import not_in_json
from ctxextend.plan.find_tables import (
    Describe,
    FoundTable,
    OpenedModel,
    check_rows,
    rewrites_model_type,
    tables_of_part,
)
from ctxextend.recipe import Resize
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_checks import check_source_rows
from ctxextend.tables.method_facts import COUNTS, DEFAULT_METHOD, FORMULA, LIMITS
from ctxextend.tables.rotary import (
    KEPT_TYPES,
    STATES_TRAINED,
    TRAINED,
    Parameters,
    frequencies,
)
from ctxextend.tables.rotary_methods import resize_rope


@dataclass(frozen=True)
class RopePlan:
    """The planned change to the rotary settings of all layers of one type."""

    before: RopeLayers
    after: Parameters
    choice: MethodChoice  # the method that changes them
    keeps_max_len: bool  # whether max_position_embeddings states the first trained length
    scales: bool  # whether any angle changes


@dataclass(frozen=True)
class TablePlan:
    """The planned change to one position table, or to positions without a table of rows."""

    name: str  # tensor name in the checkpoint
    part: str  # encoder, decoder, text, … in models with several tables; else empty
    # weights file, relative to the checkpoint's root; empty if transformers computes the rows
    file: str
    config_key: str  # config key of its length, with dots for nested configs
    max_len_before: int  # usable positions
    max_len_after: int
    # reserved_rows + max_len_before, plus rows after the last position in a few model types
    rows_before: int
    rows_after: int
    reserved_rows: int  # rows before position 0, which are kept
    hidden_size: int  # columns
    dtype: str  # in safetensors' spelling; empty if transformers computes the rows
    location: TableLocation = field(metadata=not_in_json)  # its registry entry
    # Whether all length limits must agree with the table, even if its length stays the same.
    fixes_limits: bool = field(default=False, metadata=not_in_json)
    rope: tuple[RopePlan, ...] = field(
        default=(), metadata=not_in_json
    )  # changes of rotary settings
    # First trained, stated and served length before the resize; None of a table of rows.
    lengths: PositionLengths | None = None

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
        """Whether the number of rows changes, or any rotary setting."""
        return self.rows_before != self.rows_after or bool(self.rope)

    @property
    def is_extended(self) -> bool:
        """Whether rows are created, or rotary settings are to change."""
        return self.rows_after > self.rows_before or bool(self.rope)

    @property
    def stated(self) -> int:
        """The context length that its config key states before the resize, in usable positions."""
        return self.max_len_before if self.lengths is None else self.lengths.stated

    @property
    def key_length(self) -> int:
        """The context length that its config key must state after the resize: the first trained
        one, or the new one.
        """
        if self.lengths is None:
            return self.max_len_after
        is_unscaled = any(plan.keeps_max_len for plan in self.rope)
        is_first = is_unscaled if self.rope else self.lengths.key_is_first_trained
        return self.lengths.first_trained if is_first else self.max_len_after

    @property
    def scales(self) -> bool:
        """Whether any rotary setting changes what positions mean: not if only limits change."""
        return any(plan.scales for plan in self.rope)

    @property
    def keeps_padding(self) -> bool:
        """Whether the tokenizer keeps the old limits: they are also the padding length, on which
        outputs depend.
        """
        is_extended = self.rows_after > self.rows_before
        return bool(self.location.family.padding_effect) and is_extended and not self.fixes_limits

    @property
    def same_up_to(self) -> int:
        """The longest input, in tokens, whose outputs can stay: of ``dynamic`` settings, the
        trained length.
        """
        is_dynamic = any(plan.before.parameters["rope_type"] == "dynamic" for plan in self.rope)
        return min(self.stated, self.key_length) if is_dynamic else self.max_len_before


def with_length(settings: Resize, tables: Sequence[FoundTable], describe: Describe) -> Resize:
    """Replace a factor such as ``4x`` with a number of positions; raise ResizeError if the tables
    differ in length.
    """
    if isinstance(settings.to, int):
        return settings
    selected = tables_of_part(tables, settings.part)
    lengths = {
        table.location.part: table.location.positions(describe(table)[0][0]) for table in selected
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{part} {length}" for part, length in lengths.items())
        hint = "Pass a number with --to, or one table with --part."
        raise ResizeError(f"--to {settings.to}: the tables differ in length ({listed}).", hint)
    return replace(settings, to=lengths.popitem()[1] * int(settings.to[:-1]))


def plan_tables(
    tables: Sequence[FoundTable],
    settings: Resize,
    describe: Describe,
    recorded: Mapping[str, str],
    has_config: bool,
) -> tuple[TablePlan, ...]:
    """Plan the requested tables of a checkpoint or loaded model, whose config must match them if it
    `has_config`.

    `recorded` contains the methods of rotary positions that a recipe states per table.
    """
    selected = tables_of_part(tables, settings.part)
    for table in tables:
        if (
            table.location.config_key in {location.config_key for location, _ in selected}
            and table not in selected
        ):
            message = (
                f"--part {settings.part}: {table.name} shares the config key "
                f"{table.location.config_key}, "
            )
            both = table.location.part.rpartition(".")[0]
            hint = f"Use --part {both}." if both else "Remove --part."
            raise ResizeError(f"{message}so both must be resized together.", hint)
    plans = []
    for table in selected:
        (location, name), ((rows, hidden_size), dtype, file) = table, describe(table)
        if not location.table.scheme:
            check_rows(location, rows, name, has_config=has_config and not settings.fix_limits)
        key, positions = (
            location.config_key,
            settings.positions,
        )  # tables can share a key: it must fit the longest
        after = location.rows(
            max(other.key_value(positions) for other, _ in tables if other.config_key == key)
        )
        plan = TablePlan(
            name=name,
            part=location.part,
            file=file,
            config_key=key,
            max_len_before=location.positions(rows),
            max_len_after=location.positions(after),
            rows_before=rows,
            rows_after=after,
            reserved_rows=location.reserved_rows,
            hidden_size=hidden_size,
            dtype=dtype,
            location=location,
            fixes_limits=settings.fix_limits,
        )
        if location.table.scheme:
            options = replace(settings, method=recorded.get(name, settings.method))
            plan = _with_rope(plan, options, has_others=len(selected) > 1)
        plans.append(plan)
    changes = {(plan.rows_after > plan.rows_before): plan for plan in plans if plan.is_changed}
    if len(changes) > 1:
        old = {
            is_longer: f"{plan.name} (from {plan.max_len_before})"
            for is_longer, plan in changes.items()
        }
        parts = " or ".join(f"--part {plan.part or '…'}" for plan in changes.values())
        message = f"--to {settings.to} would extend {old[True]} and shrink {old[False]}."
        raise ResizeError(message, f"Resize one at a time: {parts}.")
    for plan in plans:
        if plan.has_rows:  # see `_with_rope` for others
            _check_length(settings, plan)
    return tuple(plans)


def _with_rope(plan: TablePlan, settings: Resize, *, has_others: bool) -> TablePlan:
    """Plan positions without a table of rows: which rotary settings change, if any, and from which
    length.
    """
    location = plan.location
    lengths = position_lengths(plan.location)
    after = plan.max_len_after
    has_settings = location.table.rope is not None and bool(location.table.rope.methods)
    _check_scheme_method(location, settings)
    before = lengths.context
    only_fixes_limits = settings.fix_limits and after == before
    if lengths.question and not only_fixes_limits:
        raise ResizeError(f"config.json: {lengths.question}.", f"Pass {lengths.answer}.")
    # The settings are the only thing that may change at the length that they already serve.
    is_corrected = has_settings and any(
        _is_corrected(location, item) for item in _scaled_layers(location)
    )
    if after < before or (after == before and not settings.fix_limits and not is_corrected):
        raise _no_change_needed(location, before, after, has_others=has_others)
    rows = location.rows(location.key_value(before))
    plan = replace(plan, max_len_before=before, rows_before=rows, lengths=lengths)
    if not has_settings or (after == before and not is_corrected):
        return plan
    return replace(plan, rope=_plan_rope(location, settings, after))


def _method_name(settings: Resize) -> str | None:
    """Return the name of the requested method; None for the default one."""
    name = settings.choice.name
    return None if name == DEFAULT_METHOD else name


def _check_scheme_method(location: TableLocation, settings: Resize) -> None:
    """Raise MethodError if a setting does not apply to positions without rows, or to this model
    type.
    """
    if counts := [flag_name(key) for key in COUNTS if getattr(settings, key)]:
        message = (
            f"{' and '.join(counts)} cannot be used with {location.scheme} positions, which have "
            "no rows."
        )
        raise MethodError(message, f"Remove {' and '.join(counts)}.")
    applicable = location.table.rope.methods if location.table.rope else ()
    name = _method_name(settings)
    if name == LIMITS and location.trained_length is not None:
        message = "--trained-length has no effect with --method limits, which scales nothing."
        raise MethodError(message, "Remove one of them.")
    if name not in (None, LIMITS, *applicable, *(KEPT_TYPES if applicable else ())):
        message = f"--method {name} does not apply to {location.scheme} positions."
        one_of = (
            f"Use one of {', '.join(applicable)}."
            if applicable
            else "Remove --method: only length limits change."
        )
        raise MethodError(message, one_of)


def _scaled_layers(location: TableLocation) -> list[RopeLayers]:
    """Return the rotary settings of the layers that see the whole input: others are not scaled."""
    return [item for item in read_rope(location) if not item.is_local]


def _is_corrected(location: TableLocation, layers: RopeLayers) -> bool:
    """Whether the user states another length of the first training than the rotary settings of
    these layers.
    """
    rope, given = layers.parameters, location.trained_length
    return (
        given is not None and rope["rope_type"] in STATES_TRAINED and given != round(rope[TRAINED])
    )


def _no_change_needed(
    location: TableLocation, before: int, after: int, *, has_others: bool
) -> ResizeError:
    message = (
        f"The model accepts {before} tokens: its positions are {location.scheme}, so {after} "
        "need no change."
    )
    if has_others:
        return ResizeError(message, f"Resize other parts than {location.part} with --part.")
    hint = (
        f'To truncate texts at {after} tokens, set "model_max_length": {after} in '
        "tokenizer_config.json."
    )
    layers = read_rope(location) if location.table.rope else ()
    if any(item.parameters["rope_type"] != "default" for item in layers):
        hint = (
            f"If it was resized, resize its base to {after}: scaled rotary settings change short "
            "inputs too."
        )
    return ResizeError(message, hint)


def _plan_rope(location: TableLocation, settings: Resize, after: int) -> tuple[RopePlan, ...]:
    """Plan the rotary settings that serve a longer context, for each type of layers that sees the
    whole input.
    """
    plans = list[RopePlan]()
    for item in _scaled_layers(location):
        change, choice = _change_rope(location, item, settings, after)
        # A file keeps its convention.
        is_first = layer_lengths(location, item).key_is_first_trained
        keeps_max_len = is_first or choice.facts.keeps_max_len
        plans.append(
            RopePlan(
                before=item,
                after=change,
                choice=choice,
                keeps_max_len=keeps_max_len,
                scales=_scales(location, item, change, after, keeps_max_len=keeps_max_len),
            )
        )
    return tuple(plans)


def _change_rope(
    location: TableLocation, layers: RopeLayers, settings: Resize, after: int
) -> tuple[Parameters, MethodChoice]:
    """Return new rotary settings of the layers of one type, for a context of `after` tokens."""
    facts = location.table.rope
    kind = layers.parameters["rope_type"]
    assert facts is not None
    lengths = layer_lengths(location, layers)
    is_corrected = _is_corrected(location, layers)
    if is_corrected and kind in ("longrope", "llama3"):
        stated = round(layers.parameters[TRAINED])
        message = (
            f"--trained-length {location.trained_length}: {kind} settings state {stated}, which "
            "is part of their "
        )
        raise MethodError(f"{message}formula.", f"Pass --trained-length {stated}, or remove it.")
    # The factor of other types is multiplied: llama3 models may serve more than factor x first
    # trained length, and with linear or dynamic settings that length may have a fraction.
    first = lengths.first_trained if kind in ("default", "yarn", "longrope") else None
    change, choice = resize_rope(
        layers.parameters,
        (lengths.served, after),
        rotary_dim(location, layers.parameters),
        settings.choice.name,
        settings.choice.settings.get("factor"),
        methods=facts.methods,
        first_trained=first,
        is_corrected=is_corrected,
    )
    if lengths.key_is_first_trained and choice.name == LIMITS and after > lengths.served:
        message = (
            f"--method {LIMITS} cannot state {after} tokens: {location.effective_key} "
            f"{lengths.stated} is the "
        )
        message += f"length before scaling, and the {kind} settings serve {lengths.served}."
        raise ResizeError(
            message, f"Remove --method {LIMITS}, or use --to {lengths.served} or fewer."
        )
    return change, choice


def _scales(
    location: TableLocation,
    before: RopeLayers,
    after: Parameters,
    length: int,
    *,
    keeps_max_len: bool,
) -> bool:
    """Whether a change gives any input of up to `length` tokens other angles, or another attention
    factor.
    """
    if after == before.parameters:
        return False
    dim, stated = rotary_dim(location, before.parameters), location.value(location.effective_key)
    max_len = stated if keeps_max_len else length
    for tokens in (1, stated, length):
        old = frequencies(before.parameters, dim, stated, tokens)
        new = frequencies(after, dim, max_len, tokens)
        is_equal = np.allclose(old.inverse, new.inverse, rtol=1e-12, atol=0)
        if not is_equal or not np.isclose(old.attention_factor, new.attention_factor, rtol=1e-12):
            return True
    return False


def _check_length(settings: Resize, plan: TablePlan) -> None:
    """Raise ResizeError if the model does not support the length, or if a method option does not
    apply to it.
    """
    before, after, choice = plan.max_len_before, plan.max_len_after, settings.choice
    if choice.facts.scheme:  # a rotary method
        message = (
            f"--method {settings.method} does not apply to {plan.name}, whose positions are "
            f"{plan.scheme}."
        )
        raise MethodError(message, "List methods and their settings with `ctxextend methods`.")
    if after < before and settings.method_flags:
        flags = ", ".join(settings.method_flags)
        message = (
            f"{flags} {'do' if ',' in flags else 'does'} not apply when shrinking {plan.name} "
            f"from {before} to "
        )
        raise ResizeError(
            f"{message}{after} positions: the first {after} are kept.", f"Remove {flags}."
        )
    is_formula = choice.name == FORMULA and {*choice.settings.values()} <= {
        None,
        plan.location.layout,
    }
    if after > before and not (plan.is_stored or is_formula or choice.name == DEFAULT_METHOD):
        message = (
            f"Only --method {FORMULA} applies to {plan.name}: transformers computes its sinusoids."
        )
        raise ResizeError(
            message, "Remove --method: the length in config.json is all that changes."
        )
    if after > before:
        choice = choice if plan.is_stored else replace(settings, method=FORMULA).choice
        check_source_rows(before, after, choice)
    location = plan.location
    key, unless = location.table.multiple_of, location.table.unless
    if key is None or not plan.is_changed or (unless and location.stated(unless[0]) == unless[1]):
        return
    stated = location.stated(key)
    values = (
        stated
        if isinstance(stated, list)
        else [location.family.defaults.get(key) if stated is None else stated]
    )
    step = max((value for value in values if isinstance(value, int) and value > 0), default=1)
    if after % step:
        below, above = after // step * step, (after // step + 1) * step
        message = (
            f"{plan.name}: the length must be a multiple of {step} ({key}, to which inputs are "
            "padded)"
        )
        raise ResizeError(
            f"{message}, got {after}.", f"Use --to {f'{below} or {above}' if below else above}."
        )


def plan_edits(model: OpenedModel, tables: Sequence[TablePlan]) -> tuple[Edit, ...]:
    """Return the edits to config.json and tokenizer files that the new lengths require."""
    checkpoint = model.checkpoint
    edits = (
        list(_config_edits(checkpoint, model.architecture, tables)) if checkpoint.has_config else []
    )
    stated = checkpoint.config.get("model_type")
    if edits and rewrites_model_type(checkpoint, model.ref):
        model_type = model.architecture.family.model_type
        reason = "selects the transformers class"
        edits.append(
            Edit(checkpoint.config_file, ("model_type",), stated, model_type, reason=reason)
        )
    # A tokenizer's limits follow the first table that its tokens are fed to.
    first = {
        location.tokenizer: name
        for location, name in reversed(model.tables)
        if location.tokenizer is not None
    }
    for table in tables:
        tokenizer = table.location.tokenizer
        if tokenizer is not None and first[tokenizer] == table.name and not table.keeps_padding:
            lengths = (table.max_len_before, table.max_len_after)
            is_fixed = bool(table.location.family.padding_effect)
            rules: dict[str, bool] = {"fix_limits": table.fixes_limits, "is_hard": table.has_rows}
            edits += limit_edits(checkpoint, lengths, tokenizer, **rules, fixed_padding=is_fixed)
    edits += _generation_edits(model, tables)
    return tuple(edits)


def _generation_edits(model: OpenedModel, tables: Sequence[TablePlan]) -> Iterator[Edit]:
    """Yield the edits to the limits of generated texts, which count the positions of one table."""
    generating = generating_table(model.tables)
    for table in tables:
        if generating is None or table.name != generating.name:
            continue
        if table.is_changed or table.fixes_limits:
            lengths = (table.max_len_before, table.max_len_after)
            yield from generation_edits(
                model.checkpoint, table.location, *lengths, fix_limits=table.fixes_limits
            )


def _config_edits(
    checkpoint: Checkpoint, architecture: Architecture, tables: Sequence[TablePlan]
) -> Iterator[Edit]:
    """Yield the edits to config.json, creating nested objects that are missing."""
    config = checkpoint.config
    edits = dict[tuple[str, ...], Any]()
    for path, after in config_changes(config, architecture, tables).items():
        while len(path) > 1 and not isinstance(parent := nested(config, path[:-1]), Mapping):
            if parent is not None:
                key = ".".join(path[:-1])
                raise CheckpointError(
                    f"config.json: {key} is {parent!r:.100}, not an object.", "Correct config.json."
                )
            path, after = path[:-1], {path[-1]: after}
        edits[path] = {**edits.get(path, {}), **after} if isinstance(after, dict) else after
    for path, after in edits.items():
        yield Edit(checkpoint.config_file, path, nested(config, path), after)


def config_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: Sequence[TablePlan]
) -> dict[tuple[str, ...], Any]:
    """Return the config values that the tables' new lengths require, by path of keys."""
    changes: dict[tuple[str, ...], Any] = {}
    copied: dict[tuple[str, ...], Any] = {}  # lengths next to copies of the rotary settings
    for table in tables:
        location = replace(table.location, config=config)
        length = table.max_len_after
        lengths = dict.fromkeys(location.length_paths, location.key_value(table.key_length))
        for plan in table.rope:
            changes |= rope_changes(location, plan.before, plan.after)
        if table.rope:
            copied |= dict.fromkeys(
                copied_length_paths(location), location.key_value(table.key_length)
            )
        raised = {(key,): length for key in architecture.family.limits}
        if table.is_changed:
            is_kept = table.key_length == table.stated
            changes |= _pinned(table) if is_kept else lengths | _pinned(table)
            for path in raised:
                stated = config.get(path[0])
                if length > table.max_len_before or not isinstance(stated, int) or stated > length:
                    changes[path] = length
        elif table.fixes_limits:  # a missing key may stay missing if transformers' default is right
            expected = (lengths | raised).items()
            changes |= {
                path: value for path, value in expected if nested(config, path) not in (None, value)
            }
            default = location.family.defaults.get(location.effective_key)
            if location.stated(location.effective_key) is None and default != location.key_value(
                length
            ):
                changes |= lengths
    all_lengths = length_changes(config, architecture, tables)
    followed = length_key_changes(
        all_lengths, fix_limits=any(table.fixes_limits for table in tables)
    )
    return changes | followed | copied


def length_changes(
    config: Mapping[str, Any], architecture: Architecture, tables: Sequence[TablePlan]
) -> list[LengthChange]:
    """Return the planned lengths, and those of other tables, which stay, as far as the config
    states them.
    """
    lengths = list[LengthChange]()
    for table in tables:
        location = replace(table.location, config=config)
        lengths.append(LengthChange(location, table.max_len_before, table.max_len_after))
    planned = {table.config_key for table in tables}
    for location in architecture.locations:
        other = replace(location, config=config)
        stated = other.stated(other.effective_key)
        if other.config_key not in planned and type(stated) is int:
            positions = other.positions(other.rows(stated))
            lengths.append(LengthChange(other, positions, positions))
    return lengths


def _pinned(table: TablePlan) -> dict[tuple[str, ...], Any]:
    """Return values for config keys that depend on the length, so that the model's outputs do not
    change.
    """
    location = table.location
    changes = dict[tuple[str, ...], Any]()
    before, after = (
        location.key_value(length) for length in (table.max_len_before, table.max_len_after)
    )
    for pin in location.family.pins:
        if pin.condition is not None and not location.stated(pin.condition):
            continue
        stated = location.stated(pin.key)
        value = (
            before if not isinstance(stated, int) or stated < 1 else None
        )  # unset, it defaults to the length
        if (
            pin.keeps == "blocks"
        ):  # keep the total number of blocks: divide it among the new number of block rows
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


def plan_buffers(
    checkpoint: Checkpoint, tables: Sequence[TablePlan]
) -> tuple[tuple[str, ...], tuple[BufferPlan, ...]]:
    """Return the names of buffers to drop (transformers creates them) and the plans of those to
    rebuild.
    """
    dropped, plans = list[str](), list[BufferPlan]()
    changed = [table for table in tables if table.is_changed or table.fixes_limits]
    for name in checkpoint.names:
        candidates = ((table, table.location.buffer(name)) for table in changed)
        table, buffer = next(
            ((table, buffer) for table, buffer in candidates if buffer), (None, None)
        )
        if table is None or buffer is None:
            continue
        if not buffer.is_kept:
            dropped.append(name)
            continue
        entry = checkpoint.entries[name]
        axes = BUFFER_AXES[buffer.content]
        shape = list(entry.shape)
        if len(shape) < len(axes) or entry.dtype not in NUMPY_DTYPES:
            message = (
                f"{name} has dtype {entry.dtype} and shape {list(entry.shape)}, not those of a "
                "position buffer."
            )
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
