"""Synthetic results of `evaluate`: scores with values that are written here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctxextend.lab.evaluation import Evaluation, ModelFacts
from ctxextend.lab.scores import (
    CHUNKS,
    NATS,
    ONE_PASS,
    SAME_TEXT,
    SEPARATE,
    SLIDING,
    START,
    TRIALS,
    Part,
    Score,
)

BASE_LEN = 128
LENGTH = 512
WINDOWS = 12


def model(name: str, max_len: int = LENGTH, kind: str = "causal") -> ModelFacts:
    return ModelFacts(
        name=name,
        source=f"models/{name}",
        model_type="bert" if kind == "encoder" else "gpt2",
        kind=kind,
        max_len=max_len,
        parameters=989952,
    )


def evaluation(
    scores: Sequence[Score], names: Sequence[str] = ("long",), kind: str = "causal"
) -> Evaluation:
    """Return the result of models, next to the base that has scores, if any."""
    base = model("short", BASE_LEN, kind)
    has_base = any(score.model == base.name for score in scores)
    return Evaluation(
        models=tuple(model(name, kind=kind) for name in names),
        base=base if has_base else None,
        length=LENGTH,
        scores=tuple(scores),
        documents=7,
        tokens=WINDOWS * LENGTH,
        limited_by="tokens",
        seed=0,
        precision="float32",
        seconds=61.5,
    )


def score(
    name: str,
    mean: float,
    *,
    measure: str = "position",
    reading: str = ONE_PASS,
    length: int = LENGTH,
    unit: str = NATS,
    quantity: str = "loss",
    part: Part | None = None,
    samples: int = WINDOWS,
    spread: float = 0.05,
) -> Score:
    """Return a score whose documents have a mean, around it with a standard deviation."""
    values = spread * np.random.default_rng(0).standard_normal(samples)
    if name != "short":  # differences of models vary too
        own = np.random.default_rng((len(name), length))
        values += 0.2 * spread * own.standard_normal(samples)
    values += mean - values.mean()
    return Score(
        model=name,
        measure=measure,
        name=quantity,
        reading=reading,
        length=length,
        values=list(values[:, None]),
        tokens=LENGTH,
        unit=unit,
        part=part,
    )


def losses(name: str, beyond: float, reading: str = ONE_PASS) -> Iterator[Score]:
    """Yield the losses of a model by position, which beyond those of the base are higher."""
    length = LENGTH if reading == ONE_PASS else BASE_LEN
    yield score(name, 3.8 + 0.75 * beyond, reading=reading, length=length)
    for start in range(0, LENGTH, 32):
        added = beyond if start >= BASE_LEN else 0.0
        part = (start, start + 32)
        yield score(name, 3.8 + added, reading=reading, length=length, part=part)


def contexts(name: str, means: Mapping[int, float]) -> Iterator[Score]:
    for length in sorted(means, reverse=True):
        yield score(name, means[length], measure="context", length=length)


OF_BASE = [
    *losses("short", 0.0, SLIDING),
    *losses("short", 0.06, SEPARATE),
    *contexts("short", {64: 3.9, 128: 3.8}),
]
WORSE = evaluation(
    [
        *OF_BASE,
        *losses("long", 0.4),
        *contexts("long", {64: 3.9, 128: 3.8, 256: 4.0, 512: 4.1}),
    ]
)
BETTER = evaluation(
    [
        *OF_BASE,
        *losses("long", -0.2),
        *contexts("long", {64: 3.9, 128: 3.8, 256: 3.7, 512: 3.6}),
    ]
)
WITHOUT_BASE = evaluation([*losses("long", -0.2), *contexts("long", {256: 3.7, 512: 3.6})])
ONE_WINDOW = evaluation(
    [
        score("short", 3.8, reading=SLIDING, length=BASE_LEN, samples=1),
        score("long", 3.7, samples=1),
    ]
)
METHOD_COSTS = {"bands": 0.3, "linear": 0.31, "copy": 0.7, "zero": 9.0}
METHODS = replace(
    evaluation(
        [
            *OF_BASE,
            *(one for name, cost in METHOD_COSTS.items() for one in losses(name, cost)),
            *(
                one
                for name, cost in METHOD_COSTS.items()
                for one in contexts(name, {128: 3.8 + cost / 4, 512: 3.8 + cost})
            ),
        ],
        list(METHOD_COSTS),
    ),
    auto="bands",
    skipped={"hierarchical": "hierarchical covers at most 256 positions."},
)


def searched(names: Sequence[str] = ("long",)) -> Iterator[Score]:
    """Yield the scores of encoders in a search set."""
    readings = {START: 0.31, CHUNKS: 0.45, SAME_TEXT: 0.4}
    for quantity, factor in {"nDCG@10": 1.0, "MRR": 1.1, "recall@1": 0.8}.items():
        for reading, mean in readings.items():
            yield score(
                "short",
                factor * mean,
                measure="search",
                reading=reading,
                length=BASE_LEN,
                unit="share",
                quantity=quantity,
                samples=60,
            )
    for number, name in enumerate(names):
        for quantity, factor in {"nDCG@10": 1.0, "MRR": 1.1, "recall@1": 0.8}.items():
            mean = factor * (0.43 - 0.05 * number)
            yield score(name, mean, measure="search", unit="share", quantity=quantity, samples=60)


SEARCH = evaluation([*searched()], kind="encoder")
ENCODERS = evaluation([*searched(("long", "longer"))], ("long", "longer"), kind="encoder")


def effective(name: str, shares: Mapping[int, float], task: str = "needle") -> Iterator[Score]:
    """Yield the shares of answers found by length, of 40 trials in five ranges of depths."""
    yield score(
        name,
        float(np.mean([*shares.values()])),
        measure="effective",
        unit="share",
        quantity="found",
    )
    for length, share in shares.items():
        hits = np.arange(8) < round(8 * share)
        whole = Score(
            model=name,
            measure="effective",
            name=task,
            reading=ONE_PASS,
            length=length,
            values=[hits.astype(np.float64)] * 5,
            tokens=length,
            unit=TRIALS,
            chance=0.1,
        )
        yield whole
        for depth in range(5):
            values = [hits.astype(np.float64)]
            yield whole.of_part((depth / 5, (depth + 1) / 5), values)


EFFECTIVE = evaluation([*effective("long", {64: 1.0, 128: 1.0, 256: 1.0, 512: 0.25})])
AT_CHANCE = evaluation([*effective("long", {64: 0.125})])
EVALUATIONS = {
    "worse": WORSE,
    "better": BETTER,
    "without-base": WITHOUT_BASE,
    "one-window": ONE_WINDOW,
    "methods": METHODS,
    "search": SEARCH,
    "encoders": ENCODERS,
    "effective": EFFECTIVE,
    "at-chance": AT_CHANCE,
}


def extreme(mean: float) -> Evaluation:
    """Return a result with a mean that is hardly a number."""
    with np.errstate(all="ignore"):
        return evaluation(
            [*OF_BASE, *losses("long", mean), *contexts("long", {128: mean, 512: mean})]
        )


EXTREMES = (math.nan, math.inf, 800.0, 1e-9)
