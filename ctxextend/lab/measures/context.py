"""Loss by context length, on the same tokens at each length.

At least 3/4 of the context precede each token that a causal model predicts; a masked model has at
least 3/8 of it on either side.
"""

from collections.abc import Iterator

from ctxextend.lab.eval_model import CAUSAL, MASKED
from ctxextend.lab.losses import late_targets, read_losses
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import NATS, ONE_PASS, Score
from ctxextend.lab.texts import Texts

# Share of a chunk that is scored, so that all targets have nearly the full context.
CHUNK_SHARE = 1 / 4


@measure("Loss by context length", CAUSAL, MASKED)
def context(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the losses at each context length that the model can read."""
    longest = min(reader.max_len, texts.length)
    lengths = {length for length in texts.lengths if length <= longest}
    if reader is texts.base:  # all contexts of a model are compared with the base's longest one
        lengths.add(longest)
    targets = late_targets(reader, texts)
    for length in sorted(lengths, reverse=True):
        if length == texts.length and reader.kind == CAUSAL and ONE_PASS in reader.memory:
            # The last tokens of the windows that the loss by position has read.
            losses = [of_window[-len(targets.scored) :] for of_window in reader.memory[ONE_PASS]]
        else:
            losses = read_losses(reader, texts, targets, length, CHUNK_SHARE)
        yield Score(
            model=reader.name,
            measure="context",
            name="loss",
            reading=ONE_PASS,
            length=length,
            values=losses,
            tokens=length,
            unit=NATS,
        )
