"""Losses of a language model and its base checkpoint, by position and by context length, on the
same tokens.

The model reads each window in one forward pass. The base, whose context is shorter, reads it in
chunks, back to back or overlapping, as a user without the longer context would.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation import evaluation_result as results
from ctxextend.evaluation.eval_model import (
    CAUSAL,
    MASKED,
    EvalModel,
    batches,
    needs_only_text,
    prepare_inputs,
)
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    Estimate,
    estimate,
    estimate_loss,
)
from ctxextend.held_out import Ids

if TYPE_CHECKING:
    import torch

Losses = NDArray[np.float64]

MAX_LOGITS = 2**25  # upper limit per LM head call: 128 MiB in float32, 667 tokens of GPT-2
ROWS_PER_CHUNK = 8  # rows of logits per logsumexp
MASKED_SHARE = 0.15  # of a masked model's tokens, as in BERT: Devlin et al. 2018, section 3.1
# Share of a window whose tokens are scored at each context length; a larger share leaves less text
# before the first.
SCORED_SHARE = 1 / 8
# Share of a chunk that is scored when contexts are compared, so that all targets have nearly the
# full context.
CHUNK_SHARE = 1 / 4
BUCKETS = 16  # of positions
NOT_FINITE = (
    "Some losses are NaN or infinite: a model returns NaN or infinity, or gives a token "
    "probability 0."
)


@dataclass(frozen=True)
class ScoredWindow:
    """The input of a forward pass and its target tokens."""

    input_ids: Ids  # shape (w,), special tokens included
    # indices of the logits that predict the labels, shape (k,), in any order, with repetitions
    outputs: Ids
    labels: Ids  # target token ids, shape (k,)


@dataclass(frozen=True)
class Scorer:
    """Computes token losses with a causal or masked language model."""

    model: EvalModel
    batch_size: int | None  # windows per batch; None: as many as fit 4,096 tokens
    has_separate_head: bool  # whether the LM head can be applied to selected hidden states

    def losses(self, windows: Sequence[ScoredWindow]) -> list[Losses]:
        """Return the negative log-likelihoods of each window's labels, in nats, each of shape
        (k,).
        """
        import torch

        model = self.model.model
        losses_of = dict[int, Losses]()
        head: Any = model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        batch_size = self.batch_size if self.has_separate_head else 1
        for batch in batches([len(window.input_ids) for window in windows], batch_size):
            ids = torch.from_numpy(np.stack([windows[i].input_ids for i in batch])).to(model.device)
            with torch.inference_mode():
                with identity_lm_head(head):
                    inputs = prepare_inputs(model, ids, self.model.position_ids(ids))
                    outputs = model(**inputs).logits  # hidden states with a separate head
                size = max(
                    MAX_LOGITS
                    // (head.out_features if self.has_separate_head else outputs.shape[-1]),
                    1,
                )
                for i, output in zip(batch, outputs, strict=True):
                    pairs = torch.from_numpy(np.stack([windows[i].outputs, windows[i].labels])).to(
                        output.device
                    )
                    chunks = torch.split(pairs, size, dim=1)
                    losses = [
                        _cross_entropy(head(output[indices]).float(), labels)
                        for indices, labels in chunks
                    ]
                    losses_of[i] = torch.cat(losses).numpy()
        return [losses_of[i] for i in range(len(windows))]


def open_scorer(model: EvalModel, batch_size: int | None = None) -> Scorer:
    """Return the scorer of a language model; raise if it needs more than text or a causal one sees
    later tokens.
    """
    import torch

    def logits(last: int = 3) -> "torch.Tensor":
        ids = torch.tensor([[0, 1, 2, last]], device=model.model.device)
        ids += min(getattr(head, "out_features", 200) // 2, 100)  # avoids padding ids
        result: torch.Tensor = model.model(**prepare_inputs(model.model, ids)).logits
        return result.float()

    with needs_only_text(model, "logits"), torch.inference_mode():
        head = model.model.get_output_embeddings()
        expected, other = logits(), logits(last=4)
        is_separate = False
        if isinstance(head, torch.nn.Linear):
            with suppress(
                RuntimeError
            ):  # layers after the head that do not fit hidden states, such as ESM's bias
                with identity_lm_head(head):
                    states = logits()
                is_separate = torch.allclose(
                    head(states.to(head.weight.dtype)).float(), expected, rtol=1e-3, atol=1e-3
                )
    causal = expected[:, :-1], other[:, :-1]
    if model.kind == CAUSAL and not torch.allclose(*causal, rtol=1e-3, atol=1e-3, equal_nan=True):
        message = f"{model.name} is not causal: its predictions depend on later tokens."
        hint = "Set is_decoder: true in config.json if it was trained to predict the next token."
        raise UnsupportedModelError(message, hint)
    return Scorer(model, batch_size, is_separate)


@contextmanager
def identity_lm_head(head: Any) -> Iterator[None]:
    """Replace an LM head with the identity, so that the model returns hidden states as logits."""
    head.forward = lambda states: states
    try:
        yield
    finally:
        del head.forward


def _cross_entropy(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return the cross entropy of each row of float32 logits, shape (k,), as float64."""
    import torch

    # Few rows at a time fit the CPU cache.
    normalizers = torch.cat([rows.logsumexp(1) for rows in torch.split(logits, ROWS_PER_CHUNK)])
    scores = logits.gather(1, targets[:, None])[:, 0]
    # Move to the CPU first: some devices do not support float64.
    normalizers, scores = torch.stack([normalizers, scores]).cpu().double()
    losses: torch.Tensor = normalizers - scores
    return losses


