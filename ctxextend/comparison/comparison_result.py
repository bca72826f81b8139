"""Results of a comparison of methods, and of a search for settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.comparison.metrics import LOSS, METRICS
from ctxextend.errors import size_text
from ctxextend.evaluation.evaluation_result import (
    MIN_SAMPLES,
    SLIDING,
    DocumentScores,
    Estimate,
    Evaluation,
    SearchResult,
)
from ctxextend.json_output import Result, not_in_json
from ctxextend.tables.method_facts import DEFAULT_METHOD, SWITCH, method_text


@dataclass(frozen=True)
class Outcome:
    """The result of a method or of a checkpoint, untrained or trained.

    What is measured depends on the kind of the model, and on what is compared:

    - Language models: the score is the loss over all positions of windows of the new length, in
      nats per token. The cost on short inputs is the loss minus the base's on the same tokens at
      the base's context length, paired by token.
    - Encoders: the score is the mean reciprocal rank, or nDCG@10 in a search set. The cost on short
      inputs is only measured of checkpoints: 1 - cosine of embeddings to the base's, or without a
      base to those of the first checkpoint.
    """

    score: Estimate
    # How much worse than the best row of the same stage, paired by window or query; None for the
    # best.
    delta: Estimate | None
    short_inputs: Estimate | None  # the cost on short inputs; None if not measured
    evaluation: Evaluation

    json_properties: ClassVar = ("is_tied",)

    @property
    def is_tied(self) -> bool:
        """Whether it is the best or tied with it: the 95 % interval of `delta` contains 0."""
        return self.delta is None or self.delta.sign == 0

    @property
    def against_base(self) -> Estimate | None:
        """The score minus that of the base in pieces, paired; None if it was not measured.

        Of encoders, the pieces are chunks of whole documents; `document_scores` also has chunks of
        the text that the model reads. A loss below that of the base is better, any other score
        above it.
        """
        evaluation = self.evaluation
        if evaluation.positions is not None:
            return evaluation.positions.changes.get(SLIDING)
        if self.document_scores is not None:
            return self.document_scores.against_chunks
        return None

    @property
    def document_scores(self) -> DocumentScores | None:
        """The scores in a search set, or else of document retrieval; None if not measured."""
        return self.evaluation.search or self.evaluation.retrieval


@dataclass(frozen=True)
class CheckpointFacts:
    """What a checkpoint is, and what it costs to run."""

    source: str  # the reference that the user passed
    model_type: str
    # of positions: ``learned``, ``sinusoidal``, ``rotary``, ``ALiBi``, ``relative``, ``none``, or
    # ``-`` if it is unknown
    scheme: str
    max_len: int  # context length in tokens
    parameters: int
    bytes: int  # of its weights in files
    peak_bytes: int | None  # memory, weights included, while it reads windows; None if unknown
    tokens_per_second: float  # in forward passes on windows, without the LM head

    @property
    def cells(self) -> Mapping[str, tuple[str, float | None]]:
        """The facts by column of a table, as text and as a number."""
        return {
            "positions": (self.scheme, None),
            "context": _count_cell(self.max_len),
            "parameters": _count_cell(self.parameters),
            "tokens/s": _count_cell(self.tokens_per_second),
            "weights": _size_cell(self.bytes),
            "memory": _size_cell(self.peak_bytes),
        }


def _count_cell(count: float) -> tuple[str, float]:
    return f"{count:,.0f}", count


def _size_cell(size: int | None) -> tuple[str, int | None]:
    """Return a size in bytes as text and number; the text is a dash if it is unknown."""
    return size_text(size) if size else "-", size


@dataclass(frozen=True)
class TuningSteps:
    """How long the table of a candidate was trained on the text."""

    steps: int  # that fitted the budget
    seconds: float  # taken, to plan the steps too
    budget: int  # seconds, as the user gave it


@dataclass(frozen=True, eq=False, repr=False)
class Row(Result, shows=("method", "keeps_learned_rows")):
    """One method, or one checkpoint."""

    # Its name, with the flags given, if any: ``linear --keep-first 20``, and ``+tuned`` if its
    # table was trained; of a checkpoint, its short name.
    method: str
    # whether learned rows do not change, so that short inputs give identical outputs
    keeps_learned_rows: bool
    recipe: str  # YAML that reproduces its checkpoint; empty for a checkpoint
    untrained: Outcome  # before the training of ``steps``; of a tuned method, after tuning
    trained: Outcome | None  # after the training of ``steps``; None without
    seconds: float
    checkpoint: CheckpointFacts | None = None  # None for a method
    tuned: TuningSteps | None = None  # None for a method that is not tuned

    @property
    def final(self) -> Outcome:
        """The result that ranks the method: trained if available."""
        return self.trained or self.untrained


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result, shows=("source", "max_len_before", "max_len_after", "metric", "complete")):
    """Methods on one model, or checkpoints side by side, on one text and one seed.

    What is compared decides what some fields mean:

    - Methods: `source` is the reference of the checkpoint that the user passed. The base is this
      checkpoint as it is: `max_len_before` is its context length, and `base` its score on the same
      text in pieces: in sliding windows that overlap by half, or with whole documents in chunks.
    - Checkpoints (`row_type`): `source` is their common base, or empty; `model_type`, `table` and
      `auto` are empty. `max_len_before` is the context length of the base or, without one, the
      length of short inputs; `max_len_after` is the length of the windows that they read.
    """

    source: str
    model_type: str
    kind: str  # ``causal``, ``masked`` or ``encoder``
    table: str  # tensor name of the position table
    max_len_before: int  # in tokens
    max_len_after: int  # context length of each row in tokens
    metric: str  # a key of `METRICS`
    base: Estimate | None  # a score; None until a row was measured, or without a base
    rows: tuple[Row, ...]  # best first, by `Row.final`
    row_type: str = "method"  # or ``checkpoint``
    is_quick: bool = False  # whether a few methods were compared on little text, for advice
    next_command: str = ""  # `resize` of the base with the recommended method
    auto: str = ""  # the method that `auto` takes for this resize
    skipped: Mapping[str, str] = field(default_factory=dict)  # skipped methods, with the reason
    steps: int = 0  # of training; 0: no training
    trainable: str = "positions"  # which parameters were trained
    seq_len: int | None = None  # length of training sequences in positions; None without training
    documents: int = 0  # documents read
    tokens: int = 0  # tokens of the windows cut from them, special tokens included
    # what limited the text: ``tokens``, ``time``, or its own end, ``text``; empty without text
    limited_by: str = ""
    seed: int = 0  # for masks, needles and the order of training
    precision: str = "float32"  # dtype of the forward passes
    complete: bool = True  # False if interrupted
    seconds: float = 0.0
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()
    # The searches for settings that methods leave open, on windows that rank nothing.
    searches: "tuple[SettingsSearch, ...]" = ()

    json_properties: ClassVar = ("recommended",)

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses: lower is better."""
        return self.metric == LOSS

    @property
    def samples(self) -> int:
        """The number of windows, documents or queries that rank the rows."""
        return self.rows[0].final.score.samples if self.rows else 0

    @property
    def has_little_text(self) -> bool:
        """Whether the text is too short to choose a row by."""
        return self.samples < MIN_SAMPLES

    @property
    def recommended_row(self) -> Row | None:
        """The row of `auto` if it is tied or there is little text, else the best one.

        None if nothing was measured.
        """
        names_of_auto = (self.auto, DEFAULT_METHOD)  # also as the user can type it
        for row in self.rows:
            if row.method in names_of_auto and (row.final.is_tied or self.has_little_text):
                return row
        return next(iter(self._rows_to_recommend), None)

    @property
    def recommends_tuned(self) -> bool:
        """Whether the recommended method is a tuned one."""
        row = self.recommended_row
        return row is not None and row.tuned is not None and row.method == self.recommended

    @property
    def _rows_to_recommend(self) -> Sequence[Row]:
        """The rows of which the best is recommended.

        `switch` is for short inputs, which scores of long ones do not rank: long inputs get from it
        what the method of `auto` gives them, up to an attention factor. So it is left to the user.
        """
        if self.auto not in [_method_name(row) for row in self.rows]:
            return self.rows
        return [row for row in self.rows if _method_name(row) != SWITCH]

    @property
    def recommended(self) -> str:
        """The method to use, or of checkpoints the best one; empty if nothing was measured.

        It is that of `recommended_row`; but if there is too little text to choose a method by, it
        is the one that `auto` takes, even if that was not compared.
        """
        if self.recommended_row is None:
            return ""
        if self.auto and self.has_little_text:
            return self.auto
        return self.recommended_row.method

    @property
    def pieces_win(self) -> bool:
        """Whether the base in pieces is better than the recommended method before training."""
        row = self.recommended_row
        if row is None or self.has_little_text:
            return False
        change = row.untrained.against_base
        return change is not None and METRICS[self.metric].is_worse(change)

    @property
    def tuned_rows(self) -> Sequence[Row]:
        """The rows of tuned methods."""
        return [row for row in self.rows if row.tuned is not None]

    @property
    def search(self) -> SearchResult | None:
        """The search set's counts and the best method's scores; None without a search set."""
        return next((row.final.evaluation.search for row in self.rows), None)


