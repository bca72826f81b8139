"""Plan a resize for one runtime: a method that it applies, or an error."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ctxextend.errors import CtxextendError, ResizeError, joined
from ctxextend.gguf.gguf_runtime import gguf_statements
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.plan import Plan, make_plan
from ctxextend.runtimes.rule_schema import REMOVED, Runtime
from ctxextend.runtimes.runtime_statements import (
    WITHOUT_SETTINGS,
    RuntimeOutcome,
    RuntimeStatement,
    difference_notes,
    runtime_statements,
)
from ctxextend.runtimes.runtimes import find_runtime
from ctxextend.serving.runtime_facts import folder_facts
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, SWITCH
from ctxextend.tables.rope_types import ATTENTION_FACTOR
from ctxextend.tables.rotary_methods import MSCALE

# Methods of rotary positions to try, the best one without training first; see docs/results.md.
METHODS_BY_LOSS = ("yarn", "theta", "linear", "dynamic")


class RuntimePlan(NamedTuple):
    """A plan, and what the runtime that it is made for does with the output."""

    plan: Plan
    runtime: Runtime
    statement: RuntimeStatement | None  # None: no rule says what the runtime does
    # The plan that `auto` would have made, if the runtime is not known to read it right.
    replaced: "RuntimePlan | None" = None


def requested_engine_notes(for_runtime: RuntimePlan) -> Iterator[Note]:
    """Yield what the requested engine does with the output, and why the method is another one."""
    name = for_runtime.runtime.name
    plan = for_runtime.plan
    statement = for_runtime.statement
    replaced = for_runtime.replaced
    if replaced is not None:
        applies = "does not apply"
        if replaced.statement is None:
            applies = "is not known to apply"
        text = (
            f"{name} {applies} {replaced.plan.method} to {plan.model_type} models: the method is "
            f"{plan.method}."
        )
        yield Note(Code.METHOD, Level.NOTE, text)
    if statement is None:
        if plan.is_changed:
            text = (
                f"No rule says what {name} does with {plan.model_type} models: compare its outputs "
                "for long inputs with those of transformers."
            )
            yield Note(Code.ENGINE, Level.WARNING, text)
        return
    text = f"Reads {plan.max_len_after} tokens in {name}"
    if statement.option:
        text += f", with {statement.option}"
    yield Note(Code.ENGINE, Level.NOTE, f"{text}.")
    yield from difference_notes([statement])


def plan_for_runtime(model: OpenedModel, settings: Resize, key: str) -> RuntimePlan:
    """Plan a resize whose output a runtime reads at the new length, with the method applied.

    The first of these that the runtime is known to serve counts, if need be with an option:

    1. The requested method or, by default, the one that `auto` chooses.
    2. By default, for rotary positions: each of `METHODS_BY_LOSS`.

    If no rule says what the runtime does with the first one, the plan is this one.

    Args:
        model: The source.
        settings: The length and the method.
        key: The runtime, as ``--for`` takes it.

    Raises:
        ResizeError: The runtime is unknown, or does not read the output right with any method.
        CtxextendError: As `make_plan`.
    """
    runtime = find_runtime(key)
    first: RuntimePlan | None = None
    for plan in _candidates(model, settings):
        plan = _with_list_mscales(runtime, plan)
        statement = _statement_of(runtime, plan)
        candidate = RuntimePlan(plan, runtime, statement, replaced=first)
        if statement is not None and statement.serves_with_option:
            return candidate
        if first is None:
            first = candidate
    assert first is not None
    if first.statement is None:
        return first
    raise _not_served(first, first.statement, model, settings)


def _with_list_mscales(runtime: Runtime, plan: Plan) -> Plan:
    """Return a plan by `switch` that states the attention factor as a runtime reads it."""
    is_given = plan.settings.choice.settings.get(MSCALE) is not None
    if plan.method != SWITCH or not runtime.reads_list_mscales or is_given:
        return plan
    factors = {
        settings.get(ATTENTION_FACTOR)
        for change in plan.changes
        for settings in change.settings.values()
    }
    if len(factors) != 1:
        return plan
    choice = plan.main_choice
    choice = replace(choice, settings={**choice.settings, MSCALE: factors.pop()})
    return make_plan(plan.model, replace(plan.settings, method=choice))


def _candidates(model: OpenedModel, settings: Resize) -> Iterator[Plan]:
    """Yield the plans to try, the preferred one first."""
    first = make_plan(model, settings)
    yield first
    creates_rows = any(change.positions.rows for change in first.changes)
    if settings.choice.name != DEFAULT_METHOD or creates_rows:
        return
    for name in METHODS_BY_LOSS:
        if name == first.method:
            continue
        try:
            yield make_plan(model, replace(settings, method=name))
        except CtxextendError:
            continue  # the method does not apply to this model


def _statement_of(runtime: Runtime, plan: Plan) -> RuntimeStatement | None:
    """Return what a runtime does with a planned output; None if no rule says it."""
    statements = gguf_statements(plan)
    facts = folder_facts(plan)
    if facts is not None:
        statements = runtime_statements(facts)
    for statement in statements:
        if statement.runtime == runtime:
            return statement
    return None


def _not_served(
    wrong: RuntimePlan, statement: RuntimeStatement, model: OpenedModel, settings: Resize
) -> ResizeError:
    """Return the error for a runtime that is known not to read an output right."""
    facts = folder_facts(wrong.plan)
    assert facts is not None
    what = f"{facts.model_type} models"
    if facts.positions == REMOVED:
        what = f"{what} without positions"
    elif facts.positions not in WITHOUT_SETTINGS:
        what = f"the {facts.positions} settings of {what}"
    message = f"{statement.name} {_effect(statement)} {what}"
    if statement.reason:
        message += f": {statement.reason}"
    return ResizeError(f"{message}.", _alternatives(wrong, model, settings))


def _effect(statement: RuntimeStatement) -> str:
    """Return what a runtime does with an output that it does not read right, up to the object."""
    match statement.outcome:
        case RuntimeOutcome.IGNORES:
            return "ignores"
        case RuntimeOutcome.DIFFERS:
            return "computes other positions for"
        case RuntimeOutcome.DERIVES:
            return f"takes {statement.length} for the context length of"
    return "does not load"


def _alternatives(wrong: RuntimePlan, model: OpenedModel, settings: Resize) -> str:
    """Return what works instead: other settings, or another runtime."""
    methods = list[str]()
    if settings.choice.name != DEFAULT_METHOD:
        for plan in _candidates(model, replace(settings, method=None)):
            if _is_served(wrong.runtime, plan):
                methods.append(plan.method)
    if methods:
        return f"Use --method {' or '.join(dict.fromkeys(methods))}."
    facts = folder_facts(wrong.plan)
    assert facts is not None
    serving = [item.name for item in runtime_statements(facts) if item.serves_with_option]
    return f"The output would be right in {joined(serving)}."


def _is_served(runtime: Runtime, plan: Plan) -> bool:
    """Whether a runtime is known to read a planned output right."""
    statement = _statement_of(runtime, plan)
    return statement is not None and statement.serves_with_option
