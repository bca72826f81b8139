"""Losses of held-out sequences one by one, so that those of two tables can be paired."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.lab.statistics import Estimate, estimate_ratio
from ctxextend.training.train_data import IGNORE_INDEX, NumberedItems

LONG_COLUMN = 1  # of positions that the base does not have; column 0 is of the others


@dataclass(frozen=True)
class SequenceLosses:
    """Losses of sequences, in the order of their numbers.

    Of language models, they are split by position. Of encoders, a sequence has one loss, which is
    in the column `LONG_COLUMN`.
    """

    nats: NDArray[np.float64]  # summed over tokens, shape (sequences, 2)
    tokens: NDArray[np.int64]  # shape (sequences, 2)

    @classmethod
    def merged(cls, parts: Sequence["SequenceLosses"]) -> "SequenceLosses":
        """Return the losses of all sequences, of which each of n processes read every nth one."""
        count = sum(len(part.nats) for part in parts)
        merged = cls(nats=np.zeros((count, 2)), tokens=np.zeros((count, 2), np.int64))
        for first, part in enumerate(parts):
            merged.nats[first :: len(parts)] = part.nats
            merged.tokens[first :: len(parts)] = part.tokens
        return merged

    def improvement(self, before: "SequenceLosses") -> Estimate:
        """Return how much lower the losses are than others of the same sequences, paired."""
        gained = (before.nats - self.nats).sum(axis=1)
        return estimate_ratio(gained, self.tokens.sum(axis=1))


def read_sequences(objective: Any, items: NumberedItems, numbers: Sequence[int]) -> SequenceLosses:
    """Return the losses of sequences, which are read one by one.

    Args:
        objective: A `LanguageModeling` or `Distillation`, in evaluation mode.
        items: The sequences.
        numbers: Which of them to read.
    """
    device = objective.model.device
    nats = np.zeros((len(numbers), 2))
    tokens = np.zeros((len(numbers), 2), np.int64)
    for row, number in enumerate(numbers):
        batch = {name: value[None].to(device) for name, value in items[number].items()}
        with torch.no_grad():
            result = objective(**batch)
        if "sums" in result:
            sums, counts = result["sums"].double().cpu().numpy()
            nats[row] = sums
            tokens[row] = counts
        else:
            count = 1  # a text of an encoder
            if "labels" in batch:
                count = int((batch["labels"] != IGNORE_INDEX).sum())
            nats[row, LONG_COLUMN] = float(result["loss"]) * count
            tokens[row, LONG_COLUMN] = count
    return SequenceLosses(nats=nats, tokens=tokens)
