"""Notes on the outputs of a resized model before any training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctxextend.checkpoints.folder import MODULES
from ctxextend.checkpoints.mistral_files import mistral_params
from ctxextend.errors import joined
from ctxextend.families.schema import BEYOND
from ctxextend.notes import Code, Level, Note
from ctxextend.plan.for_runtime import RuntimePlan
from ctxextend.plan.length_notes import limit_notes
from ctxextend.plan.plan import Plan
from ctxextend.plan.runtime_facts import folder_facts
from ctxextend.plan.table_plan import TablePlan, same_up_to, scales, switches
from ctxextend.runtimes.rule_schema import DYNAMIC, SWITCHED, YARN
from ctxextend.runtimes.runtime_statements import RuntimeOutcome, runtime_statements
from ctxextend.tables.method_facts import COPY, DEFAULT_METHOD, LIMITS, SWITCH
from ctxextend.tables.rope_types import TYPE
from ctxextend.tables.rotary_methods import can_switch

# The start of a note and of cards, which `output.card` replaces after training.
NOT_TRAINED = "Not yet trained at {}."

# Lengths beyond this many times the trained one get a warning; of sentence encoders, the second.
# Not yet useful and useful lengths: docs/results.md.
FAR_FACTOR = 8
FAR_FACTOR_OF_SEARCH = 16


def output_notes(plan: Plan) -> Iterator[Note]:
    """Yield what short inputs give, and longer ones, if the length changes."""
    after = plan.max_len_after
    conditions = ""
    if any(table.location.family.padding_effect for table in plan.tables):
        conditions += " if padded as before"
    if any(limit_notes(plan)):
        conditions += " unless they were truncated before"

    if not plan.creates_rows:
        longer = "are not supported"
        if all(table.location.table.longer_inputs == "get computed rows" for table in plan.tables):
            longer = "get computed rows"
        same = f"Inputs up to {after} tokens give identical outputs{conditions}"
        yield Note(Code.SHORT_INPUTS, Level.NOTE, f"{same}; longer inputs {longer}.")
        return

    extended = [table for table in plan.tables if table.is_extended]
    if all(table.rope and not scales(table) for table in extended):
        table = next(table for table in plan.tables if table.rope)
        served = table.lengths.served if table.lengths else table.max_len_before
        start = f"The settings already serve {served} tokens."
        if after > served:
            start = f"Nothing scales: beyond {served} tokens, {BEYOND[table.scheme]}."
        text = (
            f"{start} No position changes its meaning: inputs up to {after} tokens give identical "
            f"outputs{conditions}."
        )
        yield Note(Code.SHORT_INPUTS, Level.NOTE, text)
        return
    yield from _untrained_notes(plan, conditions)


def _untrained_notes(plan: Plan, conditions: str) -> Iterator[Note]:
    """Yield what short inputs give, and longer ones, where a method creates the positions.

    Args:
        plan: What changes.
        conditions: Under which outputs for short inputs stay, as clauses.
    """
    kept = old_lengths(plan)
    if plan.tables[0].rope:
        kept = str(same_up_to(plan.tables[0]))
    longer = plan.main_choice.facts.long_inputs
    if plan.main_choice.name == LIMITS:
        longer = BEYOND[next(table.scheme for table in plan.tables if table.choice is not None)]
    yield Note(
        Code.UNTRAINED,
        Level.NOTE,
        f"{NOT_TRAINED.format(plan.max_len_after)} Beyond {kept}, {longer}.",
    )
    if plan.keeps_learned_rows:
        text = f"Inputs up to {kept} tokens give identical outputs{conditions}."
    elif plan.rounds_short_inputs:
        same = f"Inputs up to {kept} tokens give the same outputs within float32 rounding"
        text = f"{same}{conditions}."
    else:
        choice = plan.main_choice
        effect = choice.facts.short_inputs
        if any(switches(table) for table in plan.tables):
            effect = "the attention factor applies to short inputs too, so their outputs change"
        if choice.facts.keeps_learned_rows and not choice.keeps_learned_rows:
            effect = "learned rows are replaced, so outputs for short inputs change too"
        text = f"{effect[:1].upper()}{effect[1:]}"
        if choice.keep_first:
            text += f" (the first {choice.keep_first} rows are kept)"
        text += "."
    yield Note(Code.SHORT_INPUTS, Level.NOTE, text)


def keeping_notes(plan: Plan, for_runtime: RuntimePlan | None) -> Iterator[Note]:
    """Yield how to keep outputs for short inputs, if the default method changes them.

    It is not part of the note on these outputs, which cards have: a recipe names the method.
    """
    is_mixed = len({table.has_rows for table in plan.tables}) > 1  # no method applies to all
    is_default = plan.settings.choice.name == DEFAULT_METHOD
    keeps = plan.keeps_learned_rows or plan.rounds_short_inputs
    if is_mixed or keeps or not is_default or not plan.creates_rows:
        return
    if not plan.has_rows:
        flag = _switch_flag(plan, for_runtime)
    elif len({table.max_len_before for table in plan.tables}) == 1:
        flag = f"--keep-first {plan.max_len_before}"
    else:
        flag = f"--method {COPY}, which is mostly worse for long ones"
    if flag:
        yield Note(Code.KEEPING, Level.NOTE, f"To keep outputs for short inputs, use {flag}.")


def _switch_flag(plan: Plan, for_runtime: RuntimePlan | None) -> str:
    """Return the flag of the method that gives rotary positions two lists of factors.

    It is followed by the engines that apply it. Empty if the model, the files or the requested
    engine do not.
    """
    table = plan.tables[0]
    facts = table.location.table.rope
    is_applied = facts is not None and SWITCH in facts.methods
    if not is_applied or mistral_params(plan.checkpoint) is not None:
        return ""
    if not all(can_switch(item.before.parameters) for item in table.rope):
        return ""
    flag = f"--method {SWITCH}"
    folder = folder_facts(plan)
    if folder is None:
        return flag
    serving = list[str]()
    for item in runtime_statements(replace(folder, positions=SWITCHED)):
        if item.outcome is RuntimeOutcome.SERVES and not item.ignores_short_list:
            serving.append(item.name)
    if for_runtime is not None:
        return flag if for_runtime.runtime.name in serving else ""
    if not serving:
        return flag
    return f"{flag} (right in {joined(serving)})"


def old_lengths(plan: Plan) -> str:
    """Return the tables' old lengths: one number if they agree, else each with its part."""
    lengths = {table.part: table.max_len_before for table in plan.tables}
    if len(set(lengths.values())) == 1:
        return str(plan.max_len_before)
    return " and ".join(f"{length} ({part})" for part, length in lengths.items())


