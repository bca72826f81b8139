"""`verify --deep`: load both checkpoints in transformers, run them, and compare."""

from collections.abc import Callable, Sequence
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.conversion.conversion import Conversion
from ctxextend.conversion.source_types import SOURCE_TYPES
from ctxextend.errors import CheckpointError, joined
from ctxextend.models.load import LoadingInfo, check_loadable, load
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_frequencies import compare_frequencies
from ctxextend.verification.compare_outputs import compare_outputs
from ctxextend.verification.compare_switch import (
    compare_again,
    compare_long_inputs,
    run_without_switch,
    switched_tables,
)
from ctxextend.verification.expected import Expected
from ctxextend.verification.model_evidence import (
    loads_check,
    outputs_check,
    runs_check,
    switch_check,
    uncompared_outputs,
)
from ctxextend.verification.observe import (
    SHORTEST_PAIR,
    NotLoaded,
    Observed,
    Outcomes,
    needs_separators,
    observe,
    run_inputs,
)
from ctxextend.verification.wider_windows import widen_windows
from ctxextend.verification.without_positions import remove_positions

NOT_DEEP_HINT = "Run verify without --deep."
LONG_INPUT = 16_384  # tokens, from which on the cost is said before models run


def check_models(
    expected: Expected, resized: Checkpoint, notify: Callable[[str], None]
) -> list[Check]:
    """Load both checkpoints, run the resized one at its new length, and compare outputs.

    Both run in float32 on the same inputs, which fit both, one after the other, so only one model
    is in memory at a time. A conversion to other positions and its base are compared without
    positions. One to attention windows is compared as it is on inputs of up to half a window, and
    on longer ones with windows of twice the input, in which all tokens attend to each other.

    Args:
        expected: What the base and the recipe lead to expect.
        resized: The resized checkpoint.
        notify: Called with a sentence before models run on long inputs.

    Raises:
        CheckpointError: transformers can load neither checkpoint.
    """
    lengths = _shared_lengths(expected)
    if expected.plan.max_len_after >= LONG_INPUT:
        notify(_describe_cost(lengths, expected.plan.max_len_after))
    before = _observe_base(expected, lengths)
    try:
        model, info = _load_resized(expected, resized)
    except CheckpointError as error:
        if isinstance(before, NotLoaded):
            raise CheckpointError(before.reason, NOT_DEEP_HINT) from error
        return [Evidence(failures=[error.message]).check("loads")]
    after = observe(expected, resized, model, info, [*lengths, expected.plan.max_len_after])
    compared = _outcomes_to_compare(expected, resized, model, after, lengths)
    checks = [
        _check_loads(expected, resized, before, after),
        runs_check(expected, before, after),
        _check_outputs(expected, before, after, compared),
    ]
    if switched_tables(expected):
        again = run_inputs(expected, resized, model, lengths)
        del model  # only one is in memory at a time
        checks.append(_check_switch(expected, resized, after, again))
    return checks


def _describe_cost(lengths: Sequence[int], longest: int) -> str:
    """Say on how many tokens models run, and what that costs."""
    shared = [f"{length:,}" for length in lengths if length < longest]
    both = f"Both models run on {joined(shared)} tokens, and the resized one on {longest:,}"
    if not shared:
        both = f"Both models run on {longest:,} tokens"
    return (
        f"{both}. Attention costs the square of the length: on a CPU, this can take hours. Without "
        "--deep, verify only reads files."
    )


def _check_switch(
    expected: Expected, resized: Checkpoint, after: Observed, again: Outcomes
) -> Check:
    """Check that short inputs stay the same after long ones, and what long ones get."""
    try:
        without_switch = run_without_switch(expected, resized)
    except CheckpointError as error:
        return Evidence(unchecked=[error.message]).check("switch")
    long_inputs = compare_long_inputs(expected, after.outcomes, without_switch)
    return switch_check(expected, compare_again(after.outcomes, again), long_inputs)


