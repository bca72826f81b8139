"""How a table is trained on a text: the same in `resize --data` and as a candidate of `compare`."""

from typing import TYPE_CHECKING

from ctxextend.errors import DataError, MethodError
from ctxextend.plan.plan import Plan
from ctxextend.recipe import Train
from ctxextend.tables.method_facts import FORMULA

if TYPE_CHECKING:
    from ctxextend.training.training_task import TrainingTask

READ_TOKENS = 1_310_720  # of a text, at most: more than is trained on in minutes on a CPU


def check_tunable(plan: Plan, hint: str) -> None:
    """Check that the first table of a plan has rows that can be trained.

    Raises:
        MethodError: It has none, or its rows are fixed; with the hint.
    """
    table = plan.tables[0]
    if not table.has_rows:
        message = f"{table.location.scheme.capitalize()} positions have no rows to tune."
        raise MethodError(message, hint)
    if not table.is_stored or plan.choice_of(table).name == FORMULA:
        message = f"The rows of {table.name} follow a formula, so there is nothing to tune."
        raise MethodError(message, hint)


def rows_to_tune(plan: Plan) -> str:
    """Return which rows are trained, as `Train.trainable`: all but those that the method keeps."""
    table = plan.tables[0]
    keeps_rows = plan.choice_of(table).kept_rows(table.max_len_before) > 0
    return "new" if keeps_rows else "positions"


def tuning_settings(plan: Plan, data: tuple[str, ...]) -> Train:
    """Return the settings of the training; its steps follow from the time."""
    return Train(
        data,
        steps=1,
        tokens=READ_TOKENS,
        window=plan.max_len_before,
        trainable=rows_to_tune(plan),
        save="last",
    )


def check_enough_text(task: "TrainingTask") -> None:
    """Check that a text has windows of the new length to train on and others to decide by.

    Raises:
        DataError: It is too short.
    """
    from ctxextend.training.training_text import MIN_WHOLE_WINDOWS

    length = task.lengths.whole
    required = 2 * MIN_WHOLE_WINDOWS
    windows = len(task.text.train.tokens) // length
    if windows < required:
        message = (
            f"The text has {windows} windows of {length:,} tokens, but tuning a table requires "
            f"{required}: {MIN_WHOLE_WINDOWS} to train on, and {MIN_WHOLE_WINDOWS} that decide."
        )
        raise DataError(message, "Pass more text with --data, or use a smaller --to.")