def far_notes(plan: Plan, trained: int | None = None) -> Iterator[Note]:
    """Yield a warning if the length is further from the trained one than any measured as useful.

    Args:
        plan: What changes.
        trained: The trained length, if it is not that of the plan's tables: a twin has its new
            length already.
    """
    if trained is None:
        lengths = [
            table.lengths.served if table.lengths else table.max_len_before
            for table in plan.tables
            if table.is_extended
        ]
        trained = min(lengths, default=plan.max_len_after)
    after = plan.max_len_after
    most = FAR_FACTOR
    if MODULES in plan.checkpoint.copied:
        most = FAR_FACTOR_OF_SEARCH
    if after <= most * trained:
        return
    text = (
        f"{after} is {after / trained:.0f} times the trained length of {trained}. Nothing beyond 4 "
        "times was measured as useful for language models: there, untrained, perplexity is 3 to "
        "13 % higher than in sliding windows with yarn, and 21 to 62 % with new rows. For search, "
        "nothing beyond 16 times was."
    )
    yield Note(Code.FAR, Level.WARNING, text)


def growing_text_notes(tables: Sequence[TablePlan], *, generates: bool) -> Iterator[Note]:
    """Yield what happens to inputs that share a batch, or that cross the old length.

    Transformers chooses frequencies that follow the length by the longest sequence of each call.
    Where SmolLM2-135M crosses the trained length, its perplexity rises 55 times with `switch`, and
    by 78 % with `dynamic`, whose frequencies move less at once: docs/results.md.

    Args:
        tables: The planned ones.
        generates: Whether the model generates text, so that an input can grow.
    """
    for table in tables:
        becomes_dynamic = False
        for layers in table.rope:
            was_dynamic = layers.before.parameters[TYPE] == DYNAMIC
            becomes_dynamic |= layers.after[TYPE] == DYNAMIC and not was_dynamic
        if not switches(table) and not becomes_dynamic:
            continue
        length = same_up_to(table)
        text = (
            f"An input of up to {length} tokens gets the frequencies of long ones in a batch with "
            "a longer one: batch them apart."
        )
        yield Note(Code.PADDING, Level.NOTE, text)
        rope = table.location.table.rope
        drops_cache = rope is not None and rope.drops_cache
        effect = ""
        if switches(table) and not drops_cache:
            effect = "turns into noise, since its cached keys have the frequencies of short inputs"
        elif becomes_dynamic:
            effect = "gets worse, since its cached keys have the frequencies of shorter inputs"
        if generates and effect:
            text = f"A text that grows past {length} tokens in generate() {effect}"
            yield Note(
                Code.GENERATION, Level.WARNING, f"{text}: use --method {YARN} for such texts."
            )
