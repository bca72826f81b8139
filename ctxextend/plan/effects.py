"""What to expect of a resized model's outputs before any training, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import joined
from ctxextend.families.schema import BEYOND
from ctxextend.plan.limit_warnings import low_limits
from ctxextend.plan.plan import Plan
from ctxextend.plan.runtime_facts import folder_facts
from ctxextend.plan.table_plan import TablePlan, same_up_to, scales, switches
from ctxextend.runtimes.rule_schema import DYNAMIC, SWITCHED, YARN, Runtime, RuntimeOutcome
from ctxextend.runtimes.runtime_statements import runtime_statements
from ctxextend.tables.method_facts import COPY, DEFAULT_METHOD, LIMITS, SWITCH
from ctxextend.tables.rope_types import TYPE
from ctxextend.tables.rotary_methods import can_switch

UNTRAINED = "Not yet trained at {}."


def describe_effects(plan: Plan) -> str:
    """Return what to expect of the outputs for short and long inputs, in a sentence or two."""
    if not plan.is_changed:
        what = "position table" if plan.has_rows else "context length"
        return f"The {what} is unchanged."
    if not plan.creates_rows:
        return _effect_of_shrinking(plan)
    if _only_limits_change(plan):
        return f"{_effect_of_limits(plan)}{_conditions(plan)}."
    short_inputs = _effect_on_short_inputs(plan)
    long_inputs = _effect_on_long_inputs(plan)
    return f"{UNTRAINED.format(plan.max_len_after)} {short_inputs}, {long_inputs}."


def _only_limits_change(plan: Plan) -> bool:
    """Whether rotary positions get another length, but no position another meaning."""
    extended = [table for table in plan.tables if table.is_extended]
    return all(table.rope and not scales(table) for table in extended)


def _conditions(plan: Plan) -> str:
    """Return the conditions under which inputs give identical outputs, as a clause or nothing."""
    conditions = ""
    if any(table.location.family.padding_effect for table in plan.tables):
        conditions += " if padded as before"
    if any(low_limits(plan)):
        conditions += " unless they were truncated before"
    return conditions


def _effect_of_shrinking(plan: Plan) -> str:
    if all(table.location.table.longer_inputs == "get computed rows" for table in plan.tables):
        longer = "get computed rows"
    else:
        longer = "are not supported"
    same = f"Inputs up to {plan.max_len_after} tokens give identical outputs{_conditions(plan)}"
    return f"{same}; longer inputs {longer}."


def _effect_of_limits(plan: Plan) -> str:
    """Say what longer inputs get if no rotary setting changes what positions mean."""
    table = next(table for table in plan.tables if table.rope)
    served = table.lengths.served if table.lengths else table.max_len_before
    after = plan.max_len_after
    effect = f"No position changes its meaning: inputs up to {after} tokens give identical outputs"
    if after <= served:
        return f"The settings already serve {served} tokens. {effect}"
    return f"Nothing scales: beyond {served} tokens, {BEYOND[table.scheme]}. {effect}"


def _effect_on_short_inputs(plan: Plan) -> str:
    """Say what happens to short inputs, up to the word that starts the next clause."""
    kept = old_lengths(plan)
    if plan.tables[0].rope:
        kept = str(same_up_to(plan.tables[0]))
    if plan.keeps_learned_rows:
        same = f"Inputs up to {kept} tokens give identical outputs{_conditions(plan)}"
        return f"{same}; beyond that"
    if plan.rounds_short_inputs:
        same = f"Inputs up to {kept} tokens give the same outputs within float32 rounding"
        return f"{same}{_conditions(plan)}; beyond that"
    choice = plan.main_choice
    effect = choice.facts.short_inputs
    if any(switches(table) for table in plan.tables):
        effect = "the attention factor applies to short inputs too, so their outputs change"
    if choice.facts.keeps_learned_rows and not choice.keeps_learned_rows:
        effect = "learned rows are replaced, so outputs for short inputs change too"
    effect = effect[:1].upper() + effect[1:]
    if choice.keep_first:
        effect += f" (the first {choice.keep_first} rows are kept)"
    return f"{effect}; beyond {kept}"


def _effect_on_long_inputs(plan: Plan) -> str:
    """Say what inputs beyond the old length get, as a clause."""
    facts = plan.main_choice.facts
    if facts.name != LIMITS:
        return facts.long_inputs
    scheme = next(table.scheme for table in plan.tables if table.choice is not None)
    return BEYOND[scheme]


def old_lengths(plan: Plan) -> str:
    """Return the tables' old lengths: one number if they agree, else each with its part."""
    lengths = {table.part: table.max_len_before for table in plan.tables}
    if len(set(lengths.values())) == 1:
        return str(plan.max_len_before)
    return " and ".join(f"{length} ({part})" for part, length in lengths.items())


