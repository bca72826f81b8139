"""The result of tuning a position table on a text."""

from dataclasses import dataclass
from typing import NamedTuple

from ctxextend.json_output import Result
from ctxextend.lab.statistics import Estimate


class PartLosses(NamedTuple):
    """Mean held-out losses before and after tuning, at some positions."""

    before: float
    after: float


@dataclass(frozen=True)
class TableTraining:
    """The training of a table: on whole texts and windows of them, or on windows only."""

    steps: int
    batch_size: int  # sequences per step
    window: int  # tokens of a sequence
    lr: float  # peak learning rate
    trainable: str  # ``positions``, or ``new`` where the method keeps learned rows
    improvement: Estimate  # how much lower the held-out loss is, paired by window
    is_kept: bool  # whether that is more than its interval, and the table is written
    # The losses of language models at positions that the base has, and at longer ones.
    short: PartLosses | None
    long: PartLosses | None
    windows: int  # held out, that decided
    length: int  # of each in tokens


@dataclass(frozen=True, eq=False, repr=False)
class Tuning(Result, shows=("training", "seconds")):
    """A position table that was tuned on a text.

    Losses of language models are nats per token on windows of the new length. Those of encoders are
    distances from the base's states and embeddings on windows of the old length, elsewhere.
    """

    training: TableTraining | None  # None if there was no time
    is_encoder: bool
    first_position: int  # that the base does not have
    budget: int  # seconds, as the user gave them
    seconds: float  # taken
    # The budget that suffices for a training; None if the time did.
    seconds_needed: float | None = None
