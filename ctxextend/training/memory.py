"""What a training will take of a device's memory, told before it begins, and what is chosen by that."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

from ctxextend.evaluation.scoring import TOKENS_AT_ONCE
from ctxextend.training.chunkedloss import LOGITS_AT_ONCE
from ctxextend.training.modes import switch_checkpointing
from ctxextend.training.objectives import LanguageModelling
from ctxextend.training.room import free_memory

__all__ = ["LONG", "Choice", "Forecast", "Need", "choose"]

# Of the free memory, what a training may be planned to take.
SHARE = 0.8
# Of the free memory, what it may take before layers are computed twice to save some.
SPARED = 0.5
# Tokens of a sequence above which memory is worth some time: what is freed is given back, and where nobody knows what
# is free, layers are computed twice.
LONG = 1024
# Tokens at once above which an accelerator has no more to gain.
MOST_TOKENS = 16_384


@dataclass(frozen=True)
class Need:
    """What a training takes, in bytes.

    Attributes:
        parameters: The model's weights.
        gradients: Of those that are trained.
        optimizer: AdamW's two moments of each of them.
        activations: What the forward pass keeps for the backward pass.
        working: What is worked with at a time: a piece of the head's logits, or the backward pass through a layer.
        teacher: The weights of the model that it learns from.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    teacher: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def to_come(self) -> int:
        """What is not yet held once the models are loaded."""
        return self.total - self.parameters - self.teacher

    def __str__(self) -> str:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size >= 1e6)
        return f"{_size(self.total)} ({shown})" if shown else _size(self.total)


@dataclass(frozen=True)
class Footprint:
    """What a forward pass keeps for the backward pass, in bytes, by the length of a sequence.

    Attributes:
        fixed: Whatever its length.
        per_token: For each token.
        per_pair: For each pair of tokens: what attention keeps where it is not of the kind that keeps none.
    """

    fixed: float
    per_token: float
    per_pair: float

    @classmethod
    def through(cls, kept: dict[int, int]) -> "Footprint":
        """Return what grows with the length as three measurements do, taken at n, 2n and 4n tokens."""
        (n, first), (_, second), (_, third) = sorted(kept.items())
        per_pair = max((third - 3 * second + 2 * first) / (6 * n * n), 0.0)
        per_token = max((third - second) / (2 * n) - 6 * n * per_pair, 0.0)
        return cls(max(first - n * per_token - n * n * per_pair, 0.0), per_token, per_pair)

    def of(self, length: int, count: int) -> float:
        """Return the bytes that `count` sequences of `length` tokens keep."""
        return self.fixed + count * (length * self.per_token + length**2 * self.per_pair)


