"""A table of learned rows."""

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import FROM_BASE
from ctxextend.checkpoint.safetensors_file import (
    DTYPES,
    FLOATS,
    TensorEntry,
    check_dtype,
    numpy_dtype,
)
from ctxextend.errors import CheckpointError, MethodError, ResizeError
from ctxextend.positions.change import Change, NewTensor, ShortInputs, UntrainedRows
from ctxextend.positions.facts import Buffer, ConfigCondition
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import (
    PositionLengths,
    Positions,
    nested,
    positive_numbers,
)
from ctxextend.provenance import Step
from ctxextend.settings import Resize
from ctxextend.tables.apply import check_source_rows, choose_method, resize_with_reserved
from ctxextend.tables.layouts import find_formula
from ctxextend.tables.method_facts import (
    COPY,
    DEFAULT_METHOD,
    FORMULA,
    MethodChoice,
)
from ctxextend.tables.methods import METHODS
from ctxextend.tables.stats import find_untrained_rows

Values = NDArray[Any]  # of a table, shape (rows, hidden_size), in its dtype

NO_SINUSOIDS = "its rows are not the sinusoids of the model, so they are treated as learned"
MLX_DTYPE = "U32"  # of integers that MLX packs
# Config keys for the standard deviation of weight initialisation, and the defaults of transformers
# and nn.Embedding.
INITIALIZER_KEYS = ("initializer_range", "init_std", "initializer_factor")
DEFAULT_STDS = (0.02, 1.0)
MAX_STD = 1e6  # larger values are mistakes
# The axes of a buffer that are as long as the context, by `Buffer.content`.
BUFFER_AXES = {"arange": (-1,), "zeros": (-1,), "causal": (-2, -1), "rows": (0,)}