def suggest_kept_rows(plan: Plan, runtime: Runtime | None = None) -> str:
    """Say how to keep outputs for short inputs if the default method changes them; else nothing.

    For one runtime, nothing that it does not apply is suggested.
    """
    is_mixed = len({table.has_rows for table in plan.tables}) > 1  # no method applies to all
    is_default = plan.settings.choice.name == DEFAULT_METHOD
    keeps = plan.keeps_learned_rows or plan.rounds_short_inputs
    if is_mixed or keeps or not is_default:
        return ""
    if not plan.has_rows:
        return _suggest_switch(plan, runtime)
    lengths = {table.max_len_before for table in plan.tables}
    method = f"--method {COPY}, which is mostly worse for long ones"
    if len(lengths) == 1:
        method = f"--keep-first {max(lengths)}, or {method}"
    return f"To keep outputs for short inputs, use {method}."


def _suggest_switch(plan: Plan, runtime: Runtime | None) -> str:
    """Suggest lists of factors for rotary positions, and name the runtimes that apply them."""
    table = plan.tables[0]
    facts = table.location.table.rope
    if mistral_params(plan.checkpoint) is not None:
        return ""  # it cannot state such settings
    applies = facts is not None and SWITCH in facts.methods
    if not applies or not all(can_switch(item.before.parameters) for item in table.rope):
        return ""
    suggestion = f"To keep outputs for short inputs, use --method {SWITCH}"
    folder = folder_facts(plan)
    if folder is None:
        return f"{suggestion}."
    statements = runtime_statements(replace(folder, positions=SWITCHED))
    serving = list[str]()
    for item in statements:
        if item.outcome is RuntimeOutcome.SERVES and not item.ignores_short_list:
            serving.append(item.name)
    if runtime is not None and runtime.name not in serving:
        return ""
    if not serving or runtime is not None:
        return f"{suggestion}."
    return f"{suggestion} (right in {joined(serving)})."


def growth_notes(tables: Sequence[TablePlan], *, generates: bool) -> Iterator[str]:
    """Yield what to know of inputs that share a batch, or that cross the old length.

    Transformers chooses frequencies that follow the length by the longest sequence of each call.

    Args:
        tables: The planned ones.
        generates: Whether the model generates text, so that an input can grow.
    """
    for table in tables:
        if not switches(table) and not _becomes_dynamic(table):
            continue
        length = same_up_to(table)
        yield (
            f"An input of up to {length} tokens gets the frequencies of long ones in a batch with "
            "a longer one: batch them apart."
        )
        if switches(table) and generates and _drops_cache(table):
            yield (
                f"generate() reads an input again when it grows past {length} tokens, since keys "
                "in its cache have the frequencies of short inputs."
            )


def growth_warnings(tables: Sequence[TablePlan], *, generates: bool) -> Iterator[str]:
    """Yield a warning if keys in the cache have other frequencies than the text that goes on.

    Where SmolLM2-135M crosses the trained length, its perplexity rises 55 times with `switch`, and
    by 78 % with `dynamic`, whose frequencies move less at once: docs/results.md.

    Args:
        tables, generates: As in `growth_notes`.
    """
    if not generates:
        return
    for table in tables:
        effect = ""
        if switches(table) and not _drops_cache(table):
            effect = "turns into noise, since its cached keys have the frequencies of short inputs"
        elif _becomes_dynamic(table):
            effect = "gets worse, since its cached keys have the frequencies of shorter inputs"
        if effect:
            text = f"A text that grows past {same_up_to(table)} tokens in generate() {effect}"
            yield f"{text}: use --method {YARN} for such texts."


def _becomes_dynamic(table: TablePlan) -> bool:
    """Whether frequencies follow the length of each input, and did not before."""
    changed = [plan for plan in table.rope if plan.before.parameters[TYPE] != DYNAMIC]
    return any(plan.after[TYPE] == DYNAMIC for plan in changed)


def _drops_cache(table: TablePlan) -> bool:
    """Whether `generate()` empties its cache when an input outgrows the first list."""
    rope = table.location.table.rope
    return rope is not None and rope.drops_cache
