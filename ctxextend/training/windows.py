"""Sequences cut from a long row of tokens: which ones, where they stand, and what is to be told of them.

Each is a function of the seed and its number alone, so that a training that goes on after a break, and one of several
processes, see what an unbroken one in one process sees.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel
from ctxextend.training.packing import Tokens, check_enough

__all__ = ["NOT_TOLD", "Cut", "Masking", "Windows"]

Ids = NDArray[np.int64]
Item = dict[str, torch.Tensor]

# The label that torch's cross entropy leaves out.
NOT_TOLD = -100

# Of the tokens of a text, how many are to be told; of those, up to where in [0, 1) they are masked or replaced.
CHOSEN, IS_MASKED, IS_REPLACED = 0.15, 0.8, 0.9

# What tells numbers drawn for one purpose from those drawn for another.
ORDER, PLACE, MASK = 1, 2, 3


@dataclass(frozen=True)
class Masking:
    """How a masked language model is given a text to guess.

    Attributes:
        mask_token: The token that hides another.
        words: Tokens that the model knows.
        special: Those that are no text: they are never hidden, and never stand for another.
    """

    mask_token: int
    words: int
    special: frozenset[int]

    @classmethod
    def of(cls, reader: EvalModel) -> "Masking":
        """Return that of a model and its tokenizer."""
        tokenizer = reader.tokenizer.tokenizer
        known = getattr(reader.model.get_input_embeddings(), "num_embeddings", len(tokenizer))
        return cls(tokenizer.mask_token_id, min(len(tokenizer), known), frozenset(tokenizer.all_special_ids))

    @cached_property
    def ordinary(self) -> Ids:
        """The tokens that are text, shape (words less the special ones,), int64."""
        return np.setdiff1d(np.arange(self.words), [*self.special])

    def apply(self, text: Ids, draw: np.random.Generator) -> tuple[Ids, Ids]:
        """Hide some tokens of a text.

        Of its ordinary tokens 15 % are chosen, at least one. Of those the mask hides 80 %, any ordinary token takes the
        place of 10 %, and 10 % stay as they are. A text of special tokens alone is treated as if they were ordinary.

        Args:
            text: Shape (tokens,).
            draw: What is drawn with.

        Returns:
            The text that is given, and its labels: the chosen tokens, and `NOT_TOLD` elsewhere; both shape (tokens,).

        Source: Devlin et al. 2018, section 3.1 and appendix A.1, arXiv:1810.04805.
        """
        candidates = np.flatnonzero(~np.isin(text, [*self.special]))
        candidates = candidates if len(candidates) else np.arange(len(text))
        chosen = draw.choice(candidates, max(1, round(CHOSEN * len(candidates))), replace=False)
        given, labels, lot = text.copy(), np.full_like(text, NOT_TOLD), draw.random(len(chosen))
        labels[chosen] = text[chosen]
        replaced = chosen[(lot >= IS_MASKED) & (lot < IS_REPLACED)]
        given[chosen[lot < IS_MASKED]] = self.mask_token
        given[replaced] = draw.choice(self.ordinary, len(replaced))
        return given, labels


@dataclass(frozen=True)
class Cut:
    """What every sequence of a training has in common.

    Attributes:
        prefix: Special tokens in front of each text.
        suffix: Those behind it.
        length: Tokens of a sequence, those included.
        span: Positions that it may reach over, ≥ `length`; where there are more than tokens, sequences stand at places
            of their own.
        kind: What the model was made for: `CAUSAL`, `MASKED` or `ENCODER`.
        masking: How a text is hidden, for `MASKED`.
        skip: Whether positions jump once, as the text does that they stand for.
        seed: What everything is drawn with, ≥ 0.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    length: int
    span: int
    kind: str
    masking: Masking | None = None
    skip: bool = False
    seed: int = 0

    @property
    def room(self) -> int:
        """Tokens of text in a sequence."""
        return self.length - len(self.prefix) - len(self.suffix)

    @property
    def slack(self) -> int:
        """Places where a sequence can stand, less one."""
        return self.span - self.length

    def draw(self, purpose: int, number: int) -> np.random.Generator:
        """Return what is drawn with for a purpose, in an epoch or a sequence of that number."""
        return np.random.default_rng([purpose, self.seed, number])


@dataclass(frozen=True)
class Place:
    """Where the text of a sequence is taken from, and where it stands.

    Attributes:
        start: Its first token.
        before: Tokens of it before the jump, ≥ 1.
        jump: Tokens, and positions, that are left out there.
        offset: Positions that are left out between the prefix and the text.
    """

    start: int
    before: int
    jump: int
    offset: int


