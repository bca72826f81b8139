"""How many steps the epochs of a training text have.

An epoch reads every sequence of the text that is not held out once; of pairs of texts and of
documents, it reads each positive once.
"""

import math

from ctxextend.evaluation.eval_model import ENCODER, ResizableFiles
from ctxextend.recipe import Train
from ctxextend.training.pairs import Documents, PairedText, Pairs, pairs_per_epoch
from ctxextend.training.train_data import SequenceSettings, Text, sequences_per_part
from ctxextend.training.training_text import SequenceLengths, TrainingText


def steps_of_epochs(
    files: ResizableFiles, settings: Train, epochs: float, text: TrainingText
) -> int:
    """Return the steps that epochs of a text have, at least one."""
    items = epochs * items_per_epoch(files, settings, text.train)
    return max(math.ceil(items / settings.batch_size), 1)


def items_per_epoch(files: ResizableFiles, settings: Train, text: Text | PairedText) -> int:
    """Return how many sequences or pairs an epoch of the text has, as training draws them."""
    lengths = SequenceLengths.of_run(files, settings)
    if isinstance(text, PairedText):
        return pairs_per_epoch(Pairs(text).num_positives, settings.batch_size)
    if settings.contrastive:
        sequences = SequenceSettings(
            special_before=files.tokenizer.before,
            special_after=files.tokenizer.after,
            length=lengths.length,
            usable_positions=lengths.span,
            kind=ENCODER,
        )
        documents = Documents(text, sequences, files.tokenizer.separator)
        return pairs_per_epoch(documents.num_positives, settings.batch_size)
    sizes = text.spans[:, 1] - text.spans[:, 0]
    return int(sequences_per_part(sizes[sizes >= lengths.text], lengths.text).sum())
