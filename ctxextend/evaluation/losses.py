"""Losses of a text's tokens by position and by context length, of a model and of the base that it was made from.

The model reads each window whole. The base, whose context is shorter, reads the same tokens in pieces, back to back or
overlapping, as a user would have to do without the longer context.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel, batches, prepare_inputs, reads_only_text
from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    Estimate,
    PositionLosses,
    estimate,
    estimate_loss,
)
from ctxextend.held_out import Ids

if TYPE_CHECKING:
    import torch

Losses = NDArray[np.float64]

LOGITS_AT_ONCE = 2**25  # logits that are held at once: 128 MiB of float32, 667 tokens of GPT-2
ROWS_AT_ONCE = 8  # rows of logits whose normalizers are computed at once
MASKED_SHARE = 0.15  # of a masked model's tokens: as BERT was trained, Devlin et al. 2018, section 3.1
# The part of a window whose tokens are scored with every context: the larger, the less text before the first of them.
SCORED_SHARE = 1 / 8
# The part of each piece that is scored where contexts are compared: so all have near as much of themselves to offer.
PIECE_SHARE = 1 / 4
BUCKETS = 16  # into which positions are divided


@dataclass(frozen=True)
class ScoredWindow:
    """What a model reads at once, and which tokens are scored."""

    input_ids: Ids  # shape (w,), special tokens included
    places: Ids  # where predictions are taken, shape (k,), in any order and also several times
    labels: Ids  # the tokens whose loss is asked for, shape (k,)


@dataclass(frozen=True)
class Scorer:
    """Gives the losses of tokens by a causal or masked language model."""

    model: EvalModel
    batch_size: int | None  # windows that are read at once; None is as many as hold 4,096 tokens
    has_separate_head: bool  # whether logits are its head's output, so that it can run on the needed states only

    def losses(self, windows: Sequence[ScoredWindow]) -> list[Losses]:
        """Return the negative log-likelihoods of each window's labels, in nats, each of shape (k,)."""
        import torch

        model, found = self.model.model, dict[int, Losses]()
        head: Any = model.get_output_embeddings() if self.has_separate_head else torch.nn.Identity()
        batch_size = self.batch_size if self.has_separate_head else 1
        for batch in batches([len(window.input_ids) for window in windows], batch_size):
            ids = torch.from_numpy(np.stack([windows[i].input_ids for i in batch])).to(model.device)
            with torch.inference_mode():
                with without_head(head):
                    outputs = model(**prepare_inputs(model, ids)).logits  # hidden states where the head is apart
                size = max(LOGITS_AT_ONCE // (head.out_features if self.has_separate_head else outputs.shape[-1]), 1)
                for i, output in zip(batch, outputs, strict=True):
                    both = torch.from_numpy(np.stack([windows[i].places, windows[i].labels])).to(output.device)
                    parts = torch.split(both, size, dim=1)
                    losses = [_cross_entropy(head(output[places]).float(), labels) for places, labels in parts]
                    found[i] = torch.cat(losses).numpy()
        return [found[i] for i in range(len(windows))]


def open_scorer(model: EvalModel, batch_size: int | None = None) -> Scorer:
    """Return the scorer of a language model; refuse one that gives no logits of a text alone or sees what follows."""
    import torch

    def logits(last: int = 3) -> "torch.Tensor":
        ids = torch.tensor([[0, 1, 2, last]], device=model.model.device)
        ids += min(getattr(head, "out_features", 200) // 2, 100)  # none of them is padding
        found: torch.Tensor = model.model(**prepare_inputs(model.model, ids)).logits
        return found.float()

    with reads_only_text(model, "logits"), torch.inference_mode():
        head = model.model.get_output_embeddings()
        whole, other = logits(), logits(last=4)
        is_separate = False
        if isinstance(head, torch.nn.Linear):
            with suppress(RuntimeError):  # what comes after the head does not fit the states, as ESM's bias does not
                with without_head(head):
                    states = logits()
                again = head(states.to(head.weight.dtype)).float()
                is_separate = torch.allclose(again, whole, rtol=1e-3, atol=1e-3)
    causal = whole[:, :-1], other[:, :-1]
    if model.kind == CAUSAL and not torch.allclose(*causal, rtol=1e-3, atol=1e-3, equal_nan=True):
        what = f"{model.name} reads the tokens behind a place too: what it is to tell, it sees."
        hint = "Say is_decoder: true in config.json if it was trained to tell the next token."
        raise UnsupportedModelError(what, hint)
    return Scorer(model, batch_size, is_separate)


@contextmanager
def without_head(head: Any) -> Iterator[None]:
    """Make the head of a model of transformers the identity, so that its logits are hidden states."""
    head.forward = lambda states: states
    try:
        yield
    finally:
        del head.forward


def _cross_entropy(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """Return the cross entropy of each row of float32 logits, shape (k,), float64."""
    import torch

    # A few rows at a time stay in the processor's cache.
    normalizers = torch.cat([rows.logsumexp(1) for rows in torch.split(logits, ROWS_AT_ONCE)])
    scores = logits.gather(1, targets[:, None])[:, 0]
    # To the CPU first: not every device knows float64.
    normalizers, scores = torch.stack([normalizers, scores]).cpu().double()
    losses: torch.Tensor = normalizers - scores
    return losses


# ---- by position and by context


@dataclass(frozen=True)
class Span:
    """A piece of a text that is read at once, `start` to `stop` - 1, whose tokens `first` to `last` - 1 are scored."""

    start: int
    stop: int
    first: int
    last: int


def spans(scored: tuple[int, int], tokens: int, size: int, stride: int, *, centred: bool) -> Iterator[Span]:
    """Yield pieces of a text of so many tokens that score those of `scored`, first and end, once each.

    A piece has `size` tokens at most and scores `stride` of them at most: those in its middle (`centred`), as masked
    tokens should stand, or at its end. At the end of the text they stand at the end of a piece as long as the others.
    """
    stride = min(stride, scored[1] - scored[0])
    before = (size - stride) // 2 if centred else size - stride
    for first in range(scored[0], scored[1], stride):
        last, start = min(first + stride, scored[1]), max(first - before, 0)
        if centred:
            start = min(start, max(tokens - size, 0))
        yield Span(start, min(start + size, tokens) if centred else last, first, last)


@dataclass(frozen=True, eq=False)
class ReadingMode:
    """How a text is read that may be longer than what is read at once."""

    measure: str  # ``position``: every token that can be is scored; ``context``: those that all contexts share
    name: str  # `MODEL`, or by the base `TRUNCATED` or `SLIDING`
    scorer: Scorer
    context: int  # tokens that are read at once, special tokens included
    share: float  # of each piece, the part that is scored, at most

    def spans(self, scored: tuple[int, int], tokens: int) -> Iterator[Span]:
        """Yield the pieces of a text of so many tokens by which those of `scored`, first and end, are scored."""
        tokenizer, is_masked = self.scorer.model.tokenizer, self.scorer.model.kind == MASKED
        size = self.context - tokenizer.num_special
        # Without a token in front, the first of a piece is only read, so that the next has one before it.
        maximum = size - (not is_masked and not tokenizer.before)
        return spans(scored, tokens, size, max(int(maximum * self.share), 1), centred=is_masked)

    def losses(self, texts: Sequence[Ids], targets: Sequence[Ids], scored: tuple[int, int]) -> list[Losses]:
        """Return the losses in nats of the tokens at each text's targets, rising and inside `scored`, shape (k,)."""
        tokenizer, is_masked = self.scorer.model.tokenizer, self.scorer.model.kind == MASKED
        shift = len(tokenizer.before) - (not is_masked)  # a causal prediction stands one place before the token
        windows = []
        for text, places in zip(texts, targets, strict=True):
            inputs = text.copy()
            if is_masked:
                inputs[places] = tokenizer.tokenizer.mask_token_id
            for span in self.spans(scored, len(text)):
                here = places[(places >= span.first) & (places < span.last)]
                if len(here):
                    ids = tokenizer.add_special_tokens(inputs[span.start : span.stop])
                    windows.append(ScoredWindow(ids, here - span.start + shift, text[here]))
        found = np.concatenate(self.scorer.losses(windows))
        return np.split(found, np.cumsum([len(places) for places in targets])[:-1])


@dataclass
class LossTask:
    """The losses of windows of one text, and those measured so far."""

    scorer: Scorer
    texts: Sequence[Ids]  # the windows without special tokens, each of shape (length - special tokens,)
    length: int  # tokens of a window, special tokens included
    seed: int  # of a masked model's masks
    measures: Sequence[str]  # ``position``, ``context``, or both
    modes: list[ReadingMode]  # the model's by position first, where that is measured
    base_length: int | None  # tokens that the base reads; None where that is not known
    found: dict[ReadingMode, list[Losses]] = field(default_factory=dict)  # of each window's tokens, of shape (k,)

    @property
    def tokens(self) -> int:
        """Tokens that the model reads."""
        return self._tokens([mode for mode in self.modes if mode.name == MODEL]) * len(self.texts)

    @property
    def base_tokens(self) -> int:
        """Tokens that the base reads."""
        return self._tokens([mode for mode in self.modes if mode.name != MODEL]) * len(self.texts)

    def _tokens(self, modes: Sequence[ReadingMode]) -> int:
        """Return how many tokens of a window some modes read, in all their pieces."""
        size, scored = self.length - self.scorer.model.tokenizer.num_special, self._scored
        return sum(span.stop - span.start for mode in modes for span in mode.spans(scored[mode.measure], size))

    def read_base(self, advance: Callable[[int], None]) -> None:
        """Let the base read everything, once for however many models."""
        self._read([mode for mode in self.modes if mode.name != MODEL], advance)

    def measure(self, advance: Callable[[int], None]) -> None:
        """Let the model read everything, and the base too unless it has."""
        self.found = {mode: losses for mode, losses in self.found.items() if mode.name != MODEL}
        self._read([mode for mode in self.modes if mode not in self.found], advance)

    def _read(self, modes: Sequence[ReadingMode], advance: Callable[[int], None]) -> None:
        for batch in batches([self.length] * len(self.texts), self.scorer.batch_size):
            texts, targets = [self.texts[i] for i in batch], [self.targets(i) for i in batch]
            for mode in modes:
                wanted = [places[mode.measure] for places in targets]
                self.found.setdefault(mode, []).extend(mode.losses(texts, wanted, self._scored[mode.measure]))
            advance(self._tokens(modes) * len(batch))

    @property
    def _scored(self) -> dict[str, tuple[int, int]]:
        """By measure, the first token that is scored (where all are, that can be), and one behind the last."""
        model, tokens = self.scorer.model, self.length - self.scorer.model.tokenizer.num_special
        is_masked, wanted = model.kind == MASKED, max(int(tokens * SCORED_SHARE), 1)
        start = (tokens - wanted) // 2 if is_masked else tokens - wanted
        return {
            "position": (int(not is_masked and not model.tokenizer.before), tokens),
            "context": (start, start + wanted),
        }

    def targets(self, number: int) -> dict[str, Ids]:
        """Return the tokens of a window that are scored, by measure: all, or of a masked model a drawn share."""
        generator, found = np.random.default_rng([self.seed, number]), {}
        for measure, scored in self._scored.items():
            found[measure] = np.arange(*scored)
            if self.scorer.model.kind == MASKED:
                count = max(round(len(found[measure]) * MASKED_SHARE), 1)
                found[measure] = np.sort(generator.choice(found[measure], count, replace=False))
        return found

    @property
    def windows(self) -> int:
        """Windows that were measured."""
        return min((len(self.found.get(mode, ())) for mode in self.modes), default=0)

    @property
    def scores(self) -> tuple[Losses, ...]:
        """What models are ranked by: the losses of each window, shape (k,)."""
        return tuple(self.found[self.modes[0]])

    @property
    def warnings(self) -> list[str]:
        """What should be known of the losses that were measured."""
        odd = "Some losses are no finite numbers: a model gives NaN or infinity, or a token no chance at all."
        is_odd = not all(np.isfinite(window).all() for losses in self.found.values() for window in losses)
        return [odd] * is_odd

    def losses(self, measure: str) -> dict[tuple[str, int], list[Losses]]:
        """Return the losses of the windows that were read in every way, by how, with which context; shapes (k,)."""
        count = self.windows
        modes = [mode for mode in self.modes if mode.measure == measure]
        found = {(mode.name, mode.context): self.found[mode][:count] for mode in modes}
        if measure == "context" and (MODEL, self.length) not in found:
            start, stop = self._scored[measure]
            found[MODEL, self.length] = [losses[start - stop :] for losses in self.found[self.modes[0]][:count]]
        return found

    def report(self) -> dict[str, Any]:
        """Return the fields of `Evaluation` that were measured."""
        measured = self.measures if self.windows else ()
        return {
            "positions": self._positions() if "position" in measured else None,
            "contexts": self._contexts() if "context" in measured else None,
        }

    def _positions(self) -> PositionLosses:
        by_name = {name: losses for (name, _), losses in self.losses("position").items()}
        before, width = len(self.scorer.model.tokenizer.before), -(-self.length // BUCKETS)
        positions = [self.targets(i)["position"] + before for i in range(self.windows)]
        changes = {name: _difference(by_name[MODEL], found) for name, found in by_name.items() if name != MODEL}
        buckets = []
        for start in range(0, self.length, width):
            stop = min(start + width, self.length)
            inside = [(places >= start) & (places < stop) for places in positions]
            if any(chosen.any() for chosen in inside):
                pairs = {name: zip(found, inside, strict=True) for name, found in by_name.items()}
                of_bucket = {name: [one[chosen] for one, chosen in pair] for name, pair in pairs.items()}
                buckets.append(Bucket(start, stop, {name: estimate_loss(some) for name, some in of_bucket.items()}))
        losses = {name: estimate_loss(found) for name, found in by_name.items()}
        return PositionLosses(self.length, self.windows, losses, changes, tuple(buckets))

    def _contexts(self) -> ContextLosses:
        found = self.losses("context")
        by_model = {context: losses for (name, context), losses in found.items() if name == MODEL}
        by_base = {context: losses for (name, context), losses in found.items() if name != MODEL}
        reference = self.base_length if self.base_length in by_model else min(by_model)
        points = tuple(
            ContextPoint(
                context,
                loss=estimate_loss(losses),
                change=_difference(losses, by_model[reference]),
                base=estimate_loss(by_base[context]) if context in by_base else None,
                against_base=_difference(losses, by_base[max(by_base)]) if by_base else None,
            )
            for context, losses in by_model.items()
        )
        return ContextLosses(reference, self.windows, points)


def _difference(ones: Sequence[Losses], others: Sequence[Losses]) -> Estimate:
    return estimate([one - other for one, other in zip(ones, others, strict=True)])


def plan_losses(
    scorer: Scorer,
    base: Scorer | None,
    texts: Sequence[Ids],
    lengths: Sequence[int],
    seed: int,
    measures: Sequence[str] = ("position", "context"),
) -> LossTask:
    """Return how windows as long as the longest of the lengths are read by a model, and by its base if it is known."""
    length = max(lengths)
    # A causal model has read the last tokens with everything before them where it has read the whole window.
    is_read = "position" in measures and scorer.model.kind != MASKED
    own = sorted(lengths)[: -1 if is_read else None]
    modes = [ReadingMode("position", MODEL, scorer, length, 1)]
    modes += [ReadingMode("context", MODEL, scorer, context, PIECE_SHARE) for context in own]
    if base is not None:
        longest = min(base.model.max_len, length)
        modes.append(ReadingMode("position", TRUNCATED, base, longest, 1))
        modes.append(ReadingMode("position", SLIDING, base, longest, 0.5))
        # Its own longest is what every context is compared with, whichever were asked for.
        own = sorted({longest, *(context for context in lengths if context <= longest)})
        modes += [ReadingMode("context", SLIDING, base, context, PIECE_SHARE) for context in own]
    modes = [mode for mode in modes if mode.measure in measures]
    return LossTask(scorer, texts, length, seed, measures, modes, base.model.max_len if base else None)
