"""Compare a model that switches frequencies at a length with models that do not."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.families.rope_changes import Changes, rope_changes
from ctxextend.families.rope_dialects import with_other_dialect, with_values
from ctxextend.models.load import are_bit_identical, load
from ctxextend.models.loaded_frequencies import replace_frequencies
from ctxextend.plan.table_plan import RopePlan, TablePlan, switches
from ctxextend.tables.frequencies import frequencies
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


def switched_tables(expected: Expected) -> list[TablePlan]:
    """Return the tables whose new settings give only long inputs other frequencies."""
    return [table for table in expected.plan.tables if switches(table)]


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
    for table in switched_tables(expected):
        config = _without_switch(table, config)
    model, _ = load(resized, expected.base.model_class, config=config)
    for table in switched_tables(expected):
        for plan in table.rope:
            if not _applies(table, plan):
                _replace_frequencies(model, resized, table, plan)
    return run_inputs(expected, resized, model, [expected.plan.max_len_after])


def _without_switch(table: TablePlan, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the settings that a table's long inputs correspond to."""
    location = replace(table.location, config=config)
    found = {layers.layer_type: layers for layers in read_rope(location)}
    changes = Changes()
    for plan in table.rope:
        settings = plan.long_inputs_as
        if settings is not None and not _applies(table, plan):
            settings = plan.before.parameters
        if settings is not None:
            layers = found[plan.before.layer_type]
            changes |= rope_changes(location, layers, settings)
    return with_values(location, with_other_dialect(location, changes)).config


def _applies(table: TablePlan, plan: RopePlan) -> bool:
    """Whether the classes compute the frequencies of long inputs from settings without lists."""
    facts = table.location.rope
    if facts is None or plan.long_inputs_as is None:
        return False
    kept = plan.before.parameters[TYPE]
    return plan.long_inputs_as[TYPE] in (*facts.methods, kept)


def _replace_frequencies(model: Any, resized: Checkpoint, table: TablePlan, plan: RopePlan) -> None:
    """Give a model the frequencies of long inputs, whatever the input is.

    Raises:
        CheckpointError: The model has no buffer for them.
    """
    if plan.long_inputs_as is None:
        return
    dim = rotary_dim(table.location, plan.before.parameters)
    long = frequencies(plan.long_inputs_as, dim, table.max_len_after)
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
        first = next(plan for plan in table.rope if plan.long_inputs_as is not None)
        assert first.long_inputs_as is not None
        compared.append(
            ComparedLongInput(
                name=text,
                scaled_as=first.long_inputs_as[TYPE],
                difference=output_difference(table, outcome, found),
                tolerance=frequency_rounding(expected.plan.max_len_after) * size,
            )
        )
    return compared