def _method_name(row: Row) -> str:
    """Return the name of the method of a row, without settings and flags."""
    return row.method.partition(" ")[0].partition(":")[0]


@dataclass(frozen=True)
class Trial:
    """Settings of a method and their score."""

    settings: Mapping[str, Any]  # by name
    score: Estimate  # loss in nats per token, or the mean reciprocal rank
    name: str = field(default="bands", metadata=not_in_json)  # of the method

    json_properties: ClassVar = ("method",)

    @property
    def method(self) -> str:
        """The method with these settings, for `resize`."""
        return method_text(self.name, self.settings)


@dataclass(frozen=True, eq=False, repr=False)
class SettingsSearch(Result, shows=("method", "windows", "length")):
    """Settings that YaRN leaves open, searched on a text.

    Scores are losses at positions from `first_position` on, in windows that chose the best
    candidate. What decides is its lead in other windows.
    """

    before: Trial  # the settings as the user, the model or YaRN's paper states them
    best: Trial | None  # the candidate that was ahead of these; None if none was, or none was tried
    # How much lower the loss of `best` is than that of `before`, paired by window, in windows that
    # did not choose it; above 0 is better. None without `best`.
    lead: Estimate | None
    trials: tuple[Trial, ...]  # all of them in order, `before` first
    windows: int  # that chose; 0 if there was one candidate, which needs no choice
    length: int  # of each in tokens, special tokens included
    first_position: int  # that counts: the context length before
    budget: float  # seconds for reading windows, as the user gave it
    # Seconds of the budget that this search had: less if the method was chosen in the same budget,
    # or if other searches share it.
    available: float
    seconds: float  # taken for reading windows
    # How long two candidates on four windows take; None if the budget sufficed.
    seconds_needed: float | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)

    json_properties: ClassVar = ("method", "is_better")

    @property
    def is_better(self) -> bool:
        """Whether the best candidate is better than the settings before by more than chance."""
        return self.lead is not None and self.lead.sign == 1

    @property
    def method(self) -> str:
        """The method with its settings, for `resize`: ``yarn:beta-slow=2``."""
        if self.best is not None and self.is_better:
            return self.best.method
        return self.before.method
