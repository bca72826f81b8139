"""Compare the inverse frequencies of a loaded model with those of its rotary settings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim
from ctxextend.plan.table_plan import TablePlan
from ctxextend.tables.rotary import frequencies
from ctxextend.verification.observe import LoadedFrequencies

# Relative rounding: of transformers' float32 formulas, and of buffers that a file stores in 16
# bits.
FLOAT32_ROUNDING = 1e-5
STORED_ROUNDING = {"F16": 2**-10, "BF16": 2**-7}
SMALLEST_FLOAT16 = 2.0**-24  # below 2^-14, float16 has fixed steps of this size


@dataclass(frozen=True)
class ComparedBuffer:
    """A buffer of inverse frequencies, compared with that of the base or the rotary settings."""

    name: str
    with_base: bool
    is_equal: bool


@dataclass(frozen=True)
class MissingBuffer:
    """Layers whose rotary settings change, although the model has no buffer for them."""

    name: str  # of the positions and the type of layers
    pairs: int  # inverse frequencies that the buffer should have


def compare_frequencies(
    table: TablePlan, resized: Checkpoint, before: LoadedFrequencies, after: LoadedFrequencies
) -> Iterator[ComparedBuffer | MissingBuffer]:
    """Compare the frequencies that a model has loaded, for each type of layers.

    Where settings change, they are those of the new settings, in the precision in which a file
    stores them; else they may also be those of the base. `before` is empty if the base is not
    loaded.

    Raises:
        CheckpointError: A config is malformed.
    """
    facts = table.location.table.rope
    if facts is None:
        return
    if not facts.methods:  # the classes ignore these settings, or read only some of them
        yield from _compare_with_base(before, after)
        return
    location = replace(table.location, config=resized.config)
    changed = {
        plan.before.layer_type for plan in table.rope if plan.after != plan.before.parameters
    }
    for layers in read_rope(location):
        expected = _short_frequencies(location, layers)
        found = _buffers_of(layers, len(expected), after)
        is_changed = layers.layer_type in changed
        right = _find_right(found, expected, resized)
        if right is None and not is_changed:
            right = _find_unchanged(found, before)
        if right is not None:
            yield right
        elif found:
            yield ComparedBuffer(next(iter(found)), with_base=False, is_equal=False)
        elif is_changed:
            yield MissingBuffer(f"{table.name} {layers.layer_type}".strip(), len(expected))


def _compare_with_base(
    before: LoadedFrequencies, after: LoadedFrequencies
) -> Iterator[ComparedBuffer]:
    """Compare the buffers that the base has too."""
    for name, values in after.items():
        if name in before:
            is_equal = np.array_equal(values, before[name])
            yield ComparedBuffer(name, with_base=True, is_equal=is_equal)


def _short_frequencies(location: TableLocation, layers: RopeLayers) -> NDArray[np.float64]:
    """Return the inverse frequencies of rotary settings for short inputs, shape (pairs,)."""
    dim = rotary_dim(location, layers.parameters)
    max_len = location.value(location.effective_key)
    return frequencies(layers.parameters, dim, max_len, length=1).inverse


def _buffers_of(layers: RopeLayers, pairs: int, after: LoadedFrequencies) -> LoadedFrequencies:
    """Return the buffers of the layers of one type, by name."""
    ending = f".{layers.layer_type}_inv_freq" if layers.layer_type else ".inv_freq"
    return {
        name: values
        for name, values in after.items()
        if f".{name}".endswith(ending) and values.shape == (pairs,)
    }


def _find_right(
    found: LoadedFrequencies, expected: NDArray[np.float64], resized: Checkpoint
) -> ComparedBuffer | None:
    """Return the first buffer with the frequencies of the rotary settings; None if none has."""
    for name, values in found.items():
        if _is_close(resized, name, values, expected):
            return ComparedBuffer(name, with_base=False, is_equal=True)
    return None


def _find_unchanged(found: LoadedFrequencies, before: LoadedFrequencies) -> ComparedBuffer | None:
    """Return the first buffer that equals that of the base; None if none does."""
    for name, values in found.items():
        if name in before and np.array_equal(values, before[name]):
            return ComparedBuffer(name, with_base=True, is_equal=True)
    return None


def _is_close(
    resized: Checkpoint, name: str, values: NDArray[np.float32], expected: NDArray[np.float64]
) -> bool:
    """Whether loaded frequencies are the expected ones, in the precision of the file, if stored."""
    dtypes = [
        entry.dtype for entry in resized.weights.entries.values() if entry.name.endswith(name)
    ]
    stored = dtypes[0] if dtypes else "F32"
    rounding = STORED_ROUNDING.get(stored, FLOAT32_ROUNDING)
    smallest = SMALLEST_FLOAT16 if stored == "F16" else 0.0
    return np.allclose(values, expected, rtol=rounding, atol=smallest)
