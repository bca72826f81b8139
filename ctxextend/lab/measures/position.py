"""Loss by position, on all tokens of a window.

A model reads each window in one pass. A base, whose context is shorter, reads it in windows of its
own length, back to back or overlapping by half, as a user without the longer context would.
"""

import math
from collections.abc import Iterator

import numpy as np

from ctxextend.lab.eval_model import CAUSAL, MASKED
from ctxextend.lab.losses import all_targets, read_losses
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import NATS, ONE_PASS, SEPARATE, SLIDING, Score
from ctxextend.lab.texts import Texts

SLIDING_SHARE = 1 / 2  # of a sliding window that is scored: windows overlap by half
PARTS = 16  # of a window


@measure("Loss by position", CAUSAL, MASKED)
def position(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the losses of whole windows, and of each part of them."""
    shares = {ONE_PASS: 1.0}
    if reader.max_len < texts.length:
        shares = {SLIDING: SLIDING_SHARE, SEPARATE: 1.0}
    targets = all_targets(reader, texts)
    before = len(reader.model.tokenizer.before)
    width = math.ceil(texts.length / PARTS)
    part_of = [(indices + before) // width for indices in targets.indices]
    for reading, share in shares.items():
        context = min(reader.max_len, texts.length)
        losses = read_losses(reader, texts, targets, context, share)
        reader.memory[reading] = losses
        whole = Score(
            model=reader.name,
            measure="position",
            name="loss",
            reading=reading,
            length=context,
            values=losses,
            tokens=texts.length,
            unit=NATS,
        )
        yield whole
        for number in np.unique(np.concatenate(part_of)).tolist():
            pairs = zip(losses, part_of, strict=True)
            yield whole.of_part(
                (number * width, min((number + 1) * width, texts.length)),
                [of_window[own == number] for of_window, own in pairs],
            )
