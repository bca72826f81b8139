"""Explain a conversion in words."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ctxextend.conversion.conversion import Conversion
from ctxextend.conversion.find import SCHEME_NAMES
from ctxextend.conversion.twins import FOR_GLOBAL, SEPARATOR_KEY
from ctxextend.errors import counted, joined
from ctxextend.families.rope_dialects import has_settings, stated_dialects
from ctxextend.plan.effects import UNTRAINED
from ctxextend.plan.explain import (
    Explanation,
    explain,
    find_runtimes,
    model_notes,
    runtime_notes,
)
from ctxextend.plan.file_warnings import file_warnings
from ctxextend.plan.length_notes import generation_notes
from ctxextend.plan.limit_warnings import low_limits
from ctxextend.plan.plan import Plan
from ctxextend.runtimes.rule_schema import RAISED_THETA, FolderFacts

LISTED_TENSORS = 3  # names of tensors in a warning


NO_GLOBAL_ATTENTION = (
    "No token attends to all others, unless you pass a global_attention_mask to the model."
)


def explain_conversion(conversion: Conversion, twin_plan: Plan) -> Explanation:
    """Explain a conversion, and the plan of its twin's limits.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    if conversion.twin.has_windows:
        return _explain_windows(conversion, twin_plan)
    stops = generation_notes(
        twin_plan.model, twin_plan.tables, old_length=conversion.max_len_before
    )
    facts = _twin_facts(conversion, twin_plan)
    runtimes = find_runtimes(facts)
    return Explanation(
        summary=summarise(conversion),
        details=tuple(_details(conversion, twin_plan)),
        notes=(*model_notes(twin_plan), *stops),
        warnings=(
            *conversion_warnings(conversion, twin_plan),
            *file_warnings(twin_plan.checkpoint),
        ),
        untrained=(),
        choices=(),
        effects=describe_change(twin_plan),
        keep_hint="Train it with ctxextend train DIR --data TEXT --steps 200.",
        runtimes=runtimes,
        runtime_notes=runtime_notes(facts, runtimes),
    )


def _explain_windows(conversion: Conversion, twin_plan: Plan) -> Explanation:
    """Explain a conversion to attention windows: its resize, and what differs from one.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
    resize = explain(twin_plan)
    if not twin_plan.is_changed:  # `explain` describes no runtimes of a folder that stays
        facts = _twin_facts(conversion, twin_plan)
        runtimes = find_runtimes(facts)
        resize = resize._replace(runtimes=runtimes, runtime_notes=runtime_notes(facts, runtimes))
    return resize._replace(
        summary=summarise(conversion),
        details=(
            summarise(conversion),
            *resize.details,
            *_added_parameters(conversion),
        ),
        notes=(*resize.notes, *window_notes(conversion)),
        warnings=(
            *conversion_warnings(conversion, twin_plan),
            *file_warnings(twin_plan.checkpoint),
        ),
        effects=_effects_of_windows(conversion, twin_plan),
        keep_hint="",
    )


def window_notes(conversion: Conversion) -> Iterator[str]:
    """Yield which tokens attend to all others: the rule of the twin's class."""
    if not conversion.twin.has_windows:
        return
    tokens = conversion.head.global_attention
    if not tokens:
        yield NO_GLOBAL_ATTENTION
        return
    yield (
        f"{conversion.model_class} lets {tokens} attend to all others, and all others to "
        f"{conversion.head.global_pronoun}, unless you pass a global_attention_mask."
    )
    if conversion.head.needs_separators:
        separator = f"{SEPARATOR_KEY} {conversion.config[SEPARATOR_KEY]}"
        yield (
            f"{conversion.model_class} fails on a text without exactly three separators "
            f"({separator}), which RoBERTa's pairs have, unless you pass a global_attention_mask."
        )


def _effects_of_windows(conversion: Conversion, twin_plan: Plan) -> str:
    """Return what to expect of the outputs of a twin with attention windows."""
    untrained = f"{UNTRAINED.format(twin_plan.max_len_after)} "
    if not twin_plan.creates_rows:
        untrained = ""
    if _split_missing(conversion).needed:
        return f"{untrained}Outputs depend on random values."
    side = conversion.settings.half_window
    longer = f"in longer ones, each token attends to {side} tokens on either side"
    if conversion.head.global_attention:
        longer += ", and to those that attend to all"
    if not twin_plan.keeps_learned_rows:
        return f"{untrained}Rows change, so short inputs have other outputs too; {longer}."
    same = min(side, twin_plan.max_len_after, conversion.max_len_before)
    return (
        f"{untrained}Inputs up to {same} tokens give the source's outputs within float32 "
        f"rounding, if padded on the right with an attention mask; {longer}."
    )