# ---- by position and by context


@dataclass(frozen=True)
class Span:
    """A chunk of a text, tokens `start` to `stop` - 1, of which tokens `first` to `last` - 1 are
    scored.
    """

    start: int
    stop: int
    first: int
    last: int


def spans(
    scored: tuple[int, int], tokens: int, size: int, stride: int, *, centred: bool
) -> Iterator[Span]:
    """Yield chunks of a text that score each token of the range `scored`, (first, end), once.

    A chunk has at most `size` tokens and scores at most `stride` of them: in its middle if
    `centred`, for masked models, otherwise at its end. A centred chunk at the end of the text is as
    long as the others.
    """
    stride = min(stride, scored[1] - scored[0])
    before = (size - stride) // 2 if centred else size - stride
    for first in range(scored[0], scored[1], stride):
        last, start = min(first + stride, scored[1]), max(first - before, 0)
        if centred:
            start = min(start, max(tokens - size, 0))
        yield Span(start, min(start + size, tokens) if centred else last, first, last)


@dataclass(frozen=True)
class ReadingMode:
    """How to score a text: with which model, context length and stride; of equal modes, only the
    model differs.
    """

    # ``position``: scores every token; ``context``: scores the targets that all contexts share
    measure: str
    name: str  # `MODEL`, or for the base `TRUNCATED` or `SLIDING`
    scorer: Scorer = field(compare=False)
    context: int  # tokens per chunk, special tokens included
    share: float  # of a chunk that is scored, at most

    def spans(self, scored: tuple[int, int], tokens: int) -> Iterator[Span]:
        """Yield the chunks of a text that score the range `scored`; see `spans`."""
        tokenizer = self.scorer.model.tokenizer
        is_masked = self.scorer.model.kind == MASKED
        size = self.context - tokenizer.num_special
        # Without a special token before the text, nothing predicts a chunk's first token, so chunks
        # overlap by one.
        maximum = size - (not is_masked and not tokenizer.before)
        return spans(scored, tokens, size, max(int(maximum * self.share), 1), centred=is_masked)

    def losses(
        self, texts: Sequence[Ids], targets: Sequence[Ids], scored: tuple[int, int]
    ) -> list[Losses]:
        """Return the losses in nats of each text's targets, sorted indices inside `scored`, shape
        (k,).
        """
        tokenizer = self.scorer.model.tokenizer
        is_masked = self.scorer.model.kind == MASKED
        shift = len(tokenizer.before) - (not is_masked)  # causal logits predict the next token
        windows = []
        for text, indices in zip(texts, targets, strict=True):
            inputs = text.copy()
            if is_masked:
                inputs[indices] = tokenizer.tokenizer.mask_token_id
            for span in self.spans(scored, len(text)):
                inside = indices[(indices >= span.first) & (indices < span.last)]
                if len(inside):
                    ids = tokenizer.add_special_tokens(inputs[span.start : span.stop])
                    windows.append(ScoredWindow(ids, inside - span.start + shift, text[inside]))
        losses = np.concatenate(self.scorer.losses(windows))
        return np.split(losses, np.cumsum([len(indices) for indices in targets])[:-1])


