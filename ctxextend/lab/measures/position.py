"""Loss by position, on all tokens of a window."""

from collections.abc import Iterator

from ctxextend.lab.eval_model import CAUSAL, MASKED
from ctxextend.lab.losses import by_position
from ctxextend.lab.measures import measure
from ctxextend.lab.reader import Reader
from ctxextend.lab.scores import NATS, Score
from ctxextend.lab.texts import Texts


@measure("Loss by position", CAUSAL, MASKED)
def position(reader: Reader, texts: Texts) -> Iterator[Score]:
    """Yield the losses of whole windows, and of each part of them."""
    for score in by_position(reader, texts, "position", "loss", NATS):
        if score.part is None:
            reader.memory[score.reading] = score.values  # for the loss by context length
        yield score