class Windows(torch.utils.data.Dataset[Item]):
    """Sequences cut from tokens, by their numbers.

    To train on, they are cut anew in each epoch, from another first token on, and come in another order; to measure
    on, they lie one behind the other from the first token on.

    Args:
        tokens: Of the text, shape (tokens,).
        cut: What the sequences have in common.
        count: How many sequences there are: as many as are asked for, over all epochs.
        shuffled: Whether they are to train on.

    Raises:
        DataError: The text is shorter than one sequence.
    """

    def __init__(self, tokens: Tokens, cut: Cut, count: int, *, shuffled: bool) -> None:
        check_enough(tokens, cut.room)
        self.tokens, self.cut, self.count, self.shuffled = tokens, cut, count, shuffled
        whole = len(tokens) // cut.room
        # All but one, so that the first can begin anywhere in the room of one.
        self.epoch = max((len(tokens) + 1) // cut.room - 1, 1) if shuffled else whole

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Item:
        """Return a sequence.

        Returns:
            ``input_ids``, int64, shape (length,); for language models ``labels`` of the same shape, `NOT_TOLD` where
            nothing is to be told, and not shifted; and where sequences stand at places of their own ``position_ids``
            of the same shape, counted from 0, the first usable position.
        """
        if not 0 <= number < self.count:
            raise IndexError(number)
        place, cut = self._place(number), self.cut
        text = self._text(place)
        item = self._told(text, number)
        if cut.slack:
            item["position_ids"] = self._positions(place)
        return {name: torch.from_numpy(values) for name, values in item.items()}

    def _place(self, number: int) -> Place:
        cut = self.cut
        if not self.shuffled:
            offset = round(cut.slack * number / max(self.count - 1, 1))
            return Place(number % self.epoch * cut.room, cut.room, 0, offset)
        first, order = _epoch(cut, self.epoch, len(self.tokens), number // self.epoch)
        start = first + int(order[number % self.epoch]) * cut.room
        return _placed(cut, start, len(self.tokens) - start - cut.room, number)

    def _text(self, place: Place) -> Ids:
        behind = place.start + place.before + place.jump
        parts = (
            self.tokens[place.start : place.start + place.before],
            self.tokens[behind : behind + self.cut.room - place.before],
        )
        return np.concatenate(parts).astype(np.int64)

    def _told(self, text: Ids, number: int) -> dict[str, Any]:
        cut, labels = self.cut, text
        if cut.kind == MASKED and cut.masking is not None:
            text, labels = cut.masking.apply(text, cut.draw(MASK, number))
        item = {"input_ids": _framed(text, cut.prefix, cut.suffix)}
        if cut.kind in (CAUSAL, MASKED):
            item["labels"] = _framed(labels, (NOT_TOLD,) * len(cut.prefix), (NOT_TOLD,) * len(cut.suffix))
        return item

    def _positions(self, place: Place) -> Ids:
        """Return where the tokens stand: the prefix at the start, where models always see it, and the text anywhere."""
        positions = np.arange(self.cut.length)
        text = len(self.cut.prefix)
        positions[text:] += place.offset
        positions[text + place.before :] += place.jump
        return positions


@lru_cache(maxsize=4)
def _epoch(cut: Cut, sequences: int, tokens: int, number: int) -> tuple[int, Ids]:
    """Return the first token that is cut in an epoch, and the order of the sequences, shape (sequences,)."""
    draw = cut.draw(ORDER, number)
    return int(draw.integers(tokens - sequences * cut.room + 1)), draw.permutation(sequences)


def _placed(cut: Cut, start: int, left: int, number: int) -> Place:
    """Draw where a sequence stands, and where its positions jump.

    A sequence stands at the first place and at the last so often that the positions at both ends are seen no less often
    than those between.

    The tokens behind the jump are taken from as far on in the text as their positions say, so that all distances are
    true. Where the text ends before that, the jump is shorter.

    Args:
        cut: What the sequences have in common.
        start: Its first token.
        left: Tokens behind it, were it taken as it is.
        number: The sequence's number.

    Source: Zhu et al. 2024, section 3, with v = u of appendix A and two parts, the first of which has an offset too;
        arXiv:2309.10400.
    """
    draw = cut.draw(PLACE, number)
    # Reaching over both ends: else the first position and the last would be seen at one place out of all.
    drawn = draw.integers(1 - cut.room, cut.slack + cut.room, size=2).clip(0, cut.slack).tolist()
    if not cut.skip or cut.room < 2:
        return Place(start, cut.room, 0, drawn[0])
    offset, end = sorted(drawn)
    return Place(start, int(draw.integers(1, cut.room)), min(end - offset, left), offset)


def _framed(text: Ids, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Ids:
    return np.concatenate([np.array(prefix, np.int64), text, np.array(suffix, np.int64)])