@dataclass
class LossTask:
    """Scores windows of one text in several modes, and keeps the losses so far."""

    scorer: Scorer
    texts: Sequence[Ids]  # windows without special tokens, each of shape (length - special tokens,)
    length: int  # tokens of a window, special tokens included
    seed: int  # for the masks of a masked model
    measures: Sequence[str]  # ``position``, ``context``, or both
    modes: list[ReadingMode]  # the first ranks models: by position if that is measured
    base_length: int | None  # context length of the base; None if unknown
    across_documents: bool = False  # whether texts span several documents
    measured: dict[ReadingMode, list[Losses]] = field(
        default_factory=dict
    )  # of each window's targets, shape (k,)

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""
        return self._tokens([mode for mode in self.modes if mode.name == MODEL]) * len(self.texts)

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        return self._tokens([mode for mode in self.modes if mode.name != MODEL]) * len(self.texts)

    def _tokens(self, modes: Sequence[ReadingMode]) -> int:
        """Return how many tokens modes read per window, over all chunks."""
        size = self.length - self.scorer.model.tokenizer.num_special
        scored = self._scored
        return sum(
            span.stop - span.start
            for mode in modes
            for span in mode.spans(scored[mode.measure], size)
        )

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Score the base, whose losses are reused for each model."""
        self._read([mode for mode in self.modes if mode.name != MODEL], advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Score the model, and the base if it was not scored yet."""
        self.measured = {
            mode: losses for mode, losses in self.measured.items() if mode.name != MODEL
        }
        self._read([mode for mode in self.modes if mode not in self.measured], advance)

    def _read(self, modes: Sequence[ReadingMode], advance: Callable[[int], None]) -> None:
        for batch in batches([self.length] * len(self.texts), self.scorer.batch_size):
            texts, targets = [self.texts[i] for i in batch], [self.targets(i) for i in batch]
            for mode in modes:
                indices = [by_measure[mode.measure] for by_measure in targets]
                self.measured.setdefault(mode, []).extend(
                    mode.losses(texts, indices, self._scored[mode.measure])
                )
            advance(self._tokens(modes) * len(batch))

    @property
    def _scored(self) -> dict[str, tuple[int, int]]:
        """The range of scored tokens by measure, (first, end)."""
        model = self.scorer.model
        tokens = self.length - self.scorer.model.tokenizer.num_special
        is_masked = model.kind == MASKED
        count = max(int(tokens * SCORED_SHARE), 1)
        start = (tokens - count) // 2 if is_masked else tokens - count
        first = int(not is_masked and not model.tokenizer.before)
        return {"position": (first, tokens), "context": (start, start + count)}

    def targets(self, number: int) -> dict[str, Ids]:
        """Return the indices of a window's target tokens by measure: all, or a random share for a
        masked model.
        """
        generator = np.random.default_rng([self.seed, number])
        targets = {}
        for measure, scored in self._scored.items():
            targets[measure] = np.arange(*scored)
            if self.scorer.model.kind == MASKED:
                count = max(round(len(targets[measure]) * MASKED_SHARE), 1)
                targets[measure] = np.sort(generator.choice(targets[measure], count, replace=False))
        return targets

    @property
    def windows(self) -> int:
        """The number of windows scored in all modes."""
        return min((len(self.measured.get(mode, ())) for mode in self.modes), default=0)

    @property
    def scores(self) -> tuple[Losses, ...]:
        """The values that rank models: the losses of each window, shape (k,)."""
        return tuple(self.measured[self.modes[0]])

    def losses(self, measure: str) -> dict[tuple[str, int], list[Losses]]:
        """Return the losses of the windows scored in all modes, by mode name and context length;
        each of shape (k,).
        """
        count = self.windows
        modes = [mode for mode in self.modes if mode.measure == measure]
        losses_of = {(mode.name, mode.context): self.measured[mode][:count] for mode in modes}
        if measure == "context" and (MODEL, self.length) not in losses_of:
            start, stop = self._scored[measure]
            losses_of[MODEL, self.length] = [
                losses[start - stop :] for losses in self.measured[self.modes[0]][:count]
            ]
        return losses_of

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that this task measures."""
        measured = self.measures if self.windows else ()
        is_finite = all(
            np.isfinite(window).all() for losses in self.measured.values() for window in losses
        )
        return {
            "tokens": self.length * self.windows,
            "across_documents": self.across_documents,
            "warnings": [] if is_finite else [NOT_FINITE],
            "positions": self._positions() if "position" in measured else None,
            "contexts": self._contexts() if "context" in measured else None,
        }

    def _positions(self) -> results.PositionLosses:
        by_name = {name: losses for (name, _), losses in self.losses("position").items()}
        before = len(self.scorer.model.tokenizer.before)
        positions = [self.targets(i)["position"] + before for i in range(self.windows)]
        changes = {
            name: _difference(by_name[MODEL], losses)
            for name, losses in by_name.items()
            if name != MODEL
        }
        losses = {name: estimate_loss(losses) for name, losses in by_name.items()}
        buckets = tuple(loss_buckets(positions, by_name, self.length))
        return results.PositionLosses(self.length, self.windows, losses, changes, buckets)

    def _contexts(self) -> results.ContextLosses:
        by_mode = self.losses("context")
        by_model = {context: losses for (name, context), losses in by_mode.items() if name == MODEL}
        by_base = {context: losses for (name, context), losses in by_mode.items() if name != MODEL}
        reference = self.base_length if self.base_length in by_model else min(by_model)
        points = []
        for context, losses in by_model.items():
            change = _difference(losses, by_model[reference])
            base = estimate_loss(by_base[context]) if context in by_base else None
            against_base = _difference(losses, by_base[max(by_base)]) if by_base else None
            points.append(
                results.ContextPoint(context, estimate_loss(losses), change, base, against_base)
            )
        return results.ContextLosses(reference, self.windows, tuple(points))


def loss_buckets(
    positions: Sequence[Ids], losses_of: Mapping[str, list[Losses]], length: int
) -> Iterator[Bucket]:
    """Yield losses by position, given the positions and by name the losses of each text's targets,
    shape (k,).
    """
    width = -(-length // BUCKETS)
    buckets = [indices // width for indices in positions]
    for number in sorted({*np.concatenate(buckets).tolist()}):
        pairs = {name: zip(losses, buckets, strict=True) for name, losses in losses_of.items()}
        losses = {
            name: estimate_loss([text[at == number] for text, at in pair])
            for name, pair in pairs.items()
        }
        yield Bucket(number * width, min((number + 1) * width, length), losses)


def _difference(losses: Sequence[Losses], references: Sequence[Losses]) -> Estimate:
    return estimate([loss - reference for loss, reference in zip(losses, references, strict=True)])


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    texts: Sequence[Ids],
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = ("position", "context"),
) -> LossTask:
    """Return the task that scores a model, and its base if it is known, on windows of the longest
    length.
    """
    length = max(lengths)
    # A causal model's losses by position include those with the longest context.
    contexts = sorted(lengths)[
        : -1 if ("position" in measures and scorer.model.kind != MASKED) else None
    ]
    modes = [ReadingMode("position", MODEL, scorer, length, 1)]
    modes += [ReadingMode("context", MODEL, scorer, context, CHUNK_SHARE) for context in contexts]
    if base is not None:
        longest = min(base.model.max_len, length)
        modes.append(ReadingMode("position", TRUNCATED, base, longest, 1))
        modes.append(ReadingMode("position", SLIDING, base, longest, 0.5))
        # Always with the base's longest context, which all contexts are compared with.
        contexts = sorted({longest, *(context for context in lengths if context <= longest)})
        modes += [
            ReadingMode("context", SLIDING, base, context, CHUNK_SHARE) for context in contexts
        ]
    modes = [mode for mode in modes if mode.measure in measures]
    return LossTask(
        scorer, texts, length, seed, measures, modes, base.model.max_len if base else None
    )
