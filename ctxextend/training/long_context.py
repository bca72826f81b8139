"""How much of a training text can teach a model its new positions."""

from collections.abc import Iterator

import numpy as np

from ctxextend.training.train_data import Text, consecutive_starts
from ctxextend.training.train_result import LongContext
from ctxextend.training.training_task import TrainingTask

LITTLE = 0.01  # a share of tokens that teaches next to nothing


def count_long_context(task: TrainingTask) -> LongContext | None:
    """Count the tokens with more text of their document before them than the base can read.

    They are counted in sequences that follow each other from the start of each part of the text;
    those of a run start at random tokens. None if the length of the base is not known, if sequences
    use no longer positions, and for contrastive training, which reads texts one by one.
    """
    length = task.short_positions
    text = task.text.train
    if length is None or not isinstance(text, Text) or task.settings.contrastive:
        return None
    size = task.lengths.text
    separator = task.files.tokenizer.separator
    sizes = text.spans[:, 1] - text.spans[:, 0]
    starts = consecutive_starts(text.spans[:, 0], sizes // size, size)
    count = 0
    for start in starts:
        sequence = text.tokens[start : start + size]
        ends = np.array([size])
        if separator is not None:
            ends = np.append(np.flatnonzero(sequence == separator) + 1, size)
        parts = np.diff(ends, prepend=0)
        count += int(np.maximum(parts - length, 0).sum())
    return LongContext(
        base_length=length,
        tokens=len(starts) * size,
        long_tokens=count,
        has_documents=separator is not None,
    )


def long_context_warnings(task: TrainingTask, context: LongContext | None) -> Iterator[str]:
    """Yield a warning if hardly any token of the text needs the new positions.

    Windows are placed at random positions, and train all of them on short contexts.
    """
    if context is None or task.length < task.span or context.share >= LITTLE:
        return
    yield (
        f"{context}: such a text teaches hardly anything about what is farther away. Pass longer "
        "documents with --data, such as whole books or files."
    )
