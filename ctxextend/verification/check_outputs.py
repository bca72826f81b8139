"""Check that a model runs at its new length, and has the outputs that its base leads to expect."""

import math
from typing import NamedTuple

from ctxextend.conversion.conversion import Conversion
from ctxextend.errors import listed
from ctxextend.models.load import are_bit_identical, largest_difference
from ctxextend.positions.change import Change, ShortInputs
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import (
    MORE_THAN_TEXT,
    Observed,
    Outcome,
    Outcomes,
    length_text,
)

# Rounding of sums that a conversion stores, relative to outputs; measured: up to a seventh of it.
SUM_ROUNDING = {"BF16": 2**-6, "F16": 2**-9}
FLOAT32_STEP = 2**-23
STEPS_PER_LAYER = 8
# Of a rotary frequency of 1 radian per position; measured: up to a tenth of it.
STEPS_PER_POSITION = 8
HIDDEN_STATE = 1.0  # the size of hidden states after a layer norm
MAX_ROUNDING = 0.02  # of outputs, so that long inputs are compared too
SAME_IN_BASE = "The base fails in the same way"


def check_runs(expected: Expected, before: Observed, after: Observed) -> Check:
    """Check that the resized model runs at its new length, as far as its base does."""
    check = Check("runs")
    if after.random:
        check.unchecked.append(_random_text(after, "the model"))
    longest = length_text(expected.plan.max_len_after)
    outputs = [outcome.values for outcome in before.outcomes.values() if not outcome.kind]
    base_is_finite = all(values.isfinite().all() for values in outputs)
    for table in expected.plan.changes:
        outcome = after.outcomes[table.name, longest]
        text = _unrun_text(table, longest, outcome)
        base = [other.kind for (name, _), other in before.outcomes.items() if name == table.name]
        if not outcome.kind:
            if base_is_finite and not outcome.values.isfinite().all():
                check.failures.append(f"{table.name}: NaN or infinity on {longest}")
            else:
                check.findings.append(f"{table.name}: runs on {longest}")
        elif outcome.kind in base:
            check.unchecked.append(f"{text}. {SAME_IN_BASE}")
        elif before.error and outcome.kind == MORE_THAN_TEXT:
            check.unchecked.append(text)
        else:
            check.failures.append(text)
    return check


def _unrun_text(table: Change, text: str, outcome: Outcome) -> str:
    """Say that a model did not run on an input of this name."""
    if outcome.kind == MORE_THAN_TEXT:
        return f"{table.name}: the model does not run on text only: {outcome.error}"
    return f"{table.name}: fails on {text}: {outcome.error}"


def _random_text(seen: Observed, whose: str) -> str:
    """Say that outputs mean nothing, because parameters have random values."""
    return f"parameters of {whose} have random values: {listed(seen.random)}"


class Difference(NamedTuple):
    """How an output differs from another one for the same input."""

    place: str  # the input
    text: str
    # The largest absolute difference; NaN equals NaN, and is the one to a number. None: one has no
    # values, or they have other shapes.
    size: float | None = None
    is_bit_identical: bool = False  # whether NaN and the signs of zeros are the same too

    def is_within(self, tolerance: float) -> bool:
        """Whether values were compared and differ by no more."""
        return self.size is not None and (tolerance == math.inf or self.size <= tolerance)


def output_difference(table: Change, place: str, old: Outcome, new: Outcome | None) -> Difference:
    """Return how an output differs from one of the base for the same input, named `place`."""
    if table.part:
        place = f"{place} ({table.part})"
    if new is None or new.kind:
        error = "transformers cannot load it" if new is None else new.error
        return Difference(place, f"fails ({error})")
    left = old.values
    right = new.values
    if old.tokens == new.tokens and left.dim() == right.dim():
        # Some models have such outputs for an input of any length. What they share is compared.
        pairs = list(zip(left.shape, right.shape, strict=True))
        by_length = {
            (table.max_len_before, table.max_len_after),
            (table.rows_before, table.rows_after),
        }
        if {pair for pair in pairs if pair[0] != pair[1]} <= by_length:
            shared = tuple(slice(min(pair)) for pair in pairs)
            left = left[shared]
            right = right[shared]
    if left.shape != right.shape:
        return Difference(place, f"shape {list(right.shape)} instead of {list(left.shape)}")
    largest = largest_difference(left, right)
    return Difference(place, format(largest, ".3g"), largest, are_bit_identical(left, right))


