"""Position buffers in a checkpoint's files: dropped where transformers makes them itself, elsewhere made anew."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import NUMPY_DTYPES, TensorEntry, numpy_dtype
from ctxextend.errors import CheckpointError
from ctxextend.families.schema import Buffer
from ctxextend.plan.tableplan import TablePlan

__all__ = ["BufferPlan", "make_buffer", "plan_buffers"]


@dataclass(frozen=True)
class BufferPlan:
    """A position buffer that is made anew.

    Attributes:
        name: Its tensor.
        content: What it holds, as `Buffer.content`.
        shape: Its new shape.
        dtype: As safetensors spells it.
        start: For ``arange``, its first number.
    """

    name: str
    content: str
    shape: tuple[int, ...]
    dtype: str
    start: int


def plan_buffers(
    checkpoint: Checkpoint, tables: tuple[TablePlan, ...]
) -> tuple[tuple[str, ...], tuple[BufferPlan, ...]]:
    """Say what becomes of the buffers that the tables' new lengths make wrong.

    Returns:
        The names of those that no model misses, which are dropped, and what becomes of those that transformers reads.

    Raises:
        CheckpointError: One is of a shape or dtype that it cannot have.
    """
    found = list(_found(checkpoint, tables))
    dropped = tuple(name for name, _, buffer in found if not buffer.is_kept)
    kept = ((checkpoint.holder(name).entries[name], table, buffer) for name, table, buffer in found if buffer.is_kept)
    return dropped, tuple(_plan(*item) for item in kept)


def _found(checkpoint: Checkpoint, tables: tuple[TablePlan, ...]) -> Iterator[tuple[str, TablePlan, Buffer]]:
    changed = [plan for plan in tables if plan.is_followed]
    for name in checkpoint.names:
        owner = next((plan for plan in changed if plan.place.buffer(name)), None)
        if owner and (buffer := owner.place.buffer(name)):
            yield name, owner, buffer


def _plan(entry: TensorEntry, table: TablePlan, buffer: Buffer) -> BufferPlan:
    length = table.place.key_value(table.max_len_after)
    axes = {"arange": (-1,), "zeros": (-1,), "causal": (-2, -1), "rows": (0,)}[buffer.content]
    shape = list(entry.shape)
    if len(shape) < len(axes) or entry.dtype not in NUMPY_DTYPES:
        raise CheckpointError(
            f"{entry.name} is {entry.dtype} {list(entry.shape)}, which no such buffer can be.", "Save the model again."
        )
    for axis in axes:
        shape[axis] = length
    start = 0 if table.place.table.reserved.inside_key else table.offset
    return BufferPlan(entry.name, buffer.content, tuple(shape), entry.dtype, start)


def make_buffer(plan: BufferPlan) -> NDArray[Any]:
    """Return a buffer's values: shape and dtype as planned."""
    dtype = numpy_dtype(plan.dtype)
    if plan.content == "arange":
        counted = np.arange(plan.start, plan.start + plan.shape[-1], dtype=dtype)
        return np.ascontiguousarray(np.broadcast_to(counted, plan.shape))
    if plan.content == "causal":
        return np.ascontiguousarray(np.broadcast_to(np.tri(*plan.shape[-2:], dtype=dtype), plan.shape))
    return np.zeros(plan.shape, dtype)
