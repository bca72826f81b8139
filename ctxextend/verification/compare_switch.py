"""Compare a model that switches frequencies at a length with models that do not."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.models.load import are_bit_identical, load
from ctxextend.models.loaded_frequencies import replace_frequencies
from ctxextend.positions.change import Change
from ctxextend.positions.positions import with_values
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.tables.rope_types import TYPE
from ctxextend.verification.compare_outputs import (
    OutputDifference,
    UnrunTable,
    frequency_rounding,
    output_difference,
)
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import Outcomes, Ran, length_text, run_inputs


@dataclass(frozen=True)
class ComparedLongInput:
    """The output for an input of the new length, compared with one without a switch."""

    name: str  # of the input
    scaled_as: str  # the rope type with which inputs of any length get the same frequencies
    difference: OutputDifference
    tolerance: float


def switched_tables(expected: Expected) -> list[Change]:
    """Return the tables whose new settings give only long inputs other frequencies."""
    return [change for change in expected.plan.changes if change.long_inputs_as]


@dataclass(frozen=True)
class RunAgain:
    """Short inputs that ran before a long one and after it, by their names."""

    same: tuple[str, ...]  # with the same outputs, bit for bit
    changed: tuple[str, ...]
    unrun: tuple[str, ...]


def compare_again(before: Outcomes, again: Outcomes) -> RunAgain:
    """Compare the outputs for inputs with those of the same inputs after longer ones."""
    same = list[str]()
    changed = list[str]()
    unrun = list[str]()
    for (name, text), outcome in again.items():
        first = before.get((name, text))
        if not isinstance(outcome, Ran) or not isinstance(first, Ran):
            unrun.append(text)
        elif are_bit_identical(first.values, outcome.values):
            same.append(text)
        else:
            changed.append(text)
    return RunAgain(same=tuple(same), changed=tuple(changed), unrun=tuple(unrun))


def run_without_switch(expected: Expected, resized: Checkpoint) -> Outcomes:
    """Run a resized model with settings that give inputs of any length the long frequencies.

    Transformers computes these from the settings, and not from lists. In classes that apply no
    such settings, as those of Phi-3, the frequencies of unscaled ones are replaced.

    Raises:
        CheckpointError: transformers cannot load it.
    """
    config: Mapping[str, Any] = resized.config
    for change in switched_tables(expected):
        settings = dict(change.long_inputs_as)
        for layers, _ in change.changed_layers:
            if not _applies(change, layers):
                settings[layers.layer_type] = layers.parameters
        config = with_values(config, replace(change.positions, config=config).values_for(settings))
    model, _ = load(resized, expected.base.model_class, config=config)
    for change in switched_tables(expected):
        for layers, _ in change.changed_layers:
            if not _applies(change, layers):
                _replace_frequencies(model, resized, change, layers)
    return run_inputs(expected, resized, model, [expected.plan.max_len_after])


def _applies(change: Change, layers: RopeLayers) -> bool:
    """Whether the classes compute the frequencies of long inputs from settings without lists."""
    kind = change.long_inputs_as[layers.layer_type][TYPE]
    return kind in change.positions.methods or kind == layers.parameters[TYPE]


def _replace_frequencies(
    model: Any, resized: Checkpoint, change: Change, layers: RopeLayers
) -> None:
    """Give a model the frequencies of long inputs, whatever the input is.

    Raises:
        CheckpointError: The model has no buffer for them.
    """
    length = change.max_len_after
    settings = change.long_inputs_as[layers.layer_type]
    long = change.positions.frequencies(settings, length, length)
    if not replace_frequencies(model, long.inverse, long.attention_factor):
        message = f"{resized.root}: the model has no buffer of {len(long.inverse)} frequencies."
        raise CheckpointError(message)


def compare_long_inputs(
    expected: Expected, after: Outcomes, without_switch: Outcomes
) -> list[ComparedLongInput | UnrunTable]:
    """Compare the outputs for inputs of the new length, of each table."""
    compared = list[ComparedLongInput | UnrunTable]()
    text = length_text(expected.plan.max_len_after)
    for table in switched_tables(expected):
        outcome = without_switch[table.name, text]
        if not isinstance(outcome, Ran):
            compared.append(UnrunTable(table, outcome))
            continue
        found = after.get((table.name, text))
        size = float(outcome.values.nan_to_num().abs().max())
        kinds = [settings[TYPE] for settings in table.long_inputs_as.values()]
        compared.append(
            ComparedLongInput(
                name=text,
                scaled_as=kinds[0],
                difference=output_difference(table, outcome, found),
                tolerance=frequency_rounding(expected.plan.max_len_after) * size,
            )
        )
    return compared
