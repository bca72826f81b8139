"""Compare the inverse frequencies of a loaded model with those of its rotary settings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.positions.change import Change
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.verification.observe import LoadedFrequencies

# Relative rounding: of transformers' float32 formulas, and of buffers that a file stores in 16
# bits.
COMPUTED_ROUNDING = 1e-5
STORED_ROUNDING = {"F16": 2**-10, "BF16": 2**-7}
SMALLEST_FLOAT16 = 2.0**-24  # below 2^-14, float16 has fixed steps of this size


class FrequencySource(Enum):
    """Where the inverse frequencies come from with which those of a model are compared."""

    BASE = auto()  # the buffer of the same name in the base
    SETTINGS = auto()  # the rotary settings of the checkpoint


@dataclass(frozen=True)
class ComparedBuffer:
    """A buffer of inverse frequencies, compared with those of the base or the rotary settings."""

    name: str
    source: FrequencySource
    is_equal: bool


@dataclass(frozen=True)
class MissingBuffer:
    """Layers whose rotary settings change, although the model has no buffer for them."""

    name: str  # of the positions and the type of layers
    pairs: int  # inverse frequencies that the buffer should have


def compare_frequencies(
    table: Change, resized: Checkpoint, before: LoadedFrequencies, after: LoadedFrequencies
) -> Iterator[ComparedBuffer | MissingBuffer]:
    """Compare the frequencies that a model has loaded, for each type of layers.

    `before` is empty if the base is not loaded.

    Raises:
        CheckpointError: A config is malformed.
    """
    if not table.positions.settings_paths(table):
        return
    if not table.positions.methods:  # the classes ignore these settings, or read only some of them
        yield from _compare_with_base(before, after)
        return
    now = replace(table.positions, config=resized.config)
    changed = {
        layers.layer_type for layers, new in table.changed_layers if new != layers.parameters
    }
    for layers in now.layers:
        expected = now.frequencies(layers.parameters, 1).inverse
        buffers = _buffers_of(layers, len(expected), after)
        is_changed = layers.layer_type in changed
        compared = _compare_buffers(buffers, expected, before, resized, is_changed=is_changed)
        if compared is not None:
            yield compared
        elif is_changed:
            yield MissingBuffer(f"{table.name} {layers.layer_type}".strip(), len(expected))


def _compare_buffers(
    buffers: LoadedFrequencies,
    expected: NDArray[np.float64],
    before: LoadedFrequencies,
    resized: Checkpoint,
    *,
    is_changed: bool,
) -> ComparedBuffer | None:
    """Compare the buffers of the layers of one type; None if there are none.

    One right buffer is enough: another one of this name and size may be of other layers. It is
    right if it has the frequencies of the settings, in the precision in which a file stores them;
    where settings do not change, also if it is as in the base.
    """
    if not buffers:
        return None
    for name, values in buffers.items():
        if _is_close(resized, name, values, expected):
            return ComparedBuffer(name, FrequencySource.SETTINGS, is_equal=True)
    if not is_changed:
        for name, values in buffers.items():
            if name in before and np.array_equal(values, before[name]):
                return ComparedBuffer(name, FrequencySource.BASE, is_equal=True)
    first = next(iter(buffers))
    return ComparedBuffer(first, FrequencySource.SETTINGS, is_equal=False)


def _compare_with_base(
    before: LoadedFrequencies, after: LoadedFrequencies
) -> Iterator[ComparedBuffer]:
    """Compare the buffers that the base has too."""
    for name, values in after.items():
        if name in before:
            is_equal = np.array_equal(values, before[name])
            yield ComparedBuffer(name, FrequencySource.BASE, is_equal=is_equal)


def _buffers_of(layers: RopeLayers, pairs: int, after: LoadedFrequencies) -> LoadedFrequencies:
    """Return the buffers that may be of the layers of one type, by name."""
    # The dot tells ``inv_freq`` from ``local_inv_freq``; a name without a module gets one too.
    ending = f".{layers.layer_type}_inv_freq" if layers.layer_type else ".inv_freq"
    return {
        name: values
        for name, values in after.items()
        if f".{name}".endswith(ending) and values.shape == (pairs,)
    }


def _is_close(
    resized: Checkpoint, name: str, values: NDArray[np.float32], expected: NDArray[np.float64]
) -> bool:
    """Whether loaded frequencies are the expected ones, in the precision of the file, if stored."""
    stored = _stored_dtype(resized, name)
    rounding = STORED_ROUNDING.get(stored, COMPUTED_ROUNDING)
    smallest = SMALLEST_FLOAT16 if stored == "F16" else 0.0
    return np.allclose(values, expected, rtol=rounding, atol=smallest)


def _stored_dtype(resized: Checkpoint, name: str) -> str:
    """Return the dtype in which a file stores a buffer; float32 if none does.

    Names in files may have a prefix. Buffers whose names end alike are stored in one dtype.
    """
    for entry in resized.weights.entries.values():
        if entry.name.endswith(name):
            return entry.dtype
    return "F32"
