"""The notes of a conversion, and what it is in a few words."""

import math
from collections.abc import Iterator, Sequence

from ctxextend.conversion.conversion import Conversion
from ctxextend.conversion.find import SCHEME_NAMES
from ctxextend.conversion.twins import FOR_GLOBAL, SEPARATOR_KEY
from ctxextend.errors import counted, joined
from ctxextend.notes import Code, Level, Note
from ctxextend.plan import Plan
from ctxextend.plan_notes import (
    NOT_TRAINED,
    far_notes,
    generation_notes,
    limit_notes,
    model_notes,
    table_notes,
)
from ctxextend.positions.change import ShortInputs
from ctxextend.runtimes.engines import Statement
from ctxextend.serving.engine_facts import engine_notes

LISTED_TENSORS = 3  # names of tensors in a warning

NO_GLOBAL_ATTENTION = (
    "No token attends to all others, unless you pass a global_attention_mask to the model."
)


def conversion_notes(
    conversion: Conversion, twin_plan: Plan, statements: Sequence[Statement]
) -> tuple[Note, ...]:
    """Return the notes of a conversion.

    Args:
        conversion: How the twin's tensors are computed.
        twin_plan: The plan of the twin's limits, and of its position table if it keeps one.
        statements: What engines do with the twin.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    trained = conversion.max_len_before
    notes = list[Note]()
    if conversion.twin.has_windows:
        notes += _window_notes(conversion, twin_plan)
        notes += table_notes(twin_plan)
    else:
        text = (
            f"{NOT_TRAINED.format(twin_plan.max_len_after)} Outputs are far from the source's, for "
            "short inputs too, since all weights were trained with learned positions."
        )
        notes.append(Note(Code.UNTRAINED, Level.NOTE, text))
    notes += far_notes(twin_plan, trained)
    notes += _tensor_notes(conversion)
    notes += limit_notes(twin_plan, old_length=trained)
    notes += generation_notes(twin_plan, old_length=trained)
    notes += model_notes(twin_plan)
    notes += engine_notes(twin_plan, statements)
    return tuple(notes)


def _window_notes(conversion: Conversion, twin_plan: Plan) -> Iterator[Note]:
    """Yield what a twin with attention windows gives, and which tokens attend to all others."""
    after = twin_plan.max_len_after
    head = conversion.head
    side = conversion.settings.half_window
    longer = f"in longer ones, each token attends to {side} tokens on either side"
    if head.global_attention:
        longer += ", and to those that attend to all"
    if any(name not in head.optional for name in conversion.missing):
        text = "Outputs depend on random values."
    elif twin_plan.short_inputs is ShortInputs.IDENTICAL:
        same = min(side, after, conversion.max_len_before)
        text = (
            f"Inputs up to {same} tokens give the source's outputs within float32 rounding, if "
            f"padded on the right with an attention mask; {longer}."
        )
    else:
        text = f"Rows change, so short inputs have other outputs too; {longer}."
    if twin_plan.extended:
        yield Note(Code.UNTRAINED, Level.NOTE, f"{NOT_TRAINED.format(after)} {text}")
    else:
        yield Note(Code.SHORT_INPUTS, Level.NOTE, text)

    tokens = head.global_attention
    if not tokens:
        yield Note(Code.ATTENTION_WINDOW, Level.NOTE, NO_GLOBAL_ATTENTION)
        return
    text = (
        f"{conversion.model_class} lets {tokens} attend to all others, and all others to "
        f"{head.global_pronoun}, unless you pass a global_attention_mask."
    )
    yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)
    if head.needs_separators:
        separator = f"{SEPARATOR_KEY} {conversion.config[SEPARATOR_KEY]}"
        text = (
            f"{conversion.model_class} fails on a text without exactly three separators "
            f"({separator}), which RoBERTa's pairs have, unless you pass a global_attention_mask."
        )
        yield Note(Code.ATTENTION_WINDOW, Level.NOTE, text)


def _tensor_notes(conversion: Conversion) -> Iterator[Note]:
    """Yield warnings about tensors that are dropped or missing, and about what is less exact."""
    if conversion.dropped:
        named = ", ".join(conversion.dropped[:LISTED_TENSORS])
        if len(conversion.dropped) > LISTED_TENSORS:
            named += ", ..."
        dropped = counted(len(conversion.dropped), "tensor")
        text = f"Dropped {dropped}: {named} ({conversion.model_class} has no place for them)."
        yield Note(Code.TENSORS, Level.WARNING, text)
    optional = [name for name in conversion.missing if name in conversion.head.optional]
    needed = [name for name in conversion.missing if name not in conversion.head.optional]
    if optional:
        text = (
            f"The source has no values for the pooler of {conversion.model_class} "
            f"({_listed(optional)}): transformers fills it at random. Only pooler_output depends "
            "on it."
        )
        yield Note(Code.TENSORS, Level.WARNING, text)
    if needed:
        text = (
            f"The source has no values for {_listed(needed)}: transformers fills them at random, "
            "and outputs depend on them."
        )
        yield Note(Code.TENSORS, Level.WARNING, text)
    if conversion.twin.limits:
        yield Note(Code.TENSORS, Level.WARNING, f"{conversion.twin.limits}.")


def _listed(names: Sequence[str]) -> str:
    """Return the first names of tensors, and how many more there are."""
    if len(names) <= LISTED_TENSORS:
        return joined(names)
    return f"{', '.join(names[:LISTED_TENSORS])} and {len(names) - LISTED_TENSORS} more"


def scheme_text(conversion: Conversion) -> str:
    """Return what the twin has that its source has not, in a few words."""
    if conversion.twin.has_windows:
        return f"attention windows of {conversion.settings.attention_window} tokens"
    return f"{SCHEME_NAMES[conversion.twin.scheme]} positions"


def positions_text(conversion: Conversion) -> str:
    """Return the position scheme of the twin, with its settings."""
    theta = conversion.settings.theta
    if theta:
        return f"rotary positions, theta {theta:g}"
    return scheme_text(conversion)


def summarise(conversion: Conversion) -> str:
    """Return the conversion in a few words."""
    after = conversion.twin.model_type
    return f"{conversion.type_before} -> {after} ({positions_text(conversion)})"


def added_text(conversion: Conversion) -> str:
    """Return the number of parameters that a conversion adds, and what they are; else nothing."""
    added = conversion.added_parameters
    if not added:
        return ""
    what = "the LM head is separate from the embeddings"
    if conversion.twin.has_windows:
        entries = conversion.model.checkpoint.weights.entries
        copies = [origin for origin in conversion.origins.values() if origin.how == FOR_GLOBAL]
        added = sum(math.prod(entries[origin.tensor].shape) for origin in copies)
        what = "global attention has queries, keys and values apart, which are copies"
    return f"{counted(added, 'parameter')} added: {what}"
