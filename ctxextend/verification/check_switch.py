"""Check a model that switches frequencies at a length: what short and long inputs get."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.models.load import are_bit_identical, load
from ctxextend.models.loaded_frequencies import replace_frequencies
from ctxextend.positions.change import Change
from ctxextend.positions.positions import with_values
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.tables.rope_types import TYPE
from ctxextend.verification.check_outputs import frequency_rounding, output_difference
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import Observed, Outcomes, length_text, run_inputs


def check_switch(
    expected: Expected, resized: Checkpoint, after: Observed, again: Outcomes
) -> Check:
    """Check that short inputs stay the same after long ones, and what long ones get.

    Args:
        expected: The resize.
        resized: The resized checkpoint.
        after: The model, which ran on short inputs and then a long one.
        again: The same short inputs after these.
    """
    check = Check("switch")
    longest = length_text(expected.plan.max_len_after)
    try:
        without_switch = _run_without_switch(expected, resized)
    except CheckpointError as error:
        check.unchecked.append(error.message)
        return check
    for (name, text), outcome in again.items():
        first = after.outcomes[name, text]
        if outcome.kind or first.kind:
            check.unchecked.append(f"not run again after an input of {longest}: {text}")
        elif are_bit_identical(first.values, outcome.values):
            check.findings.append(f"the same outputs after an input of {longest}: {text}")
        else:
            check.failures.append(f"outputs differ after an input of {longest}: {text}")
    for table in expected.switched:
        other = without_switch[table.name, longest]
        if other.kind:
            check.unchecked.append(f"{table.name}: not run without a switch on {longest}")
            continue
        kind = next(iter(table.long_inputs_as.values()))[TYPE]
        difference = output_difference(table, longest, other, after.outcomes[table.name, longest])
        tolerance = frequency_rounding(expected.plan.max_len_after) * other.size
        text = f"{longest}: the outputs of {kind} settings for all inputs"
        if difference.is_within(tolerance):
            text += f", within rounding (largest difference {difference.text})"
            check.findings.append(text)
        else:
            text += f" are expected, but differ: {difference.text} (tolerance {tolerance:.2g})"
            check.failures.append(text)
    return check


def _run_without_switch(expected: Expected, resized: Checkpoint) -> Outcomes:
    """Run a resized model with settings that give inputs of any length the long frequencies.

    Transformers computes these from the settings, and not from lists. In classes that apply no
    such settings, as those of Phi-3, the frequencies of unscaled ones are replaced.

    Raises:
        CheckpointError: transformers cannot load it, or it has no buffer for these frequencies.
    """
    config: Mapping[str, Any] = resized.config
    unapplied = list[tuple[Change, RopeLayers]]()
    for change in expected.switched:
        settings = dict(change.long_inputs_as)
        for layers, _ in change.changed_layers:
            kind = settings[layers.layer_type][TYPE]
            if kind not in change.positions.methods and kind != layers.parameters[TYPE]:
                settings[layers.layer_type] = layers.parameters
                unapplied.append((change, layers))
        config = with_values(config, replace(change.positions, config=config).values_for(settings))
    model, _ = load(resized, expected.base.model_class, config=config)
    for change, layers in unapplied:
        length = change.max_len_after
        settings_of_long = change.long_inputs_as[layers.layer_type]
        long = change.positions.frequencies(settings_of_long, length)
        if not replace_frequencies(model, long.inverse, long.attention_factor):
            message = f"{resized.root}: the model has no buffer of {len(long.inverse)} frequencies."
            raise CheckpointError(message)
    return run_inputs(expected, resized, model, [expected.plan.max_len_after])
