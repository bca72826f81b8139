"""Recompute the query projections that a resize multiplies, and compare them bit for bit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import layer_pattern
from ctxextend.plan.query_scale import ScaledTensor
from ctxextend.verification.compare_tensors import WrongForm, find_wrong_form, form_of
from ctxextend.verification.expected import Expected


@dataclass(frozen=True)
class WrongQueries:
    """A weight or bias that is not the expected one of its form."""

    name: str
    count: int  # values that differ
    is_unscaled: bool  # whether it is the tensor of the base
    is_scaled_twice: bool


@dataclass(frozen=True)
class ComparedQueries:
    """What was compared of the tensors that compute queries, and what is wrong."""

    factor: float
    wrong_forms: tuple[WrongForm, ...]
    wrong: tuple[WrongQueries, ...]
    count: int  # tensors of the expected form, whose values were compared
    size: int  # of these, in bytes
    adapted: int  # tensors with adapters, which were not compared


def compare_queries(expected: Expected, resized: Checkpoint) -> ComparedQueries:
    """Recompute each scaled tensor from the base, one at a time, and compare.

    Of tensors that adapters changed, only name, dtype and shape are compared.

    Raises:
        CheckpointError: A file cannot be read.
    """
    base = expected.base
    wrong_forms = list[WrongForm]()
    wrong = list[WrongQueries]()
    count = 0
    size = 0
    adapted = 0
    for tensor in expected.plan.scaled_tensors:
        entry = base.weights.entries[tensor.name]
        wrong_form = find_wrong_form(resized, tensor.name, form_of(entry))
        if wrong_form is not None:
            wrong_forms.append(wrong_form)
            continue
        if layer_pattern(tensor.name) in expected.recorded.adapted:
            adapted += 1
            continue
        count += 1
        size += entry.size
        found = _compare(tensor, base, resized)
        if found is not None:
            wrong.append(found)
    return ComparedQueries(
        factor=expected.plan.scaled_tensors[0].factor,
        wrong_forms=tuple(wrong_forms),
        wrong=tuple(wrong),
        count=count,
        size=size,
        adapted=adapted,
    )


def _compare(tensor: ScaledTensor, base: Checkpoint, resized: Checkpoint) -> WrongQueries | None:
    """Return how a tensor differs from the recomputed one; None if it is bit-identical."""
    before = base.weights.read_floats(tensor.name)
    after = resized.weights.read_floats(tensor.name)
    scaled = tensor.compute(before)
    count = _count_differences(scaled, after)
    if not count:
        return None
    return WrongQueries(
        name=tensor.name,
        count=count,
        is_unscaled=_count_differences(before, after) == 0,
        is_scaled_twice=_count_differences(tensor.compute(scaled), after) == 0,
    )


def _count_differences(left: NDArray[np.generic], right: NDArray[np.generic]) -> int:
    """Return the number of values that are not bit-identical."""
    shape = (*left.shape, left.dtype.itemsize)
    differs = left.view(np.uint8).reshape(shape) != right.view(np.uint8).reshape(shape)
    return int(differs.any(axis=-1).sum())
