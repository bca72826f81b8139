"""Compare all tensors but tables: names, forms, buffers and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import METADATA, NUMPY_DTYPES, TensorEntry
from ctxextend.checkpoints.weights import layer_pattern
from ctxextend.families.schema import Buffer
from ctxextend.plan.buffers import BUFFER_AXES, BufferPlan, new_buffer
from ctxextend.plan.table_plan import TablePlan
from ctxextend.progress import Progress
from ctxextend.verification.compare_bytes import WrongBytes, find_wrong_bytes
from ctxextend.verification.expected import Expected


@dataclass(frozen=True)
class TensorForm:
    """The dtype and shape of a tensor."""

    dtype: str  # in safetensors' spelling
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WrongForm:
    """A tensor that is missing, or has another dtype or shape than expected."""

    name: str
    found: TensorForm | None  # None: the tensor is missing
    expected: TensorForm


@dataclass(frozen=True)
class WrongBuffer:
    """A position buffer that is not the one for the new length."""

    name: str
    form: WrongForm | None  # None: only its values are wrong


@dataclass(frozen=True)
class WrongMetadata:
    """A weights file with other metadata, from which transformers reads the tensors' framework."""

    file: str
    found: Any
    expected: Any


@dataclass(frozen=True)
class ComparedTensors:
    """What was compared of a checkpoint's tensors, and what is wrong."""

    wrong_forms: tuple[WrongForm, ...]
    wrappers: tuple[str, ...]  # what wrappers added to names, such as ``_orig_mod.``
    added: tuple[str, ...]  # tensors that the base does not have
    outdated: tuple[str, ...]  # position buffers that the output must not have
    wrong_buffers: tuple[WrongBuffer, ...]
    wrong_metadata: tuple[WrongMetadata, ...]
    wrong_bytes: tuple[WrongBytes, ...]
    count: int  # tensors of the expected form, whose bytes were compared
    size: int  # of these, in bytes
    adapted: int  # tensors with adapters, whose bytes were not compared

    @property
    def are_identical(self) -> bool:
        """Whether nothing is wrong."""
        faults = (
            self.wrong_forms,
            self.wrappers,
            self.added,
            self.outdated,
            self.wrong_buffers,
            self.wrong_metadata,
            self.wrong_bytes,
        )
        return not any(faults)


def compare_tensors(expected: Expected, resized: Checkpoint, progress: Progress) -> ComparedTensors:
    """Compare all tensors but tables, and check position buffers.

    Of tensors that adapters changed, only name, dtype and shape are compared. `progress` is called
    with the bytes compared since the last call, and the total.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: A tensor of a conversion cannot be computed.
    """
    base = expected.base
    kept = _kept_tensors(expected)
    forms = {name: find_wrong_form(resized, name, form_of(entry)) for name, entry in kept.items()}
    adapted = [name for name in kept if layer_pattern(name) in expected.recorded.adapted]
    skipped = {*adapted, *(name for name, wrong in forms.items() if wrong)}
    same = [
        (entry, base.weights.file_of[name]) for name, entry in kept.items() if name not in skipped
    ]
    # One thread reads while the other compares; tensors that are computed fill memory, so one at a
    # time.
    threads = 1 if expected.conversion else 2
    return ComparedTensors(
        wrong_forms=tuple(wrong for wrong in forms.values() if wrong),
        wrappers=tuple(resized.weights.wrappers),
        added=tuple(_added_tensors(expected, resized)),
        outdated=tuple(_outdated_buffers(expected, resized)),
        wrong_buffers=tuple(_wrong_buffers(expected, resized)),
        wrong_metadata=tuple(_wrong_metadata(base, resized)),
        wrong_bytes=tuple(find_wrong_bytes(same, resized, threads, progress)),
        count=len(same),
        size=sum(entry.size for entry, _ in same),
        adapted=len(adapted),
    )


def form_of(entry: TensorEntry) -> TensorForm:
    """Return the dtype and shape of a tensor."""
    return TensorForm(entry.dtype, entry.shape)


def find_wrong_form(resized: Checkpoint, name: str, expected: TensorForm) -> WrongForm | None:
    """Return how a tensor differs from the expected dtype and shape; None if it does not."""
    found = form_of(resized.weights.entries[name]) if name in resized.weights.entries else None
    if found == expected:
        return None
    return WrongForm(name, found, expected)


def _kept_tensors(expected: Expected) -> dict[str, TensorEntry]:
    """Return the tensors of the base that stay as they are, by name."""
    changed = {
        *(table.name for table in expected.stored),
        *(buffer.name for buffer in expected.buffers.rebuilt),
        *expected.buffers.dropped,
    }
    return {
        name: entry for name, entry in expected.base.weights.entries.items() if name not in changed
    }


def _added_tensors(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    """Yield tensors that the base does not have; position buffers for the new length may be new."""
    for name in resized.weights.entries:
        if name not in expected.base.weights.entries and not _is_right_buffer(
            expected, resized, name
        ):
            yield name


def _outdated_buffers(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    for name in expected.buffers.dropped:
        if name in resized.weights.entries and not _is_right_buffer(expected, resized, name):
            yield name


def _wrong_buffers(expected: Expected, resized: Checkpoint) -> Iterator[WrongBuffer]:
    for buffer in expected.buffers.rebuilt:
        name = buffer.name
        if name not in resized.weights.entries or not _is_right_buffer(expected, resized, name):
            form = find_wrong_form(resized, name, TensorForm(buffer.dtype, buffer.shape))
            yield WrongBuffer(name, form)


def _is_right_buffer(expected: Expected, resized: Checkpoint, name: str) -> bool:
    """Whether a tensor is a position buffer for the new length, in the dtype of the file."""
    entry = resized.weights.entries[name]
    for table in expected.tables:
        buffer = table.location.buffer(name)
        if buffer is not None and entry.dtype in NUMPY_DTYPES:
            if not _has_length(entry, BUFFER_AXES[buffer.content], _key_value(table)):
                return False
            values = new_buffer(_planned_buffer(table, buffer, entry))
            return resized.weights.file_of[name].read_bytes(name).tobytes() == values.tobytes()
    return False


def _key_value(table: TablePlan) -> int:
    """Return the value of the config key of a table's length, which buffers have as their size."""
    return table.location.key_value(table.max_len_after)


def _has_length(entry: TensorEntry, axes: Sequence[int], length: int) -> bool:
    """Whether some axes of a tensor have this length."""
    return len(entry.shape) >= len(axes) and all(entry.shape[axis] == length for axis in axes)


def _planned_buffer(table: TablePlan, buffer: Buffer, entry: TensorEntry) -> BufferPlan:
    """Return the plan of a buffer in the dtype and shape of a tensor."""
    start = table.reserved_rows
    if table.location.table.reserved.inside_key:
        start = 0
    return BufferPlan(
        name=entry.name,
        content=buffer.content,
        shape=entry.shape,
        dtype=entry.dtype,
        start=start,
    )


def _wrong_metadata(base: Checkpoint, resized: Checkpoint) -> Iterator[WrongMetadata]:
    """Yield the weights files whose metadata differ from those of the base's file of that name."""
    found = {
        resized.relative(file): file.header.get(METADATA) for file in resized.weights.files.values()
    }
    for name, file in base.weights.files.items():
        expected = file.header.get(METADATA)
        if name in found and found[name] != expected:
            yield WrongMetadata(name, found[name], expected)
