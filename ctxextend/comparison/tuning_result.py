"""The result of tuning a position table on a text."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ctxextend.comparison.comparison_result import Trial
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.json_output import Result, not_in_json


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
    improvement: Estimate  # of the held-out loss by training only, paired by window
    is_kept: bool  # whether it was better by more than its interval, and is written


@dataclass(frozen=True, eq=False, repr=False)
class Tuning(Result, shows=("method", "steps", "seconds")):
    """A position table that was tuned on a text: the choice of its rows, then their training.

    Losses of language models are nats per token on windows of the new length. Those of encoders are
    distances from the base's states and embeddings on windows of the old length, elsewhere.
    """

    before: Trial  # the rows without a text
    chosen: Trial  # the rows that training started from
    # The candidates in order, `before` first, on windows that chose among them and decided nothing.
    trials: tuple[Trial, ...]
    # How much lower the held-out loss of `chosen` is than that of `before`; None if it is the same.
    lead: Estimate | None
    training: TableTraining | None  # None if there was no time, or nothing was trained
    # How much lower the held-out loss of the written table is than that of `before`, paired by
    # window; None if it is the same.
    improvement: Estimate | None
    # The losses of language models at positions that the base has, and at longer ones.
    short: PartLosses | None
    long: PartLosses | None
    windows: int  # held out, that decided
    length: int  # of each in tokens
    is_encoder: bool
    first_position: int  # that the base does not have
    budget: int  # seconds, as the user gave them
    seconds: float  # taken
    # The budget that suffices for a training; None if the time did.
    seconds_needed: float | None = None
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    json_properties: ClassVar = ("method", "steps")

    @property
    def method(self) -> str:
        """The method of the rows before training, for `resize`: ``bands:sigma=4,gain=1.2``."""
        return self.chosen.method

    @property
    def steps(self) -> int:
        """The steps of the training that is written; 0 if none is."""
        if self.training is None or not self.training.is_kept:
            return 0
        return self.training.steps
