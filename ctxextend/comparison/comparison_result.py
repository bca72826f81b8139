"""What a comparison of methods found, and a calibration of one, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED
from ctxextend.evaluation.evaluation_result import Estimate, Evaluation
from ctxextend.json_output import not_in_json

# What methods are ranked by: language models by their loss, less being better, and encoders by the mean of 1 / rank of
# the document that a query was cut from, more being better.
LOSS, RECIPROCAL_RANK = "loss", "reciprocal_rank"
METRICS = {CAUSAL: LOSS, MASKED: LOSS, ENCODER: RECIPROCAL_RANK}

# Standard errors within which two methods are not told apart.
ERRORS = 2.0


@dataclass(frozen=True)
class Outcome:
    """What a method was worth, before or after training."""

    # Loss over all positions of windows as long as the new length, in nats per token, or the mean reciprocal rank.
    score: Estimate
    # How much worse than the best row's at the same stage, paired by window or by query; None for the best itself.
    behind: Estimate | None
    # Loss minus the base's on the same tokens, with as much context as the base reads at most, paired: what texts pay
    # that fitted before. None where no loss is measured, or that context was not.
    short: Estimate | None
    evaluation: Evaluation

    json_properties: ClassVar = ("is_level",)

    @property
    def is_level(self) -> bool:
        """Whether it is the best, or no more than two standard errors behind it."""
        return self.behind is None or self.behind.mean <= ERRORS * (self.behind.error or 0.0)


@dataclass(frozen=True)
class Row:
    """One method."""

    method: str  # its name, with its flags as they are typed where any were given: ``linear --keep-first 20``
    keeps_learned_rows: bool  # whether every learned row stays as it is, so that short texts give what they gave
    recipe: str  # that makes its checkpoint, YAML
    norms: tuple[float, ...]  # of the rows of its table from position 0 on, shape (m,)
    untrained: Outcome
    trained: Outcome | None  # after the training; None where none was asked for
    seconds: float

    @property
    def final(self) -> Outcome:
        """What it is ranked by: after the training, where there was one."""
        return self.trained or self.untrained


@dataclass(frozen=True)
class Comparison:
    """Methods on one model, one text and one seed.

    Attributes:
        source: The model.
        family: Its model type.
        kind: ``causal``, ``masked`` or ``encoder``.
        table: The position table's name.
        max_len_before: Tokens that it reads at once.
        max_len_after: Tokens that each row reads at once.
        metric: `LOSS` or `RECIPROCAL_RANK`.
        original: The same score of the model as it is, reading the same tokens in pieces that overlap by half, or
            documents in chunks; None until a method was measured.
        norms: Norms of the model's own rows, offset rows left out, shape (n,).
        rows: The methods, the best first, by `Row.final`.
        left_out: Methods that were asked for and cannot be, with why not.
        steps: Steps of training; 0 for none.
        trainable: What was trained.
        seq_len: Positions that a training sequence reached over; None without training.
        documents: Documents of the text that were read.
        tokens: Tokens of the windows that were cut from them.
        seed: What masks, numbers and the order of training were drawn with.
        precision: The dtype that models were run in.
        complete: Whether all that was asked for was measured.
        seconds: How long it took.
        warnings: What should not be missed.
        notes: What should be known.
    """

    source: str
    family: str
    kind: str
    table: str
    max_len_before: int
    max_len_after: int
    metric: str
    original: Estimate | None
    norms: tuple[float, ...]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    trainable: str = "positions"
    seq_len: int | None = None
    documents: int = 0
    tokens: int = 0
    seed: int = 0
    precision: str = "float32"
    complete: bool = True
    seconds: float = 0.0
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses, of which less is better."""
        return self.metric == LOSS


@dataclass(frozen=True)
class Trial:
    """Numbers of `bands`, as in `Resize`, and what they give."""

    sigma: float | None
    repeat: tuple[int, int] | None
    gain: float | None
    score: Estimate  # loss in nats per token, or the mean reciprocal rank

    @property
    def flags(self) -> dict[str, Any]:
        """The numbers, by the names that `resize` and `plan_resize` take."""
        return {"sigma": self.sigma, "repeat": self.repeat, "gain": self.gain}


@dataclass(frozen=True)
class Calibration:
    """What a text says of the numbers of `bands`.

    Attributes:
        metric: `LOSS` or `RECIPROCAL_RANK`.
        before: What the table alone says.
        after: What the text says; the same where nothing was better by more than a standard error.
        better_by: How much better that is on this text, paired by window or document, above 0 or 0. It was chosen on
            this text: on other text it is a little less.
        tried: All that was tried, in order; `before` is the first.
        windows: Windows of a language model, or documents of an encoder.
        length: Tokens of each, special tokens included.
        seconds: How long it took.
        notes: What should be known.
    """

    metric: str
    before: Trial
    after: Trial
    better_by: Estimate
    tried: tuple[Trial, ...]
    windows: int
    length: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses, of which less is better."""
        return self.metric == LOSS

    @property
    def flags(self) -> dict[str, Any]:
        """The numbers, by the names that `resize` and `plan_resize` take."""
        return self.after.flags
