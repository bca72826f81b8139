"""What a comparison of methods found, and a calibration of one, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.errors import counted
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED
from ctxextend.evaluation.evaluation_result import SLIDING, Estimate, Evaluation
from ctxextend.json_output import Result, not_in_json
from ctxextend.tables.method_facts import method_text

# What methods are ranked by: language models by their loss, less being better, and encoders by the mean of 1 / rank of
# the document that a query was cut from, more being better.
LOSS, RECIPROCAL_RANK = "loss", "reciprocal_rank"
METRICS = {CAUSAL: LOSS, MASKED: LOSS, ENCODER: RECIPROCAL_RANK}
TRAINED_PARTS = {"new": "the new rows", "positions": "the position table", "all": "everything"}


@dataclass(frozen=True)
class Outcome:
    """What a method was worth, before or after training."""

    # Loss over all positions of windows as long as the new length, in nats per token, or the mean reciprocal rank.
    score: Estimate
    # How much worse than the best row's at the same stage, paired by window or by query; None for the best itself.
    delta: Estimate | None
    # Loss minus the base's on the same tokens, with as much context as the base reads at most, paired: what texts pay
    # that fitted before. None where no loss is measured, or that context was not.
    short: Estimate | None
    evaluation: Evaluation

    json_properties: ClassVar = ("is_tied",)

    @property
    def is_tied(self) -> bool:
        """Whether it is the best, or tied with it: the 95 % interval of `delta` contains 0."""
        return self.delta is None or self.delta.sign == 0

    @property
    def against_base(self) -> Estimate | None:
        """Loss minus that of the base in pieces that overlap by half, paired by token; None where not measured."""
        positions = self.evaluation.positions
        return None if positions is None else positions.changes.get(SLIDING)


@dataclass(frozen=True, eq=False, repr=False)
class Row(Result, shows="method keeps_learned_rows"):
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


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result, shows="source max_len_before max_len_after metric complete"):
    """Methods on one model, one text and one seed."""

    source: str  # the model, as the user named it
    model_type: str
    kind: str  # ``causal``, ``masked`` or ``encoder``
    table: str  # the position table's name
    max_len_before: int  # tokens that the model reads at once
    max_len_after: int  # tokens that each row reads at once
    metric: str  # `LOSS` or `RECIPROCAL_RANK`
    # The same score of the base, reading the same tokens in pieces that overlap by half, or documents in chunks; None
    # until a method was measured.
    base: Estimate | None
    norms: tuple[float, ...]  # of the base's rows from position 0 on, shape (n,)
    rows: tuple[Row, ...]  # the methods, the best first, by `Row.final`
    left_out: Mapping[str, str] = field(default_factory=dict)  # methods among all that cannot be, with why not
    steps: int = 0  # of training; 0 for none
    trainable: str = "positions"  # what was trained
    seq_len: int | None = None  # positions that a training sequence reached over; None without training
    documents: int = 0  # documents of the text that were read
    tokens: int = 0  # of the windows that were cut from them
    seed: int = 0  # what masks, numbers and the order of training were drawn with
    precision: str = "float32"  # the dtype that models were run in
    complete: bool = True  # whether all that was asked for was measured
    seconds: float = 0.0
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses, of which less is better."""
        return self.metric == LOSS

    @property
    def trained_part(self) -> str:
        """What was trained, in words."""
        return TRAINED_PARTS.get(self.trainable, self.trainable)

    @property
    def after_training(self) -> str:
        """After what methods were measured, in words; nothing where none was trained."""
        return f"after {counted(self.steps, 'step')} of training {self.trained_part}" if self.steps else ""


@dataclass(frozen=True)
class Trial:
    """Settings of `bands`, and what they give."""

    settings: Mapping[str, Any]  # by name
    score: Estimate  # loss in nats per token, or the mean reciprocal rank

    json_properties: ClassVar = ("method",)

    @property
    def method(self) -> str:
        """The method with these settings, as `resize` takes it."""
        return method_text("bands", self.settings)


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result, shows="method metric windows length"):
    """What a text says of the numbers of `bands`."""

    metric: str  # `LOSS` or `RECIPROCAL_RANK`
    before: Trial  # what the table alone says
    after: Trial  # what the text says; the same where nothing was better by more than a standard error
    # How much better that is, paired by window or document, 0 or more. It was chosen on this text: on other text it is
    # a little less.
    better_by: Estimate
    tried: tuple[Trial, ...]  # all that was tried, in order; `before` is the first
    windows: int  # windows of a language model, or documents of an encoder
    length: int  # tokens of each, special tokens included
    seconds: float
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses, of which less is better."""
        return self.metric == LOSS

    @property
    def method(self) -> str:
        """What was chosen, as `resize` and `plan_resize` take it: ``bands:sigma=4,gain=1.2``."""
        return self.after.method
