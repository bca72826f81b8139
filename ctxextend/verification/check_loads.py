"""Check that a model loads: its parameters have weights, and its frequencies are right."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.positions.change import Change
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
    for change in expected.plan.changes:
        _compare_frequencies(check, change, resized, before.frequencies, after.frequencies)
    return check


def _compare_frequencies(
    check: Check,
    change: Change,
    resized: Checkpoint,
    before: LoadedFrequencies,
    after: LoadedFrequencies,
) -> None:
    """Compare the inverse frequencies of a model with its rotary settings, or with the base's.

    Of each type of layers, one right buffer is enough: another one of this name and size may be of
    other layers. It has the frequencies of the settings or, where these do not change, of the base.
    """
    same_as_base = [
        name for name in after if name in before and np.array_equal(after[name], before[name])
    ]
    if not change.positions.settings_paths(change):
        return
    if not change.positions.methods:  # the classes ignore these settings, or read only some of them
        for name in after:
            if name in same_as_base:
                check.findings.append(f"{name} equals that of the base")
            elif name in before:
                check.failures.append(f"{name} differs from that of the base")
        return
    entries = resized.weights.entries
    now = replace(change.positions, config=resized.config)
    changed = [
        layers.layer_type for layers, new in change.changed_layers if new != layers.parameters
    ]
    for layers in now.layers:
        frequencies = now.frequencies(layers.parameters, 1).inverse
        # The dot tells ``inv_freq`` from ``local_inv_freq``; a name without a module gets one too.
        ending = f".{layers.layer_type}_inv_freq" if layers.layer_type else ".inv_freq"
        names = [
            name
            for name, values in after.items()
            if f".{name}".endswith(ending) and values.shape == frequencies.shape
        ]
        right = list[str]()
        for name in names:
            # Names in files may have a prefix. Buffers whose names end alike have one dtype.
            stored = next((entries[key].dtype for key in entries if key.endswith(name)), "F32")
            rounding = STORED_ROUNDING.get(stored, COMPUTED_ROUNDING)
            smallest = SMALLEST_FLOAT16 if stored == "F16" else 0.0
            if np.allclose(after[name], frequencies, rtol=rounding, atol=smallest):
                right.append(name)
        is_changed = layers.layer_type in changed
        kept = [name for name in names if name in same_as_base and not is_changed]
        if right:
            check.findings.append(f"{right[0]} equals the frequencies of the rotary settings")
        elif kept:
            check.findings.append(f"{kept[0]} equals that of the base")
        elif names:
            check.failures.append(f"{names[0]} differs from the frequencies of the settings")
        elif is_changed:
            name = f"{change.name} {layers.layer_type}".strip()
            check.unchecked.append(
                f"{name}: the model has no buffer of {len(frequencies)} inverse frequencies"
            )
