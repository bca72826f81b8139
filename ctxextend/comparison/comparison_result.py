"""Results of a comparison of methods or of checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from ctxextend.comparison.metrics import LOSS
from ctxextend.errors import size_text
from ctxextend.lab.evaluation_result import (
    MIN_SAMPLES,
    SLIDING,
    DocumentScores,
    Estimate,
    Evaluation,
    SearchResult,
)
from ctxextend.json_output import Result, not_in_json
from ctxextend.tables.method_facts import DEFAULT_METHOD, SWITCH


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
            "context": (f"{self.max_len:,}", self.max_len),
            "parameters": (f"{self.parameters:,}", self.parameters),
            "tokens/s": (f"{self.tokens_per_second:,.0f}", self.tokens_per_second),
            "weights": _size_cell(self.bytes),
            "memory": _size_cell(self.peak_bytes),
        }


def _size_cell(size: int | None) -> tuple[str, int | None]:
    """Return a size in bytes as text and number; the text is a dash if it is unknown."""
    return size_text(size) if size else "-", size


@dataclass(frozen=True, eq=False, repr=False)
class Row(Result, shows=("method", "keeps_learned_rows")):
    """The result of one method, or of one checkpoint.

    What is measured depends on the kind of the model, and on what is compared:

    - Language models: the score is the loss over all positions of windows of the new length, in
      nats per token. The cost on short inputs is the loss minus the base's on the same tokens at
      the base's context length, paired by token.
    - Encoders: the score is the mean reciprocal rank, or nDCG@10 in a search set. The cost on short
      inputs is only measured of checkpoints: 1 - cosine of embeddings to the base's, or without a
      base to those of the first checkpoint.
    """

    method: str  # its name, with its settings, if any; of a checkpoint, its short name
    # whether learned rows do not change, so that short inputs give identical outputs
    keeps_learned_rows: bool
    recipe: str  # YAML that reproduces its checkpoint; empty for a checkpoint
    score: Estimate
    # How much worse than the best row, paired by window or query; None for the best.
    delta: Estimate | None
    short_inputs: Estimate | None  # the cost on short inputs; None if not measured
    evaluation: Evaluation
    seconds: float
    checkpoint: CheckpointFacts | None = None  # None for a method

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


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result, shows=("source", "max_len_before", "max_len_after", "metric")):
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
    base: Estimate | None  # a score; None without a base
    rows: tuple[Row, ...]  # best first
    row_type: str = "method"  # or ``checkpoint``
    next_command: str = ""  # `resize` of the base with the recommended method
    auto: str = ""  # the method that `auto` takes for this resize
    skipped: Mapping[str, str] = field(default_factory=dict)  # skipped methods, with the reason
    documents: int = 0  # documents read
    tokens: int = 0  # tokens of the windows cut from them, special tokens included
    # what limited the text: ``tokens``, or its own end, ``text``; empty without text
    limited_by: str = ""
    seed: int = 0  # for masks and needles
    precision: str = "float32"  # dtype of the forward passes
    seconds: float = 0.0
    warnings: tuple[str, ...] = field(default=(), metadata=not_in_json)
    notes: tuple[str, ...] = ()

    json_properties: ClassVar = ("recommended", "verdict")

    @property
    def verdict(self) -> str:
        """One or two sentences: the best row, those tied with it, and how the base compares."""
        verdicts: Any = import_module("ctxextend.report.verdicts")  # which knows all results
        return str(verdicts.comparison_verdict(self)).replace("`", "")

    @property
    def is_loss(self) -> bool:
        """Whether scores are losses: lower is better."""
        return self.metric == LOSS

    @property
    def samples(self) -> int:
        """The number of windows, documents or queries that rank the rows."""
        return self.rows[0].score.samples

    @property
    def has_little_text(self) -> bool:
        """Whether the text is too short to choose a row by."""
        return self.samples < MIN_SAMPLES

    @property
    def recommended_row(self) -> Row:
        """The row of `auto` if it is tied or there is little text, else the best one."""
        names_of_auto = (self.auto, DEFAULT_METHOD)  # also as the user can type it
        for row in self.rows:
            if row.method in names_of_auto and (row.is_tied or self.has_little_text):
                return row
        # `switch` is for short inputs, which scores of long ones do not rank: long inputs get from
        # it what the method of `auto` gives them, up to an attention factor. The user chooses it.
        names = [row.method.partition(" ")[0].partition(":")[0] for row in self.rows]
        best = 0
        if self.auto in names:
            best = next(number for number, name in enumerate(names) if name != SWITCH)
        return self.rows[best]

    @property
    def recommended(self) -> str:
        """The method to use, or of checkpoints the best one.

        It is that of `recommended_row`; but if there is too little text to choose a method by, it
        is the one that `auto` takes, even if that was not compared.
        """
        if self.auto and self.has_little_text:
            return self.auto
        return self.recommended_row.method

    @property
    def search(self) -> SearchResult | None:
        """The search set's counts and the best method's scores; None without a search set."""
        return self.rows[0].evaluation.search