def _shared_lengths(expected: Expected) -> list[int]:
    """Return lengths in tokens on which both models run and can have the same outputs."""
    longest = min(min(table.same_up_to, table.max_len_after) for table in expected.plan.changes)
    if expected.conversion:
        longest = min(longest, expected.conversion.max_len_before)
    if (
        any(table.positions.multiple_of is not None for table in expected.plan.changes)
        and expected.windows
    ):
        # Inputs are padded to a multiple of the window, which is twice as long.
        longest = max(
            min(longest, expected.plan.max_len_after // 2), expected.windows.settings.half_window
        )
    lengths = {longest // 4, longest // 2, longest}
    if expected.windows is not None:
        lengths.add(min(expected.windows.settings.half_window, longest))
    shortest = SHORTEST_PAIR if needs_separators(expected) else 1
    return sorted({max(length, shortest) for length in lengths})


def _observe_base(expected: Expected, lengths: list[int]) -> Observed | NotLoaded:
    """Load the base and run it: the source of other positions without its own."""
    base = expected.base
    model_class = base.model_class
    conversion = expected.conversion
    if conversion:
        base = conversion.model.checkpoint
        model_class = _source_class(conversion)
    try:
        check_loadable(base)
        model, info = load(base, model_class)
    except CheckpointError as error:
        return NotLoaded(error.message)
    if expected.replaces_positions:
        assert conversion is not None
        remove_positions(model, conversion)
    return observe(expected, base, model, info, lengths)


def _source_class(conversion: Conversion) -> str:
    """Return the class of a conversion's source that has the same head as the twin."""
    source = SOURCE_TYPES[conversion.type_before]
    for name, head in conversion.twin.heads.items():
        if head == conversion.head:
            return f"{source.class_name}{name}"
    raise AssertionError(conversion.head.end)


def _load_resized(expected: Expected, resized: Checkpoint) -> tuple[Any, LoadingInfo]:
    """Load the resized checkpoint in the class of its base.

    Raises:
        CheckpointError: transformers cannot load it, or only with other names of its tensors.
    """
    check_loadable(resized)
    if resized.weights.wrappers:
        wrappers = ", ".join(resized.weights.wrappers)
        raise CheckpointError(
            f"Tensor names in {resized.root} have {wrappers}, which transformers does not load."
        )
    return load(resized, expected.base.model_class)


def _outcomes_to_compare(
    expected: Expected,
    resized: Checkpoint,
    model: Any,
    after: Observed,
    lengths: list[int],
) -> Outcomes:
    """Return the outcomes of a resized model, or those of a conversion as its base can have them.

    Those of other positions are without positions; those of attention windows are with wider ones
    on inputs of more than half a window.
    """
    if expected.conversion is None:
        return after.outcomes
    if expected.windows is None:
        remove_positions(model, expected.conversion)
        return run_inputs(expected, resized, model, lengths)
    longer = [length for length in lengths if length > expected.windows.settings.half_window]
    if not longer:
        return after.outcomes
    widen_windows(model, max(longer))
    return {**after.outcomes, **run_inputs(expected, resized, model, longer)}


def _check_loads(
    expected: Expected, resized: Checkpoint, before: Observed | NotLoaded, after: Observed
) -> Check:
    old = before.frequencies if isinstance(before, Observed) else {}
    frequencies = [
        compared
        for table in expected.plan.changes
        for compared in compare_frequencies(table, resized, old, after.frequencies)
    ]
    return loads_check(expected, before, after, frequencies)


def _check_outputs(
    expected: Expected, before: Observed | NotLoaded, after: Observed, outcomes: Outcomes
) -> Check:
    if isinstance(before, NotLoaded) or before.random.decisive:
        return uncompared_outputs(before)
    return outputs_check(expected, compare_outputs(expected, before.outcomes, outcomes), after)
