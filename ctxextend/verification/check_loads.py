"""Check that a model loads: its parameters have weights, and its frequencies are right."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.positions.change import Change
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import RANDOM, UNKNOWN, LoadedFrequencies, Observed

# Relative rounding: of transformers' float32 formulas, and of buffers that a file stores in 16
# bits.
COMPUTED_ROUNDING = 1e-5
STORED_ROUNDING = {"F16": 2**-10, "BF16": 2**-7}
SMALLEST_FLOAT16 = 2.0**-24  # below 2^-14, float16 has fixed steps of this size


def check_loads(
    expected: Expected, resized: Checkpoint, before: Observed, after: Observed
) -> Check:
    """Check that all parameters on which outputs depend have weights, and rotary frequencies.

    A parameter with random values is wrong even if the base has the same fault. If the base cannot
    be loaded, faults that it may have too are not judged.

    Raises:
        CheckpointError: A config is malformed.
    """
    check = Check("loads")
    known: Collection[str] = {fault.name for fault in before.keys}
    origin = "also in the base"
    if expected.conversion is not None:
        known = expected.conversion.missing
        origin = "the base has none"
    for fault in after.keys:
        text = f"{fault.kind} key: {fault.name}"
        if fault.name in known:
            text += f" ({origin})"
        if fault.effect:
            text += f": {fault.effect}"
        if fault.effect == RANDOM:
            check.failures.append(text)
        elif fault.name not in known:
            new = check.unchecked if before.error else check.failures
            new.append(text)
        elif fault.effect == UNKNOWN:
            check.unchecked.append(text)
        else:
            check.findings.append(text)
    if not after.keys:
        check.findings.append("no missing, unexpected or mismatched keys")
    _check_frequencies(check, expected, resized, before, after)
    return check


def _check_frequencies(
    check: Check, expected: Expected, resized: Checkpoint, before: Observed, after: Observed
) -> None:
    """Compare the inverse frequencies of a model with its rotary settings, or with the base's."""
    shared = [name for name in after.frequencies if name in before.frequencies]
    same_as_base = [
        name for name in shared if np.array_equal(after.frequencies[name], before.frequencies[name])
    ]
    for change in expected.plan.changes:
        if not change.positions.settings_paths(change):
            continue
        if change.positions.methods:
            _compare_frequencies(check, change, resized, after.frequencies, same_as_base)
            continue
        # The classes ignore these settings, or read only some of them.
        for name in shared:
            if name in same_as_base:
                check.findings.append(f"{name} equals that of the base")
            else:
                check.failures.append(f"{name} differs from that of the base")


def _compare_frequencies(
    check: Check,
    change: Change,
    resized: Checkpoint,
    after: LoadedFrequencies,
    same_as_base: Collection[str],
) -> None:
    """Compare the inverse frequencies of a model with its rotary settings.

    Of each type of layers, one right buffer is enough: another one of this name and size may be of
    other layers. It has the frequencies of the settings or, where these do not change, of the base.
    """
    now = replace(change.positions, config=resized.config)
    changed = [kind.layer_type for kind, new in change.changed_layers if new != kind.parameters]
    for layers in now.layers:
        frequencies = now.frequencies(layers.parameters, 1).inverse
        names = _buffers_of(layers, len(frequencies), after)
        right = [name for name in names if _is_close(resized, name, after[name], frequencies)]
        kept = [name for name in names if name in same_as_base]
        is_changed = layers.layer_type in changed
        if right:
            check.findings.append(f"{right[0]} equals the frequencies of the rotary settings")
        elif kept and not is_changed:
            check.findings.append(f"{kept[0]} equals that of the base")
        elif names:
            check.failures.append(f"{names[0]} differs from the frequencies of the settings")
        elif is_changed:
            name = f"{change.name} {layers.layer_type}".strip()
            check.unchecked.append(
                f"{name}: the model has no buffer of {len(frequencies)} inverse frequencies"
            )


def _buffers_of(layers: RopeLayers, pairs: int, after: LoadedFrequencies) -> list[str]:
    """Return the names of buffers that may be of the layers of one type."""
    # The dot tells ``inv_freq`` from ``local_inv_freq``; a name without a module gets one too.
    ending = ".inv_freq"
    if layers.layer_type:
        ending = f".{layers.layer_type}_inv_freq"
    names = [name for name in after if f".{name}".endswith(ending)]
    return [name for name in names if after[name].shape == (pairs,)]


def _is_close(
    resized: Checkpoint, name: str, values: NDArray[np.float32], expected: NDArray[np.float64]
) -> bool:
    """Whether loaded frequencies are the expected ones, in the precision of the file, if stored.

    Names in files may have a prefix. Buffers whose names end alike are stored in one dtype.
    """
    entries = resized.weights.entries
    stored = next((entries[key].dtype for key in entries if key.endswith(name)), "F32")
    rounding = STORED_ROUNDING.get(stored, COMPUTED_ROUNDING)
    smallest = SMALLEST_FLOAT16 if stored == "F16" else 0.0
    return np.allclose(values, expected, rtol=rounding, atol=smallest)