@dataclass(frozen=True, kw_only=True)
class Rows(Positions):
    """A table of learned rows, one for each position."""

    tensor: str  # type: ignore[misc]  # name without the model's prefix
    buffers: tuple[Buffer, ...] = ()  # type: ignore[misc]
    extra_rows: int = 0  # type: ignore[misc]  # after the last position, which are not usable
    # ``fail``, ``share the last position`` or, of sinusoids, ``get computed rows``.
    longer_inputs: str = "fail"
    # Key whose value (or largest list item) must divide the length: ``attention_window`` of
    # Longformer.
    multiple_of: str | None = None  # type: ignore[misc]
    # When `multiple_of` does not apply: with full attention, BigBird has no blocks.
    multiple_unless: ConfigCondition | None = None
    # Key that is true if the model starts with sinusoids of `layout`, else with learned rows:
    # ``sinusoidal_pos_embds`` of DistilBERT.
    layout_key: str | None = None  # type: ignore[misc]
    layout: str = ""  # type: ignore[misc]

    # The buffers of the checkpoint that are as long as the context, by name.
    stored_buffers: Mapping[str, tuple[TensorEntry, Buffer]] = field(default_factory=dict)
    # The layout of the sinusoids that the model starts with; empty if it has none.
    initial_layout: str = field(init=False, default="")  # type: ignore[misc]
    scheme: str = field(init=False, default="learned")  # type: ignore[misc]

    longer_inputs_fail: ClassVar = True
    unchanged_method: ClassVar = COPY
    owner: ClassVar = "table"

    def names_among(self, names: Collection[str], *, is_only: bool) -> list[str]:
        """Return the names that the table has in a model; none if it does not have it."""
        return [name for name in self.names if name in names]

    def sized_in(self, checkpoint: Checkpoint) -> Self:
        """Return the table with the size that it has in a checkpoint.

        Raises:
            CheckpointError: The stored tensor has an invalid shape or dtype.
        """
        weights = checkpoint.weights
        file = weights.file_of[self.name]
        entry = file.entries[self.name]
        scales = f"{self.name.removesuffix('.weight')}.scales"
        if entry.dtype == MLX_DTYPE and scales in file.entries:
            message = f"{file.path}: {self.name} is quantised by MLX, and cannot be resized."
            raise CheckpointError(message, FROM_BASE)
        check_dtype(file, self.name, FLOATS)
        if len(entry.shape) != 2 or 0 in entry.shape:
            message = (
                f"{file.path}: {self.name} has shape {list(entry.shape)}, expected (rows, "
                "hidden_size)."
            )
            raise CheckpointError(message, "Save it again.")
        rows, hidden_size = entry.shape
        return replace(
            self,
            rows=rows,
            hidden_size=hidden_size,
            dtype=entry.dtype,
            weights_file=checkpoint.relative(file),
            read=partial(weights.read, self.name),
            no_lm=checkpoint.no_lm,
            stored_buffers=self.buffers_among(weights.entries),
        )

    def buffers_among(
        self, entries: Mapping[str, TensorEntry]
    ) -> dict[str, tuple[TensorEntry, Buffer]]:
        """Return the tensors of a model that are as long as the context, by name."""
        found = dict[str, tuple[TensorEntry, Buffer]]()
        for name, entry in entries.items() if self.buffers else ():
            buffer = self.buffer(name)
            if buffer is not None:
                found[name] = (entry, buffer)
        return found

    @property
    def layout_text(self) -> str:  # type: ignore[override]
        """How or when the table has sinusoids, for lists of model types; empty if it has none."""
        if self.layout_key is not None:
            return f"sinusoidal with {self.layout_key}=true"
        return f"layout {self.layout}" if self.layout else ""

    @property
    def lengths(self) -> PositionLengths:  # type: ignore[override]
        """The number of usable rows: it is what the model was trained at, states and serves."""
        length = self.rows - self.other_rows
        return PositionLengths(first_trained=length, stated=length, served=length)

    def length(self) -> int:
        """Return the usable positions; `check_rows` refuses a table without any."""
        return self.rows - self.other_rows

    def values_of_length(self, length: int) -> tuple[int, ...]:
        """Return the values of limits that agree with a length: 512 and, of RoBERTa, 514 rows."""
        return (length, self.key_value(length))

    @property
    def needs_no_limit(self) -> bool:  # type: ignore[override]
        """Whether generated texts may exceed the rows, since more are computed when needed."""
        return self.longer_inputs == "get computed rows"

    # Checks

    def check_rows(self, *, has_config: bool = True) -> None:
        """Check that the table has a position, and the rows that its config states.

        Args:
            has_config: Whether the number of rows must be that of the config.

        Raises:
            CheckpointError: It does not, or the number of reserved rows is malformed.
        """
        if self.reserved.config_key is not None:
            self.value(self.reserved.config_key)
        if has_config:
            key = self.effective_key
            value = self.value(key)
            expected = self.length_of_key(value) + self.other_rows
            if self.rows != expected:
                default = ""
                if self.stated(key) is None:
                    default = " (transformers' default, because the key is missing)"
                path = ".".join((*self.path, key))
                message = (
                    f"{self.file}: {path} is {reprlib.repr(value)}{default}, so {self.name} "
                    f"should have {reprlib.repr(expected)} rows, but has {self.rows}."
                )
                hint = (
                    f"Correct {self.file} (see ctxextend inspect MODEL --check), resize with "
                    "--fix-limits, which takes the length of the table, or download config and "
                    "weights again."
                )
                raise CheckpointError(message, hint)
        if self.length() >= 1:
            return
        message = (
            f"{self.name} has {self.rows} rows, of which {self.reserved_rows} are reserved: no "
            "position is left."
        )
        reserved = self.reserved.config_key or "the number of reserved rows"
        raise CheckpointError(message, f"Check {reserved} and {self.length_key}.")

    def report(
        self, checkpoint: Checkpoint, recipe: Step | None, parameters: int
    ) -> PositionReport:
        """Return the statistics of the rows, which are read once."""
        from ctxextend.positions.table_report import report_table

        return report_table(checkpoint, self, recipe, parameters)

    # What a resize changes

    def change(self, settings: Resize, after: int, *, has_others: bool = False) -> Change:
        """Return the change to another number of positions.

        Stored rows that are extended, or whose limits are made to agree, are read once.

        Args:
            settings: With the method of this table, which may leave a choice to the rows.
            after: The new number of usable positions.
            has_others: Whether the model has other positions.

        Raises:
            CheckpointError: The config states another number of rows, or the rows cannot be read.
            ResizeError: A setting does not apply, or the method cannot extend the table.
        """
        self.check_rows(has_config=bool(self.config) and not settings.fix_limits)
        before = self.length()
        choice = self._choice(settings, after)
        untrained = None
        rows = None
        if self.dtype and (after > before or settings.fix_limits):
            rows = self.read()[self.reserved_rows : self.rows]
            zero = tuple(np.flatnonzero(~rows.any(axis=1)).tolist())
            untrained = UntrainedRows(self.find_random_rows(rows), zero)
        short_inputs = ShortInputs.IDENTICAL
        if choice is not None:
            if rows is not None and untrained is not None:
                layout = self.initial_layout
                choice = choose_method(rows, after + self.extra_rows, choice, layout, self.no_lm)
                if layout and choice.name != FORMULA and find_formula(rows, layout) is None:
                    reasons = filter(None, (NO_SINUSOIDS, choice.reason))
                    choice = replace(choice, reason="; ".join(reasons))
                if 2 * (len(untrained.random) + len(untrained.zero)) > before:
                    choice = replace(choice, reason="")  # random rows are no reason for anything
            if choice.kept_rows(before) != before:
                short_inputs = ShortInputs.CHANGED
        keeps_padding = bool(self.family.padding_effect) and not settings.fix_limits
        change = Change(
            positions=self,
            max_len_before=before,
            max_len_after=after,
            stated_after=after,
            choice=choice,
            short_inputs=short_inputs,
            same_up_to=before,
            scales=after > before,
            untrained=untrained,
            keeps_padding=keeps_padding and after > before,
        )
        return self.with_tensors(change, with_buffers=after != before or settings.fix_limits)

    def _choice(self, settings: Resize, after: int) -> MethodChoice | None:
        """Return the method as requested; None if the table does not become longer.

        Raises:
            ResizeError: The method or the length does not apply to the table.
        """
        before = self.length()
        choice = settings.choice
        if choice.facts.scheme:  # a rotary method
            message = (
                f"--method {settings.method} does not apply to {self.name}, whose positions are "
                f"{self.scheme}."
            )
            raise MethodError(message, "List methods and their settings with `ctxextend methods`.")
        if after < before and settings.method_flags:
            flags = ", ".join(settings.method_flags)
            message = (
                f"{flags} cannot be used when shrinking {self.name} from {before} to {after} "
                f"positions: the first {after} are kept."
            )
            raise ResizeError(message, f"Remove {flags}.")
        if after > before:
            used = choice if self.dtype else self._formula(choice)
            choice = check_source_rows(before, after, used)
        if after != before and self.multiple_of is not None:
            self._check_multiple(after, self.multiple_of)
        return choice if after > before else None

    def _check_multiple(self, after: int, key: str) -> None:
        lifts = self.multiple_unless
        if lifts is not None and lifts.holds(self.stated(lifts.key)):
            return
        step = max(positive_numbers(self.stated_or_default(key)), default=1)
        below = after // step * step
        if after != below:
            above = below + step
            message = (
                f"{self.name}: the length must be a multiple of {step} ({key}, to which inputs are "
                f"padded), got {after}."
            )
            allowed = f"{below} or {above}" if below else str(above)
            raise ResizeError(message, f"Use --to {allowed}.")

    def _formula(self, choice: MethodChoice) -> MethodChoice:
        values = set(choice.settings.values())
        is_formula = choice.name == FORMULA and values <= {None, self.layout}
        if not is_formula and choice.name != DEFAULT_METHOD:
            message = (
                f"Only --method {FORMULA} applies to {self.name}: transformers computes its "
                "sinusoids."
            )
            hint = "Remove --method: the length in config.json is all that changes."
            raise ResizeError(message, hint)
        return METHODS[FORMULA].choice().keeping(choice.keep_first)

    def find_random_rows(self, rows: Values) -> dict[int, float]:
        """Return the rows that look randomly initialised, and the standard deviation of each.

        Args:
            rows: Without reserved ones, shape (positions, hidden_size).
        """
        stds = list[float]()
        for config in (nested(self.config, self.path), self.config):
            if not isinstance(config, Mapping):
                continue
            for key in INITIALIZER_KEYS:
                value = config.get(key)
                if isinstance(value, int | float) and 0 < value < MAX_STD:
                    stds.append(float(value))
        return find_untrained_rows(rows, tuple(dict.fromkeys((*stds, *DEFAULT_STDS))))

    def with_tensors(self, change: Change, *, with_buffers: bool) -> Change:
        """Return a change with its new tensors: the stored table, and buffers that are kept.

        Other position buffers are dropped: transformers creates them.

        Raises:
            CheckpointError: A buffer has another dtype or shape than position buffers have.
        """
        tensors = list[NewTensor]()
        dropped = list[str]()
        if self.dtype:
            shape = (change.rows_after, self.hidden_size)
            compute = partial(self.resized, change)
            tensors.append(NewTensor(self.name, shape, self.dtype, compute))
        if with_buffers:
            for name, (entry, buffer) in self.stored_buffers.items():
                if buffer.is_kept:
                    tensors.append(self.new_buffer(entry, buffer, change.max_len_after))
                else:
                    dropped.append(name)
        return replace(change, tensors=tuple(tensors), dropped=tuple(dropped))

    def resized(self, change: Change, values: Values | None = None) -> Values:
        """Return the table after a change, shape (rows_after, hidden_size).

        Args:
            change: What changes; it may extend only the first rows (`rows_before`).
            values: The stored values; by default they are read.

        Raises:
            CheckpointError: The rows cannot be read.
            ResizeError: The new table does not fit in memory.
        """
        before = (self.read() if values is None else values)[: change.rows_before]
        positions = change.rows_after - self.reserved_rows
        try:
            return resize_with_reserved(before, self.reserved_rows, positions, change.choice)
        except MemoryError:
            shape = f"({change.rows_after:,}, {self.hidden_size:,})"
            message = f"Out of memory: {self.name} of shape {shape} is too large."
            raise ResizeError(message, "Use a smaller --to.") from None

    def new_buffer(self, entry: TensorEntry, buffer: Buffer, length: int) -> NewTensor:
        """Return a position buffer at another length.

        Raises:
            CheckpointError: The stored tensor has another dtype or shape than such buffers have.
        """
        axes = BUFFER_AXES[buffer.content]
        shape = list(entry.shape)
        if len(shape) < len(axes) or entry.dtype not in DTYPES:
            message = (
                f"{entry.name} has dtype {entry.dtype} and shape {shape}, not those of a position "
                "buffer."
            )
            raise CheckpointError(message, "Save the model again.")
        for axis in axes:
            shape[axis] = self.key_value(length)

        def compute() -> Values:
            values = np.zeros(shape, numpy_dtype(entry.dtype))
            if buffer.content == "arange":
                start = 0 if self.reserved.inside_key else self.reserved_rows
                values[...] = np.arange(start, start + shape[-1], dtype=values.dtype)
            elif buffer.content == "causal":
                values[...] = np.tri(*shape[-2:], dtype=values.dtype)
            return values

        return NewTensor(entry.name, tuple(shape), entry.dtype, compute, is_table=False)
