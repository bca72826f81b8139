"""How a table is trained on a text: the same in `resize --data` and as a candidate of `compare`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.errors import DataError, MethodError, counted
from ctxextend.evaluation.eval_model import ENCODER, ResizableFiles
from ctxextend.plan.plan import Plan
from ctxextend.recipe import Train
from ctxextend.tables.method_facts import FORMULA
from ctxextend.text_data import check_texts

if TYPE_CHECKING:
    from ctxextend.training.training_task import TrainingTask

WINDOWS_PER_STEP = 8  # of the old length, or as many tokens in whole texts
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


def tuning_settings(plan: Plan, data: tuple[str, ...], kind: str | None) -> Train:
    """Return the settings of the training; its steps follow from the time.

    Args:
        plan: The resize.
        data: The text.
        kind: Of the model, as its files state it; None if they do not.
    """
    settings = Train(
        data,
        steps=1,
        tokens=READ_TOKENS,
        trainable=rows_to_tune(plan),
        save="last",
    )
    if kind == ENCODER:
        return replace(settings, window=plan.max_len_before)
    # As many tokens per step, however long the texts are.
    texts = max(WINDOWS_PER_STEP * plan.max_len_before // plan.max_len_after, 1)
    return replace(settings, distill=1.0, batch_size=texts)


def open_tuning(files: ResizableFiles, plan: Plan, train: Train, folder: Path) -> "TrainingTask":
    """Tokenize the text that a table is tuned on into a folder, before the model is loaded.

    Args:
        files: The model before the resize.
        plan: The resize, with any method.
        train: From `tuning_settings`.
        folder: For the tokens.

    Raises:
        TrainingError: There are several processes, or a setting does not apply to the model.
        DataError: The text cannot be read, or has too few windows of the new length to train on,
            and others to decide by.
    """
    from ctxextend.comparison.in_memory import open_training
    from ctxextend.training.training_text import MIN_WHOLE_WINDOWS, ShortTextError

    check_texts(train.data, train.text_field)
    folder.mkdir(exist_ok=True)
    task: TrainingTask | None = None
    try:
        task = open_training(files, plan, train, folder)
        tokens = len(task.text.train.tokens)
    except ShortTextError as error:
        tokens = error.tokens
    length = plan.max_len_after - files.tokenizer.num_special
    required = 2 * MIN_WHOLE_WINDOWS
    windows = tokens // length
    if task is None or windows < required:
        message = (
            f"The text has {counted(windows, 'window')} of {length:,} tokens, but tuning a table "
            f"requires {required}: {MIN_WHOLE_WINDOWS} to train on, and {MIN_WHOLE_WINDOWS} that "
            "decide."
        )
        raise DataError(message, "Pass more text with --data, or use a smaller --to.")
    return task
