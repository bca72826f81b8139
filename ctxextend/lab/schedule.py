"""How many texts of which lengths a time suffices for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """The number of texts by length, shortest first, and what the time does not suffice for."""

    texts: Mapping[int, int]
    left_out: tuple[int, ...] = ()  # lengths, shortest first
    left_out_seconds: float | None = None  # about how long these take; None without any


def schedule_texts(
    seconds: Mapping[int, float], minimum: int, maximum: int, budget: float
) -> dict[int, int]:
    """Choose lengths, and how many texts of each a model reads within a budget.

    Every length has at least `minimum` texts. The shortest is always chosen, then the longest, then
    the others, longer ones first, as far as they fit. More texts follow, a round of all lengths at
    a time, the longest first.

    Args:
        seconds: About how long a text takes, by length.
        minimum: Texts of a length, at least.
        maximum: Texts of a length, at most.
        budget: Seconds for all texts.
    """
    shortest, *longer = sorted(seconds)
    remaining = budget - minimum * seconds[shortest]
    texts = {shortest: minimum}
    for length in reversed(longer):
        if minimum * seconds[length] <= remaining:
            texts[length] = minimum
            remaining -= minimum * seconds[length]
    for _ in range(minimum, maximum):
        for length in sorted(texts, reverse=True):
            if seconds[length] <= remaining:
                texts[length] += 1
                remaining -= seconds[length]
    return texts


def predict_seconds(
    operations: Mapping[int, float], timed: Mapping[int, float]
) -> dict[int, float]:
    """Return about how long a text takes, by length.

    The time grows linearly with the operations of a pass, from a constant part on.

    Args:
        operations: Operations of a pass by length, of all lengths.
        timed: Seconds of a text by length, of the shortest lengths.
    """
    *_, last = sorted(timed)
    rate = timed[last] / operations[last]
    constant = 0.0
    if len(timed) > 1:
        previous = sorted(timed)[-2]
        growth = (timed[last] - timed[previous]) / (operations[last] - operations[previous])
        if 0 < growth < rate:
            rate = growth
            constant = timed[last] - rate * operations[last]
    return {length: constant + rate * count for length, count in operations.items()}


def forward_operations(model: Any, tokens: int) -> float:
    """Return about how many multiplications a forward pass on so many tokens has.

    Source: Kaplan et al. 2020, Scaling laws for neural language models (arXiv:2001.08361), section
    2.1: the parameters without embeddings for each token, and layers times width for each pair of
    tokens.
    """
    config = model.config.get_text_config()
    layers = getattr(config, "num_hidden_layers", 0)
    width = getattr(config, "hidden_size", 0)
    parameters = model.num_parameters(exclude_embeddings=True)
    return float(tokens * (parameters + layers * width * tokens))
