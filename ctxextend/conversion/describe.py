"""Explain a conversion in words."""

from collections.abc import Iterator

from ctxextend.conversion.conversion import Conversion
from ctxextend.conversion.find import SCHEME_NAMES
from ctxextend.errors import counted
from ctxextend.families.rope_dialects import has_settings, stated_dialects
from ctxextend.plan.effects import UNTRAINED
from ctxextend.plan.explain import Explanation, cost_text, find_runtimes, model_notes, runtime_notes
from ctxextend.plan.file_warnings import file_warnings
from ctxextend.plan.length_notes import generation_notes
from ctxextend.plan.limit_warnings import low_limits
from ctxextend.plan.plan import Plan
from ctxextend.runtimes.rule_schema import RAISED_THETA, FolderFacts

MAX_DROPPED = 3  # names of dropped tensors in a warning


def explain_conversion(conversion: Conversion, twin_plan: Plan) -> Explanation:
    """Explain a conversion, and the plan of its twin's limits.

    Raises:
        CheckpointError: A JSON file of the source is malformed.
    """
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
        cost=cost_text(twin_plan),
        effects=describe_change(twin_plan),
        keep_hint="Train it with ctxextend train DIR --data TEXT --steps 200.",
        runtimes=runtimes,
        runtime_notes=runtime_notes(facts, runtimes),
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


def positions_text(conversion: Conversion) -> str:
    """Return the position scheme of the twin."""
    theta = conversion.settings.theta
    if theta:
        return f"rotary positions, theta {theta:g}"
    return f"{SCHEME_NAMES[conversion.twin.scheme]} positions"


def summarise(conversion: Conversion) -> str:
    """Return the conversion in a few words."""
    after = conversion.twin.model_type
    return f"{conversion.type_before} -> {after} ({positions_text(conversion)})"


def _details(conversion: Conversion, twin_plan: Plan) -> Iterator[str]:
    """Yield the conversion, its length, and the parameters that it adds."""
    yield summarise(conversion)
    yield f"{conversion.max_len_before} -> {twin_plan.max_len_after} tokens"
    if conversion.added_parameters:
        added = counted(conversion.added_parameters, "parameter")
        yield f"{added} added: the LM head is separate from the embeddings"


def describe_change(twin_plan: Plan) -> str:
    """Return what to expect of the twin's outputs before any training."""
    return (
        f"{UNTRAINED.format(twin_plan.max_len_after)} Outputs are far from the source's, for short "
        "inputs too, since all weights were trained with learned positions."
    )


def conversion_warnings(conversion: Conversion, twin_plan: Plan) -> Iterator[str]:
    """Yield warnings about tensors that are dropped, and about what is less exact."""
    if conversion.dropped:
        named = ", ".join(conversion.dropped[:MAX_DROPPED])
        if len(conversion.dropped) > MAX_DROPPED:
            named += ", ..."
        dropped = counted(len(conversion.dropped), "tensor")
        yield f"Dropped {dropped}: {named} ({conversion.model_class} has no place for them)."
    if conversion.twin.limits:
        yield f"{conversion.twin.limits}."
    yield from low_limits(twin_plan, old_length=conversion.max_len_before)
