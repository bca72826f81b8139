"""Warnings about limits that a plan raises, and about padding lengths."""

from collections.abc import Iterator

from ctxextend.plan.plan import Plan
from ctxextend.plan.trained_length import lower_stated_length, may_lack_scaling
from ctxextend.tables.method_facts import LIMITS


def low_limits(plan: Plan, *, old_length: int | None = None) -> Iterator[str]:
    """Yield a warning if limits below the old length are raised, which changes outputs.

    Args:
        plan: What changes.
        old_length: If it is not that of the plan: a twin has its new length already.
    """
    if old_length is None:
        old_length = plan.max_len_before
    if not (plan.creates_rows or plan.settings.fix_limits):
        return
    raised = []
    for edit in plan.edits:
        is_number = edit.is_limit and isinstance(edit.before, int)
        if is_number and edit.before < old_length:
            raised.append(f"{edit.file} {edit.key} {edit.before}")
    if raised:
        what = "table's" if plan.has_rows else "model's"
        yield (
            f"Limits below the {what} {old_length} positions are raised "
            f"({', '.join(raised)}): inputs that were truncated there give different outputs now."
        )


def missing_scaling(plan: Plan) -> Iterator[str]:
    """Yield a warning if a lower limit may state the length of the training of a rotary model.

    Its own length may have been raised by hand, and no scaling is planned up to it.
    """
    if not (plan.creates_rows or plan.settings.fix_limits):
        return
    for table in plan.tables:
        is_stated_by_user = any(layers.choice.name == LIMITS for layers in table.rope)
        if is_stated_by_user or not may_lack_scaling(table.location, plan.checkpoint):
            continue
        before = table.max_len_before
        lower = lower_stated_length(table.location, plan.checkpoint, before)
        if lower is not None and lower < table.max_len_after:
            yield (
                f"{table.location.file} {table.location.config_key} states {before} tokens "
                f"without scaling: if the model was trained at {lower}, pass --trained-length "
                f"{lower}, which scales it."
            )


def padding_warnings(plan: Plan) -> Iterator[str]:
    """Yield a warning for each table of a model whose outputs depend on the padding length."""
    for table in plan.tables:
        family = table.location.family
        if not family.padding_effect or not table.is_changed:
            continue
        before = table.max_len_before
        after = table.max_len_after
        condition = (
            "short texts give the same outputs only if padded as before, for example with "
            f"padding='max_length', max_length={before}"
        )
        if table.keeps_padding:
            files = f"Tokenizer files stay as they are: for longer texts, pass max_length={after}."
        else:
            files = f"Texts padded to {after} tokens give other outputs."
        yield f"{family.model_type} {family.padding_effect}: {condition}. {files}"