def _twin_facts(conversion: Conversion, twin_plan: Plan) -> FolderFacts:
    """Return what decides what runtimes do with a twin.

    Raises:
        CheckpointError: Its rotary settings are malformed.
    """
    location = twin_plan.tables[0].location
    positions = location.scheme
    dialects: tuple[str, ...] = ()
    if location.table.rope is not None:
        positions = RAISED_THETA
    if has_settings(location):
        dialects = stated_dialects(location)
    return FolderFacts(
        model_type=conversion.twin.model_type,
        positions=positions,
        max_len=twin_plan.max_len_after,
        stated=twin_plan.max_len_after,
        first_trained=twin_plan.max_len_after,
        theta=conversion.settings.theta,
        dialects=dialects,
    )


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


def _details(conversion: Conversion, twin_plan: Plan) -> Iterator[str]:
    """Yield the conversion, its length, and the parameters that it adds."""
    yield summarise(conversion)
    yield f"{conversion.max_len_before} -> {twin_plan.max_len_after} tokens"
    yield from _added_parameters(conversion)


def _added_parameters(conversion: Conversion) -> Iterator[str]:
    """Yield the number of parameters that a conversion adds, and what they are."""
    if not conversion.added_parameters:
        return
    if conversion.twin.has_windows:
        added = _global_parameters(conversion)
        what = "global attention has queries, keys and values apart, which are copies"
    else:
        added = conversion.added_parameters
        what = "the LM head is separate from the embeddings"
    yield f"{counted(added, 'parameter')} added: {what}"


def _global_parameters(conversion: Conversion) -> int:
    """Return the number of parameters of global attention, which are copies."""
    entries = conversion.model.checkpoint.weights.entries
    copies = [origin for origin in conversion.origins.values() if origin.how == FOR_GLOBAL]
    return sum(math.prod(entries[origin.tensor].shape) for origin in copies)


def describe_change(twin_plan: Plan) -> str:
    """Return what to expect of the twin's outputs before any training."""
    return (
        f"{UNTRAINED.format(twin_plan.max_len_after)} Outputs are far from the source's, for short "
        "inputs too, since all weights were trained with learned positions."
    )


def conversion_warnings(conversion: Conversion, twin_plan: Plan) -> Iterator[str]:
    """Yield warnings about tensors that are dropped, and about what is less exact."""
    yield from _dropped_tensors(conversion)
    yield from _missing_tensors(conversion)
    if conversion.twin.limits:
        yield f"{conversion.twin.limits}."
    yield from low_limits(twin_plan, old_length=conversion.max_len_before)


def _missing_tensors(conversion: Conversion) -> Iterator[str]:
    """Yield warnings if the twin's class has parameters that the source has no values for."""
    missing = _split_missing(conversion)
    if missing.optional:
        yield (
            f"The source has no values for the pooler of {conversion.model_class} "
            f"({_listed(missing.optional)}): transformers fills it at random. Only pooler_output "
            "depends on it."
        )
    if missing.needed:
        yield (
            f"The source has no values for {_listed(missing.needed)}: transformers fills them at "
            "random, and outputs depend on them."
        )


class MissingTensors(NamedTuple):
    """Tensors of a twin that its source has no values for."""

    optional: tuple[str, ...]  # only one output depends on them
    needed: tuple[str, ...]  # all outputs do


def _split_missing(conversion: Conversion) -> MissingTensors:
    optional = [name for name in conversion.missing if name in conversion.head.optional]
    needed = [name for name in conversion.missing if name not in conversion.head.optional]
    return MissingTensors(optional=tuple(optional), needed=tuple(needed))


def _listed(names: Sequence[str]) -> str:
    """Return the first names of tensors, and how many more there are."""
    if len(names) <= LISTED_TENSORS:
        return joined(names)
    return f"{', '.join(names[:LISTED_TENSORS])} and {len(names) - LISTED_TENSORS} more"


def _dropped_tensors(conversion: Conversion) -> Iterator[str]:
    """Yield a warning about tensors that are dropped."""
    if conversion.dropped:
        named = ", ".join(conversion.dropped[:LISTED_TENSORS])
        if len(conversion.dropped) > LISTED_TENSORS:
            named += ", ..."
        dropped = counted(len(conversion.dropped), "tensor")
        yield f"Dropped {dropped}: {named} ({conversion.model_class} has no place for them)."
