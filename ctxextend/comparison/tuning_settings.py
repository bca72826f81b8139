"""How `resize --tune` trains a table on a text."""

from dataclasses import replace

from ctxextend.errors import DataError, MethodError, ResizeError, counted
from ctxextend.held_out import read_ids
from ctxextend.lab.eval_model import ENCODER
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.plan import Plan
from ctxextend.settings import Train
from ctxextend.tables.method_facts import FORMULA

WINDOWS_PER_STEP = 8  # of the old length, or as many tokens in whole texts
READ_TOKENS = 1_310_720  # of a text, at most: more than is trained on in minutes on a CPU


def check_tunable(plan: Plan) -> None:
    """Check that a plan creates rows that can be trained.

    Raises:
        MethodError: The positions have no rows, or their rows are fixed.
        ResizeError: The new length creates none.
    """
    table = plan.changes[0]
    hint = "Remove --tune."
    if not table.positions.rows:
        message = f"{table.positions.scheme.capitalize()} positions have no rows to tune."
        raise MethodError(message, hint)
    if not table.dtype or (table.choice or plan.settings.choice).name == FORMULA:
        message = f"The rows of {table.name} follow a formula, so there is nothing to tune."
        raise MethodError(message, hint)
    if table.rows_after <= table.rows_before:
        source = plan.model.ref.source
        message = (
            f"{source} has a context length of {plan.max_len_before} tokens, so --to "
            f"{plan.max_len_after} creates no new rows to tune."
        )
        raise ResizeError(message, "Use a larger --to, or remove --tune.")


def check_tuning_text(plan: Plan, tokenizer: TextTokenizer, data: tuple[str, ...]) -> None:
    """Check that a text has windows of the new length to train on, and others to decide by.

    Raises:
        DataError: It has too few.
        CheckpointError: The model has no tokenizer.
    """
    from ctxextend.training.training_text import MIN_WHOLE_WINDOWS

    length = plan.max_len_after - tokenizer.num_special
    required = 2 * MIN_WHOLE_WINDOWS
    texts = read_ids(
        data, Train.text_field, tokenizer.encode, tokenizer.separator, required * length, []
    )
    windows = sum(map(len, texts)) // length
    if windows < required:
        message = (
            f"The text has {counted(windows, 'window')} of {length:,} tokens, but tuning a table "
            f"requires {required}: {MIN_WHOLE_WINDOWS} to train on, and {MIN_WHOLE_WINDOWS} that "
            "decide."
        )
        raise DataError(message, "Pass more text with --tune, or use a smaller --to.")


def tuning_settings(plan: Plan, data: tuple[str, ...], kind: str | None) -> Train:
    """Return the settings of the training; its steps follow from the time.

    All rows are trained but those that the method keeps.

    Args:
        plan: The resize.
        data: The text.
        kind: Of the model.
    """
    table = plan.changes[0]
    trainable = "positions"
    if (table.choice or plan.settings.choice).kept_rows(table.max_len_before) > 0:
        trainable = "new"
    settings = Train(data, steps=1, tokens=READ_TOKENS, trainable=trainable, save="last")
    if kind == ENCODER:
        return replace(settings, window=plan.max_len_before)
    # As many tokens per step, however long the texts are.
    texts = max(WINDOWS_PER_STEP * plan.max_len_before // plan.max_len_after, 1)
    return replace(settings, distill=1.0, batch_size=texts)
