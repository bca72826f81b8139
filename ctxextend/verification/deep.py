"""`verify --deep`: load both checkpoints in transformers, run them, and compare."""

from collections.abc import Callable
from typing import Any

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.conversion.source_types import SOURCE_TYPES
from ctxextend.errors import CheckpointError, joined
from ctxextend.models.load import check_loadable, load
from ctxextend.verification.check_loads import check_loads
from ctxextend.verification.check_outputs import check_outputs, check_runs
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import Observed, Outcomes, observe, run_inputs
from ctxextend.verification.without_positions import remove_positions

NOT_DEEP_HINT = "Run verify without --deep."
LONG_INPUT = 16_384  # tokens, from which on the cost is said before models run
WINDOW_ATTRIBUTE = "one_sided_attn_window_size"  # of self-attention in Longformer and LED


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
    longest = expected.plan.max_len_after
    if longest >= LONG_INPUT:
        shared = joined([f"{length:,}" for length in lengths])
        notify(
            f"Both models run on {shared} tokens, and the resized one on {longest:,}. Attention "
            "costs the square of the length: on a CPU, this can take hours. Without --deep, verify "
            "only reads files."
        )
    before = _observe_base(expected, lengths)
    try:
        check_loadable(resized)
        if resized.weights.is_wrapped:
            raise CheckpointError(f"Tensors in {resized.root} have names of a wrapper.")
        model, info = load(resized, expected.base.model_class)
    except CheckpointError as error:
        if before.error:
            raise CheckpointError(before.error, NOT_DEEP_HINT) from error
        return [Check("loads", failures=[error.message])]
    after = observe(expected, resized, model, info, [*lengths, longest])
    outcomes = _outcomes_to_compare(expected, resized, model, after, lengths)
    return [
        check_loads(expected, resized, before, after),
        check_runs(expected, before, after),
        check_outputs(expected, before, after, outcomes),
    ]


def _shared_lengths(expected: Expected) -> list[int]:
    """Return lengths in tokens on which both models run and can have the same outputs."""
    changes = expected.plan.changes
    conversion = expected.conversion
    longest = min(min(table.same_up_to, table.max_len_after) for table in changes)
    if conversion:
        longest = min(longest, conversion.max_len_before)
    lengths = set[int]()
    if conversion and conversion.twin.has_windows:
        half = conversion.settings.half_window
        if any(table.positions.multiple_of is not None for table in changes):
            # Inputs are padded to a multiple of the window, which is twice as long.
            longest = max(min(longest, expected.plan.max_len_after // 2), half)
        lengths.add(min(half, longest))
    lengths |= {longest // 4, longest // 2, longest}
    return sorted({max(length, 1) for length in lengths})


def _observe_base(expected: Expected, lengths: list[int]) -> Observed:
    """Load the base and run it: the source of other positions without its own."""
    base = expected.base
    model_class = base.model_class
    conversion = expected.conversion
    if conversion:
        base = conversion.model.checkpoint
        # The class that has the same head as the twin.
        names = [name for name, head in conversion.twin.heads.items() if head == conversion.head]
        model_class = f"{SOURCE_TYPES[conversion.type_before].class_name}{names[0]}"
    try:
        check_loadable(base)
        model, info = load(base, model_class)
    except CheckpointError as error:
        return Observed(error=error.message)
    if expected.replaces_positions:
        assert conversion is not None
        remove_positions(model, conversion)
    return observe(expected, base, model, info, lengths)


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
    conversion = expected.conversion
    if conversion is None:
        return after.outcomes
    if expected.replaces_positions:
        remove_positions(model, conversion)
        return run_inputs(expected, resized, model, lengths)
    longer = [length for length in lengths if length > conversion.settings.half_window]
    if not longer:
        return after.outcomes
    # The classes read their windows when they are created, and pad inputs to a multiple of that in
    # the config.
    for module in model.modules():
        if hasattr(module, WINDOW_ATTRIBUTE):
            setattr(module, WINDOW_ATTRIBUTE, max(longer))
    model.config.attention_window = 2 * max(longer)
    return {**after.outcomes, **run_inputs(expected, resized, model, longer)}
