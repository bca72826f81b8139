"""Plan a resize for one engine: a method that it applies, or an error; and its command."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.errors import CtxextendError, ResizeError, joined, not_an_option
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.plan import Plan, make_plan
from ctxextend.runtimes.engines import ENGINES, EXPORT_TASKS, WITHOUT_SETTINGS, Outcome
from ctxextend.serving.engine_statements import Statement, folder_facts, statements
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, SWITCH
from ctxextend.tables.rope_types import ATTENTION_FACTOR
from ctxextend.tables.rotary_methods import MSCALE

# Methods of rotary positions to try, the best one without training first; see docs/results.md.
METHODS_BY_LOSS = ("yarn", "theta", "linear", "dynamic")
# What an engine does with an output that it does not read right, up to the object.
EFFECTS = {
    Outcome.DERIVES: "takes {length} for the context length of",
    Outcome.IGNORES: "ignores",
    Outcome.DIFFERS: "computes other positions for",
    Outcome.REFUSES: "does not load",
}


def plan_for_engine(model: OpenedModel, settings: Resize) -> Plan:
    """Plan a resize whose output an engine reads at the new length, with the method applied.

    The first of these that the engine is known to serve counts, if need be with an option:

    1. The requested method or, by default, the one that `auto` chooses.
    2. By default, for rotary positions: each of `METHODS_BY_LOSS`.

    If no rule says what the engine does with the first one, the plan is this one.

    Args:
        model: The source.
        settings: The length, the method, and the engine, if not only one reads the source.

    Raises:
        ResizeError: The engine does not read the output right with any method.
        CtxextendError: As `make_plan`.
    """
    plan = make_plan(model, settings)
    first = _statement_of(plan)
    if not plan.is_changed or (first is not None and first.is_right):
        return _with_list_mscales(plan, first)
    for other in _other_plans(plan):
        statement = _statement_of(other)
        if statement is not None and statement.is_right:
            applies = "does not apply"
            if first is None:
                applies = "is not known to apply"
            text = (
                f"{statement.name} {applies} {plan.method} to {plan.model_type} models: the method "
                f"is {other.method}."
            )
            noted = other.model.with_notes(Note(Code.METHOD, Level.NOTE, text))
            return replace(other, model=noted)
    if first is None:
        return plan
    raise _not_served(plan, first)


def _with_list_mscales(plan: Plan, statement: Statement | None) -> Plan:
    """Return a plan by `SWITCH` that states the attention factor as an engine reads it."""
    is_given = plan.settings.choice.settings.get(MSCALE) is not None
    ignores_factor = statement is not None and ATTENTION_FACTOR in statement.ignores
    factors = {
        settings.get(ATTENTION_FACTOR)
        for change in plan.changes
        for settings in change.settings.values()
    }
    if plan.method != SWITCH or is_given or not ignores_factor or len(factors) != 1:
        return plan
    choice = plan.main_choice
    choice = replace(choice, settings={**choice.settings, MSCALE: factors.pop()})
    return make_plan(plan.model, replace(plan.settings, method=choice))


def _other_plans(first: Plan) -> Iterator[Plan]:
    """Yield plans with other methods, the preferred one first, if none is requested."""
    creates_rows = any(change.positions.rows for change in first.changes)
    if first.settings.choice.name != DEFAULT_METHOD or creates_rows:
        return
    for name in METHODS_BY_LOSS:
        if name == first.method:
            continue
        try:
            yield make_plan(first.model, replace(first.settings, method=name))
        except CtxextendError:
            continue  # the method does not apply to this model


def _statement_of(plan: Plan) -> Statement | None:
    """Return what the requested engine does with a planned output; None if no rule says it."""
    for statement in statements(folder_facts(plan)):
        if statement.engine.key == plan.engine:
            return statement
    return None


def _not_served(plan: Plan, statement: Statement) -> ResizeError:
    """Return the error for an engine that is known not to read an output right."""
    facts = folder_facts(plan)
    assert facts is not None
    what = f"{plan.model_type} models"
    if facts.positions not in WITHOUT_SETTINGS:
        what = f"the {facts.positions} settings of {what}"
    effect = EFFECTS[statement.outcome].format(length=statement.length)
    message = f"{statement.name} {effect} {what}"
    if statement.reason:
        message += f": {statement.reason}"
    methods = list[str]()
    if plan.settings.choice.name != DEFAULT_METHOD:
        automatic = make_plan(plan.model, replace(plan.settings, method=None))
        for other in (automatic, *_other_plans(automatic)):
            found = _statement_of(other)
            if found is not None and found.is_right:
                methods.append(other.method)
    if methods:
        hint = f"Use --method {joined(list(dict.fromkeys(methods)), 'or')}."
    else:
        serving = [item.name for item in statements(facts) if item.is_right]
        hint = f"The output would be right in {joined(serving)}."
    return ResizeError(f"{message}.", hint)


def serving_command(plan: Plan, found: Sequence[Statement], folder: str) -> str:
    """Return the command that serves an output, or converts it for its engine.

    Empty if Python code loads it, or if the only engine that reads it is not known to serve it.

    Args:
        plan: What changes, for an engine.
        found: What engines do with the output.
        folder: The path of the output.
    """
    engine = ENGINES[plan.engine or ""]
    if plan.settings.engine is None and not found:
        return ""
    command = engine.command
    if plan.checkpoint.engine is not None and engine.own_command:
        command = engine.own_command
    task = "TASK"
    for ending, name in EXPORT_TASKS.items():
        if (plan.checkpoint.model_class or "").endswith(ending):
            task = name
            break
    quoted = shlex.quote(not_an_option(folder))
    words = [command.format(folder=quoted, max_len=plan.max_len_after, task=task)]
    words += [item.option for item in found if item.engine == engine and item.option]
    return " ".join(words)
