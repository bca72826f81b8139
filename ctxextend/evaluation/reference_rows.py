"""Held-out rows: judge new rows against the checkpoint's own, the reference rows.

The tables are cut to their first rows and extended back by a method. The same model reads the same
texts, which fit the original table, with the reference rows and with the new ones, so every
measurement has a known best value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import DataError, counted
from ctxextend.evaluation import evaluation_result as results
from ctxextend.evaluation.embedding import Embedder, cosines, open_embedder
from ctxextend.evaluation.eval_model import (
    ENCODER,
    MASKED,
    EvalModel,
    ModelFiles,
    batches,
    check_vocabulary,
)
from ctxextend.evaluation.evaluate import TOKENS_SEARCHED, EvaluationRun, TextWindows, read_unseen
from ctxextend.evaluation.evaluation_result import (
    COSINE,
    MIN_SAMPLES,
    MODEL,
    REFERENCE,
    SHARE,
    difference_bounds,
    estimate,
    estimate_loss,
)
from ctxextend.evaluation.losses import (
    MASKED_SHARE,
    NOT_FINITE,
    ReadingMode,
    Scorer,
    loss_buckets,
    open_scorer,
)
from ctxextend.evaluation.retrieval import FIRST, QUERY_TOKENS, RANK, query_starts, score_rankings
from ctxextend.held_out import Ids
from ctxextend.recipe import Evaluate
from ctxextend.text_data import empty_files

Values = NDArray[
    Any
]  # kept of a text: a language model's losses, (targets,), or an encoder's embedding, (d,)


@dataclass
class ReferenceTask:
    """Texts, read with the reference rows and with the rows that the model has now."""

    evaluator: Scorer | Embedder
    hold_out: int  # rows that the cut tables have, without reserved rows
    length: int  # rows that the extended tables have
    texts: tuple[
        Ids, ...
    ]  # without special tokens, each of shape (k,), k ≤ `length` - special tokens
    seed: int  # for the masks of a masked model
    reference: dict[str, list[Values]] = field(
        default_factory=dict
    )  # by part: ``beyond``, ``short``, ``queries``
    current: dict[str, list[Values]] = field(default_factory=dict)  # without queries

    def __post_init__(self) -> None:
        tokenizer = self.evaluator.model.tokenizer
        self.short = (
            self.hold_out - tokenizer.num_special
        )  # length of the short texts, without special tokens
        # The first token of a text that a language model can predict, and the first one at a
        # held-out position.
        self.first_target = int(self.evaluator.model.kind != MASKED and not tokenizer.before)
        self.first_beyond = self.hold_out - len(tokenizer.before)
        # What is read of each text: all of it, and its first `hold_out` tokens by themselves.
        self.parts = {"beyond": [*self.texts], "short": [text[: self.short] for text in self.texts]}
        self.tokens = self.base_tokens = sum(
            len(text) for texts in self.parts.values() for text in texts
        )

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the reference rows, which the model has now; an encoder also embeds
        its queries.
        """
        self.reference = {part: self._read(texts, advance) for part, texts in self.parts.items()}
        if isinstance(self.evaluator, Embedder):
            count, self.reference["queries"] = min(QUERY_TOKENS, self.short), []
            for text in self.texts:
                starts = query_starts(self.first_beyond, len(text), len(text) - count)
                queries = [text[start : start + count] for start in starts]
                self.reference["queries"].append(
                    self.evaluator.embed(queries) if starts else np.empty(0)
                )

    def measure(self, advance: Callable[[int], None]) -> None:
        """Read the texts with the rows that the model has now."""
        self.current = {part: self._read(texts, advance) for part, texts in self.parts.items()}

    def _read(self, texts: Sequence[Ids], advance: Callable[[int], None]) -> list[Values]:
        """Return what is kept of each text; equally long ones are read in batches, the same ones
        each time.
        """
        values = dict[int, Values]()
        evaluator = self.evaluator
        for batch in batches([len(text) for text in texts], evaluator.batch_size):
            inside = [texts[i] for i in batch]
            size = len(texts[batch[0]])
            if isinstance(evaluator, Embedder):
                values |= zip(batch, evaluator.embed(inside), strict=True)
            else:
                mode = ReadingMode(
                    "position", MODEL, evaluator, size + evaluator.model.tokenizer.num_special, 1
                )
                targets = [indices[indices < size] for indices in map(self._targets, batch)]
                values |= zip(
                    batch, mode.losses(inside, targets, (self.first_target, size)), strict=True
                )
            advance(size * len(batch))
        return [values[i] for i in range(len(texts))]

    def _targets(self, number: int) -> Ids:
        """Return the indices of a text's target tokens: all, or a share for a masked model, of its
        short text too.
        """
        ranges = [
            np.arange(self.first_target, self.short),
            np.arange(self.first_beyond, len(self.texts[number])),
        ]
        if self.evaluator.model.kind == MASKED:
            generator = np.random.default_rng([self.seed, number])
            pairs = zip(
                ranges,
                [max(round(len(indices) * MASKED_SHARE), 1) for indices in ranges],
                strict=True,
            )
            ranges = [
                np.sort(generator.choice(indices, count, replace=False)) for indices, count in pairs
            ]
        return np.concatenate(ranges)

    def _values(self, read: dict[str, list[Values]]) -> dict[str, list[Values]]:
        """Return the scores of what was read, by name; those of each text have shape (k,), k
        ≥ 0.
        """
        if isinstance(self.evaluator, Scorer):
            is_beyond = [self._targets(i) >= self.first_beyond for i in range(len(self.texts))]
            return read | {
                "beyond": [
                    losses[mask] for losses, mask in zip(read["beyond"], is_beyond, strict=True)
                ]
            }
        values = dict[str, list[Values]]()
        for part in self.parts:
            similar = np.einsum(
                "td,td->t", np.stack(read[part]), np.stack(self.reference[part]), dtype=np.float64
            )
            values[part] = [*np.round(similar, 6)[:, None]]  # embeddings are in float32
        counts = [len(queries) for queries in self.reference["queries"]]
        if any(counts):
            queries = np.concatenate(
                [queries for queries in self.reference["queries"] if len(queries)]
            )
            relevant = [{text: 1} for text in np.repeat(np.arange(len(counts)), counts).tolist()]
            found = score_rankings(cosines(queries, np.stack(read["beyond"])), relevant)
            for name, score in (("recall", FIRST), ("reciprocal_rank", RANK)):
                values[name] = np.split(found[score], np.cumsum(counts)[:-1])
        return values

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank methods: losses beyond the first rows, or cosines to the reference
        embeddings.
        """
        return tuple(self._values(self.current)["beyond"])

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        is_loss, scores = isinstance(self.evaluator, Scorer), dict[str, results.AgainstReference]()
        references = self._values(self.reference)
        for name, values in self._values(self.current).items():
            differences = [new - old for new, old in zip(values, references[name], strict=True)]
            if is_loss:
                scores[name] = results.AgainstReference(
                    model=estimate_loss(values),
                    reference=estimate_loss(references[name]),
                    change=estimate(differences),
                )
            else:
                bounds = COSINE if name in self.parts else SHARE
                scores[name] = results.AgainstReference(
                    model=estimate(values, bounds),
                    reference=estimate(references[name], bounds),
                    change=estimate(differences, difference_bounds(bounds)),
                )
        positions = [
            self._targets(i) + len(self.evaluator.model.tokenizer.before)
            for i in range(len(self.texts))
        ]
        losses_of = {MODEL: self.current["beyond"], REFERENCE: self.reference["beyond"]}
        buckets = tuple(loss_buckets(positions, losses_of, self.length)) if is_loss else ()
        warnings = [NOT_FINITE] * any(
            not np.isfinite(values).all() for values in self.current["beyond"]
        )
        held_out_rows = results.HeldOutRows(
            self.hold_out, self.length, len(self.texts), scores, buckets
        )
        return {"held_out_rows": held_out_rows, "warnings": warnings}


def read_texts(
    files: ModelFiles, settings: Evaluate, hold_out: int, length: int, auto: str
) -> tuple[TextWindows, list[str]]:
    """Cut documents into texts of at most `length` tokens with tokens beyond `hold_out`; also
    return warnings.

    `auto` is the method to name if the text is too short to choose one.

    The first text of each document is preferred to the others. No model is loaded.

    Raises:
        DataError: There are too few such texts.
    """
    tokenizer = files.tokenizer
    size, minimum = length - tokenizer.num_special, hold_out - len(tokenizer.before)
    documents, warnings = read_unseen([files], settings, MIN_SAMPLES * (minimum + 1))
    read, pieces = list[Ids](), list[tuple[int, Ids]]()
    limited_by = "text"
    for ids in documents:
        read.append(ids)
        cut = enumerate(ids[start : start + size] for start in range(0, len(ids), size))
        pieces += [(number, piece) for number, piece in cut if len(piece) > minimum]
        if sum(len(piece) for _, piece in pieces) >= TOKENS_SEARCHED * max(
            settings.tokens, MIN_SAMPLES * size
        ):
            limited_by = "tokens"
            break
    texts = [
        piece for _, piece in sorted(pieces, key=lambda item: item[0])
    ]  # from as many documents as possible
    if len(texts) < MIN_SAMPLES:
        found = (
            f"{counted(len(texts), 'text')} of more than {hold_out:,} tokens, each inside one "
            "document"
        )
        longest = max(map(len, read), default=0) + tokenizer.num_special
        message = f"--hold-out {hold_out} needs {MIN_SAMPLES} texts, but --data has {found}"
        hint = (
            "Pass more or longer texts with --data, or lower --hold-out. "
            f"{results.little_text(auto)}"
        )
        raise DataError(f"{message} (the longest document has {longest:,}).", hint)
    count = int(np.searchsorted(np.cumsum([len(text) for text in texts]), settings.tokens, "right"))
    chosen = texts[: max(count, MIN_SAMPLES)]
    if len(chosen) < len(texts) or sum(map(len, chosen)) >= settings.tokens:
        limited_by = "tokens"
    return TextWindows(tuple(chosen), tuple(read), limited_by=limited_by), warnings


def plan_held_out_rows(
    model: EvalModel, hold_out: int, settings: Evaluate, text: TextWindows, warnings: Sequence[str]
) -> EvaluationRun:
    """Return the measurement of a model whose tables have their reference rows."""
    check_vocabulary(model, np.concatenate(text.documents))
    evaluator: Scorer | Embedder = (open_embedder if model.kind == ENCODER else open_scorer)(
        model, settings.batch_size
    )
    task = ReferenceTask(evaluator, hold_out, model.max_len, text.windows, settings.seed)
    notes = (*model.notes, *empty_files(settings.data))
    return EvaluationRun(model, None, settings, text, (task,), tuple(warnings), notes)