@dataclass(frozen=True)
class Forecast:
    """What training takes, by the length and the number of sequences, as measured on short texts.

    Attributes:
        objective: What is trained.
        teacher: The model that it learns from; None where there is none.
        plain: What a forward pass keeps.
        checkpointed: The same where layers are computed twice; None where the model has no such mode.
    """

    objective: Any
    teacher: Any
    plain: Footprint
    checkpointed: Footprint | None

    @classmethod
    def of(cls, objective: Any, max_len: int, dtype: torch.dtype | None = None, teacher: Any = None) -> "Forecast":
        """Return the forecast of an objective, having run it forward on texts of up to 128 tokens.

        Args:
            objective: What is trained, on its device; all that is not trained is frozen.
            max_len: Tokens that its model reads at once, ≥ 4.
            dtype: Of autocast; None is without.
            teacher: The model that it learns from.
        """
        n = min(32, max_len // 4)
        with _in_training(objective, dtype):
            plain = Footprint.through({length: _kept(objective, length) for length in (n, 2 * n, 4 * n)})
            checkpointed = None
            if switch_checkpointing(objective.model, on=True):
                checkpointed = Footprint.through({length: _kept(objective, length) for length in (n, 2 * n, 4 * n)})
                switch_checkpointing(objective.model, on=False)
        return cls(objective, teacher, plain, checkpointed)

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        found: torch.device = self.objective.model.device
        return found

    def need(self, length: int, count: int, *, checkpointed: bool) -> Need:
        """Return what a step takes.

        Args:
            length: Tokens of a sequence.
            count: Sequences that are held at once.
            checkpointed: Whether layers are computed twice.
        """
        own = _storages(self.objective.model.parameters())
        given = _storages(self.teacher.parameters()) if self.teacher is not None else {}
        kept = self.checkpointed if checkpointed and self.checkpointed is not None else self.plain
        trained = sum(_storages(x for x in self.objective.model.parameters() if x.requires_grad).values())
        return Need(
            parameters=sum(own.values()),
            gradients=trained,
            optimizer=2 * trained,
            activations=round(kept.of(length, count)),
            working=round(max(self._logits(length * count), self._layer(length, count, again=kept is not self.plain))),
            teacher=sum(size for place, size in given.items() if place not in own),
        )

    def _layer(self, length: int, count: int, *, again: bool) -> float:
        """Return what the backward pass through a layer works with, and what it is given where that is made again."""
        config = self.objective.model.config.get_text_config()
        of_a_layer = self.plain.of(length, count) / (getattr(config, "num_hidden_layers", None) or 1)
        return 2 * of_a_layer if again else of_a_layer

    def _logits(self, tokens: int) -> int:
        """Return what the head works with, and what it keeps for the backward pass."""
        if not isinstance(self.objective, LanguageModelling):
            return 0
        weight: torch.Tensor = self.objective.model.get_output_embeddings().weight
        words, width = weight.shape
        if not self.objective.is_apart:
            return 4 * 2 * tokens * words
        pieces = 2 * min(LOGITS_AT_ONCE, tokens * words)
        return 4 * (pieces + tokens * width + (weight.numel() if weight.requires_grad else 0))


@contextmanager
def _in_training(objective: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Run a block as a training would run it, and leave modes and random numbers as they were."""
    modes, device = [(part, part.training) for part in objective.modules()], objective.model.device.type
    with torch.random.fork_rng(devices=[]), torch.autocast(device, dtype, enabled=dtype is not None):
        objective.train()
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode


def _kept(objective: Any, length: int) -> int:
    """Return the bytes that a forward pass keeps of a text of some tokens, beside the weights."""
    model = objective.model
    word = min(int(model.config.get_text_config().vocab_size) // 2, 100)  # clear of what stands for padding
    ids = torch.full((1, length), word, device=model.device)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.update(_storages([tensor]))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(input_ids=ids, labels=ids)["loss"]
    weights = _storages(model.parameters())
    del loss  # no sooner: what is kept must not make place for something else
    return sum(size for place, size in kept.items() if place not in weights)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of what tensors lie in, by its address."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


@dataclass(frozen=True)
class Choice:
    """How a training is to use a device's memory.

    Attributes:
        micro_batch: Sequences that are held at once.
        is_checkpointed: Whether layers are computed twice, so that less is kept.
        need: What a step takes.
        free: Bytes that were free before; None where that cannot be told.
    """

    micro_batch: int
    is_checkpointed: bool
    need: Need
    free: int | None

    @property
    def fits(self) -> bool:
        """Whether there is room for it, as far as that can be told."""
        return _fits(self.need, self.free, SHARE)

    def __str__(self) -> str:
        twice = ", with gradient checkpointing" if self.is_checkpointed else ""
        free = f"; {_size(self.free)} are free" if self.free is not None else ""
        return f"About {self.need} are needed{twice}{free}"

    def warning(self, *, window: bool) -> str | None:
        """Return what to say where it does not fit, and what to change; None where it does.

        Args:
            window: Whether it trains by windows already.
        """
        if self.fits or self.free is None:
            return None
        ways = ["--micro-batch 1"] if self.micro_batch > 1 else []
        ways += ["a shorter --window"] if window else ["a shorter --seq-len", "--window"]
        ways += ["--trainable positions"] if 2 * self.need.gradients > self.need.parameters else []
        return (
            f"Training takes about {_size(self.need.to_come)} more than the models that are loaded, and "
            f"{_size(self.free)} are free. What takes less: {', '.join(ways)}."
        )


def choose(forecast: Forecast, length: int, counts: list[int]) -> Choice:
    """Choose how many sequences are held at once, and whether layers are computed twice.

    On a CPU as many are held as have 4,096 tokens, whatever is free: so a run can be repeated. On an accelerator as
    many as fit. Layers are computed twice where what is kept otherwise takes more than half of what is free, and where
    that cannot be told, for sequences of more than 1,024 tokens: half as much time again, and a fraction of the memory.

    Args:
        forecast: What training takes.
        length: Tokens of a sequence.
        counts: How many sequences may be held at once.
    """
    free = free_memory(forecast.device)
    most = TOKENS_AT_ONCE if forecast.device.type == "cpu" else MOST_TOKENS
    fitting = sorted((count for count in counts if count * length <= most), reverse=True) or [min(counts)]
    if forecast.device.type == "cpu":
        fitting = fitting[:1]
    has_mode = forecast.checkpointed is not None
    if not has_mode or length <= LONG or free is not None:
        # Fewer than 4,096 tokens at once cost an accelerator more time than computing layers twice.
        for count in [count for count in fitting if count == fitting[0] or count * length >= TOKENS_AT_ONCE]:
            need = forecast.need(length, count, checkpointed=False)
            if _fits(need, free, SPARED):
                return Choice(count, False, need, free)
    choices = [Choice(n, has_mode, forecast.need(length, n, checkpointed=has_mode), free) for n in fitting]
    return next((choice for choice in choices if choice.fits), choices[-1])


def _fits(need: Need, free: int | None, share: float) -> bool:
    return free is None or need.to_come <= share * free


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
