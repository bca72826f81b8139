"""Position buffers, which are as long as the context: dropped, or rebuilt at the new length."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import NUMPY_DTYPES, TensorEntry, numpy_dtype
from ctxextend.errors import CheckpointError
from ctxextend.plan.table_plan import TablePlan
from ctxextend.positions.facts import Buffer

# The axes of a buffer that are as long as the context, by `Buffer.content`.
BUFFER_AXES = {"arange": (-1,), "zeros": (-1,), "causal": (-2, -1), "rows": (0,)}


class BufferPlan(NamedTuple):
    """A position buffer to rebuild at the new length."""

    name: str  # tensor name
    content: str  # see `Buffer.content`
    shape: tuple[int, ...]  # new shape
    dtype: str  # in safetensors' spelling
    start: int  # first value of an ``arange``


def plan_buffers(
    checkpoint: Checkpoint,
    tables: Sequence[TablePlan],
    *,
    fix_limits: bool,
) -> tuple[tuple[str, ...], tuple[BufferPlan, ...]]:
    """Return the names of buffers to drop (transformers creates them), and those to rebuild.

    Raises:
        CheckpointError: A buffer has another dtype or shape than position buffers have.
    """
    dropped = list[str]()
    rebuilt = list[BufferPlan]()
    changed = [table for table in tables if table.is_changed or fix_limits]
    for name in checkpoint.weights.entries:
        for table in changed:
            buffer = table.location.buffer(name)
            if buffer is None:
                continue
            if buffer.is_kept:
                rebuilt.append(plan_buffer(checkpoint.weights.entries[name], buffer, table))
            else:
                dropped.append(name)
            break
    return tuple(dropped), tuple(rebuilt)


def plan_buffer(entry: TensorEntry, buffer: Buffer, table: TablePlan) -> BufferPlan:
    """Return the buffer of a table at its new length.

    Raises:
        CheckpointError: The stored tensor has another dtype or shape than position buffers have.
    """
    axes = BUFFER_AXES[buffer.content]
    shape = list(entry.shape)
    if len(shape) < len(axes) or entry.dtype not in NUMPY_DTYPES:
        message = f"{entry.name} has dtype {entry.dtype} and shape {shape}, not those of a position"
        raise CheckpointError(f"{message} buffer.", "Save the model again.")
    for axis in axes:
        shape[axis] = table.location.key_value(table.max_len_after)
    start = table.reserved_rows
    if table.location.reserved.inside_key:
        start = 0
    return BufferPlan(
        name=entry.name,
        content=buffer.content,
        shape=tuple(shape),
        dtype=entry.dtype,
        start=start,
    )


def new_buffer(plan: BufferPlan) -> NDArray[Any]:
    """Create a buffer in its planned shape and dtype."""
    values = np.zeros(plan.shape, numpy_dtype(plan.dtype))
    if plan.content == "arange":
        values[...] = np.arange(plan.start, plan.start + plan.shape[-1], dtype=values.dtype)
    elif plan.content == "causal":
        values[...] = np.tri(*plan.shape[-2:], dtype=values.dtype)
    return values
