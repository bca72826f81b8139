"""How well a causal language model finds what its input has said before: a passage comes back.

Small models answer no questions, but they copy. An input ends with a passage that also stands a
quarter into it; another input has a different passage there. The gain is how much lower the loss is
on the passage at the end, without the tokens that only say which passage it is, paired by input.
Olsson et al. 2022 (arXiv:2209.11895) call the heads that do this induction heads.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.long_inputs import Ids, input_losses
from ctxextend.lab.statistics import Estimate, estimate

__all__ = ["CUE", "INPUTS", "PASSAGE", "passage_gain"]

INPUTS = 128
PASSAGE = 32  # tokens
CUE = 8  # tokens at the start of a passage that are not scored
DEPTH = 0.25  # of the passage in the input
SEED = 0


class Pair(NamedTuple):
    """Two inputs that end with the same passage."""

    repeated: Ids
    new: Ids


def passage_gain(folder: Path, ids: Ids, length: int) -> Estimate:
    """Return the nats per token that a model gains from having read a passage before.

    Args:
        folder: The model.
        ids: Tokens to take passages and the text around them from.
        length: Tokens of an input.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train(False)
    gains: list[NDArray[np.float64]] = []
    for pair in _pairs(ids, length):
        gain = input_losses(model, pair.new) - input_losses(model, pair.repeated)
        gains.append(gain[CUE - PASSAGE :].astype(np.float64))
    return estimate(gains)


def _pairs(ids: Ids, length: int) -> Iterator[Pair]:
    """Yield pairs of inputs from random places of a text, the same for all models."""
    random = np.random.default_rng(SEED)
    depth = int(DEPTH * length)
    around = length - 2 * PASSAGE
    for _ in range(INPUTS):
        passage = _piece(random, ids, PASSAGE)
        other = _piece(random, ids, PASSAGE)
        text = _piece(random, ids, around)
        before = text[:depth]
        after = text[depth:]
        repeated = np.concatenate([before, passage, after, passage])
        new = np.concatenate([before, other, after, passage])
        yield Pair(repeated=repeated, new=new)


def _piece(random: np.random.Generator, ids: Ids, size: int) -> Ids:
    start = random.integers(len(ids) - size)
    return ids[start : start + size]