def check_outputs(
    expected: Expected, before: Observed, after: Observed, outcomes: Outcomes
) -> Check:
    """Compare outputs on inputs that fit both models.

    Args:
        expected: What the base and the recipe lead to expect.
        before: The base.
        after: The resized model.
        outcomes: Those of the resized model that the base can have.
    """
    check = Check("outputs")
    if before.error or before.random:
        reason = before.error.removesuffix(".") or _random_text(before, "the base")
        check.unchecked.append(reason)
        return check
    if after.random:
        check.unchecked.append(_random_text(after, "the model"))
    differences = list[Difference]()
    for table in expected.plan.changes:
        olds = {text: old for (name, text), old in before.outcomes.items() if name == table.name}
        ran = [text for text, old in olds.items() if not old.kind]
        for text in ran:
            new = outcomes.get((table.name, text))
            differences.append(output_difference(table, text, olds[text], new))
        if not ran:
            text, old = next(iter(olds.items()))
            check.unchecked.append(f"{_unrun_text(table, text, old)}. {SAME_IN_BASE}")
    if differences:
        rule, tolerance = _find_standard(expected, before.outcomes)
        are_right = all(item.is_within(tolerance) for item in differences)
        found = check.findings if are_right else check.failures
        found += _describe(expected, differences, rule)
    return check


def _describe(expected: Expected, differences: list[Difference], rule: str) -> list[str]:
    """Say how outputs should differ, then list the largest difference by input."""
    if expected.conversion is None:
        inputs = ", ".join(item.place for item in differences)
        if all(item.is_bit_identical for item in differences):
            return [f"bit-identical to the base's on inputs of {inputs}"]
        if all(item.size == 0 for item in differences):
            return [f"equal to the base's on inputs of {inputs}, but for NaN and signs of zeros"]
    texts = [f"{item.text} at {item.place}" for item in differences]
    return [rule, f"largest difference: {'; '.join(texts)}"]


def _find_standard(expected: Expected, before: Outcomes) -> tuple[str, float]:
    """Return what outputs on short inputs must be, in words and as a tolerance.

    1. Those of an untrained conversion to other positions, compared without positions: close. Those
       of one to attention windows too, unless its rows change.
    2. Those of a checkpoint that keeps the positions and weights that short inputs use: equal, or
       close if positions are kept within rounding.
    3. All others may differ by any amount: the tolerance is infinite.

    One tolerance is used for all inputs: relative to the smallest output, by its largest value.
    """
    size = min((outcome.size for outcome in before.values() if not outcome.kind), default=0.0)
    conversion = expected.conversion
    outputs = "outputs on short inputs"
    untrained = [None] if expected.replaces_positions else [None, "new"]
    if expected.adapted or expected.trainable not in untrained:
        return f"{outputs} may differ from the base's", math.inf
    if conversion is not None and (expected.replaces_positions or expected.keeps_positions):
        return _conversion_standard(conversion, size)
    if expected.keeps_positions:
        return f"{outputs} must be identical to the base's", 0.0
    if expected.plan.short_inputs is ShortInputs.ROUNDED:
        longest = max(table.max_len_before for table in expected.plan.changes)
        tolerance = frequency_rounding(longest) * size
        rounding = f"rounding of frequencies (tolerance {tolerance:.2g})"
        return f"{outputs} must equal the base's within {rounding}", tolerance
    return f"{outputs} may differ from the base's", math.inf


def _conversion_standard(conversion: Conversion, size: float) -> tuple[str, float]:
    """Return what outputs of a conversion must be, as `_find_standard`.

    Args:
        conversion: The conversion.
        size: Of the smallest output, by its largest value.
    """
    layers = sum(int(conversion.config[key]) for key in conversion.twin.layer_keys)
    relative = STEPS_PER_LAYER * layers * FLOAT32_STEP
    rounding = "float32 rounding"
    outputs = "without positions, outputs"
    if conversion.twin.has_windows:
        half = conversion.settings.half_window
        outputs = (
            f"outputs (inputs of up to {half} tokens as they are, longer ones with windows of "
            "twice the input)"
        )
    # The source's position table is added to embeddings, so their sums have its dtype.
    source = conversion.model
    dtype = source.checkpoint.weights.entries[source.tables[0].name].dtype
    if conversion.twin.adds_mean and dtype in SUM_ROUNDING:
        relative += SUM_ROUNDING[dtype]
        rounding += f" and that of the embeddings to {dtype}"
    # Heads sum hidden states, which layer norms keep near 1: small sums are rounded as these.
    tolerance = relative * max(size, HIDDEN_STATE)
    rule = f"{outputs} must equal the base's within {rounding} (tolerance {tolerance:.2g})"
    return rule, tolerance


def frequency_rounding(length: int) -> float:
    """Return how far the rounding of rotary frequencies can move outputs, relative to these.

    A frequency that is wrong by a step turns the last position by as many steps as there are
    positions.

    Args:
        length: Of the input, in tokens.
    """
    return min(STEPS_PER_POSITION * FLOAT32_STEP * length, MAX_ROUNDING)
