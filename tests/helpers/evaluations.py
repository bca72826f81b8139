"""Synthetic results of `evaluate`."""

import math
from dataclasses import replace

from ctxextend.evaluation.evaluation_result import (
    MODEL,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    Estimate,
    Evaluation,
    LossEstimate,
    Passkey,
    PositionLosses,
    Recall,
    Retrieval,
    SearchResult,
    Shift,
    ShiftPoint,
)

BASE_LEN = 128


def estimate(mean: float, error: float | None = 0.008, tokens: int = 6144) -> LossEstimate:
    return LossEstimate(mean, error, tokens, 48)


def loss_at(position: float, longest: float) -> float:
    """Return a loss that decreases with the context, up to a limit."""
    return 3.1 + 2.4 / math.sqrt(1 + min(position, longest) / 6)


def position_losses(length: int, base_len: int | None, step: int = 32) -> PositionLosses:
    buckets = tuple(
        _bucket(start, start + step, length, base_len) for start in range(0, length, step)
    )
    names = buckets[0].losses
    means = {
        name: sum(bucket.losses[name].mean for bucket in buckets) / len(buckets) for name in names
    }
    losses = {name: estimate(mean, 0.011, 48 * length) for name, mean in means.items()}
    changes = {
        name: Estimate(means[MODEL] - means[name], 0.006, 6144, 48)
        for name in means
        if name != MODEL
    }
    return PositionLosses(length, 48, losses, changes, buckets)


def _bucket(start: int, stop: int, length: int, base_len: int | None) -> Bucket:
    middle = (start + stop) / 2
    losses = {MODEL: estimate(loss_at(middle, length), 0.021)}
    if base_len is not None:
        half = base_len / 2
        losses[TRUNCATED] = estimate(loss_at(middle % base_len, base_len), 0.024)
        overlapping = middle if middle < base_len else half + middle % half
        losses[SLIDING] = estimate(loss_at(overlapping, base_len), 0.022)
    return Bucket(start, stop, losses)


def context_losses(lengths: tuple[int, ...], base_len: int | None) -> ContextLosses:
    reference = base_len or lengths[0]
    points = tuple(_point(context, reference, base_len) for context in lengths)
    return ContextLosses(reference, 48, points)


def _point(context: int, reference: int, base_len: int | None) -> ContextPoint:
    mean, other = (loss_at(0.75 * length, length) for length in (context, reference))
    return ContextPoint(
        context,
        estimate(mean, 0.021),
        Estimate(mean - other, 0.006 if context != reference else 0.0, 6144, 48),
        estimate(mean + 0.013, 0.022) if base_len is not None and context <= base_len else None,
        Estimate(mean - other - 0.013, 0.007, 6144, 48) if base_len is not None else None,
    )


def passkey(how: str, lengths: tuple[int, ...], chance: float) -> Passkey:
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    found = [[1 - 0.9 * (length / 512) * (1 - depth) for depth in depths] for length in lengths]
    cells = tuple(tuple(max(round(20 * share) / 20, chance) for share in row) for row in found)
    return Passkey(how, lengths, depths, cells, 20, chance)


def share(mean: float, error: float | None) -> Estimate:
    return Estimate(mean, error, 200, 200)


def retrieval() -> Retrieval:
    modes = {
        "truncated": Recall(share(0.165, 0.0263), share(0.242, 0.0251)),
        "chunks": Recall(share(0.415, 0.0349), share(0.522, 0.0317), share(0.25, 0.0401)),
        "model": Recall(share(0.47, 0.0353), share(0.571, 0.0311), share(0.305, 0.0388)),
    }
    return Retrieval(512, 200, 200, 24, "mean", modes)


def shift(kind: str) -> Shift:
    means = {0: 0.0, 64: 0.031, 96: 0.8, 128: 0.42, 384: 0.418}
    errors = {start: 0.01 if start else 0.0 for start in means}
    points = (
        ShiftPoint(start, estimate(3.1 + mean), share(mean, errors[start]))
        for start, mean in means.items()
    )
    if kind == "encoder":
        points = (
            ShiftPoint(start, None, share(1 - mean / 8, errors[start]))
            for start, mean in means.items()
        )
        return Shift(128, 16, 128, share(0.931, 0.006), tuple(points))
    return Shift(128, 16, 128, share(0.42, 0.0253), tuple(points))


def search() -> SearchResult:
    means = {"truncated": 0.425, "chunks": 0.619, "model": 0.479}
    offsets = {"nDCG@10": 0.0, "MRR": -0.06, "recall@1": -0.2, "recall@10": 0.26}
    scores = {
        mode: {name: share(mean + more, 0.021) for name, more in offsets.items()}
        for mode, mean in means.items()
    }
    changes = {"chunks": share(0.194, 0.0236), "model": share(0.054, 0.0152)}
    return SearchResult(512, 1200, 200, 35, 640, "mean", scores, changes, share(-0.14, 0.0221))


# Name, model type, kind and context length, and the base with its context length.
GPT2 = ("gpt2-512", "gpt2", "causal", 512, "tiny-gpt2", BASE_LEN)
TINY_GPT2 = ("tiny-gpt2", "gpt2", "causal", BASE_LEN, None, None)
BERT = ("bert-1024", "bert", "masked", 1024, "bert-base-uncased", 512)
MINILM = ("minilm-512", "bert", "encoder", 512, "minilm", BASE_LEN)

EXTENDED = Evaluation(
    *GPT2,
    documents=37,
    tokens=24_576,
    across_documents=True,
    positions=position_losses(512, BASE_LEN),
    contexts=context_losses((32, 64, 128, 256, 512), BASE_LEN),
    passkey=passkey("loss rank", (64, 128, 256, 512), 0.1),
    retrieval=retrieval(),
    shift=shift("causal"),
    seconds=41.25,
    notes=("ctxextend.yaml states the base.",),
)

WITHOUT_BASE = Evaluation(
    *TINY_GPT2,
    documents=1,
    tokens=6144,
    positions=position_losses(BASE_LEN, None),
    contexts=context_losses((32, 64, 128), None),
    passkey=passkey("loss rank", (64, 128), 0.1),
    seconds=7.5,
)

INTERRUPTED = Evaluation(
    *BERT,
    documents=120,
    tokens=49_152,
    across_documents=True,
    precision="bfloat16",
    positions=position_losses(1024, 512, 64),
    complete=False,
    seconds=12.0,
    warnings=("Interrupted: these are the results so far.",),
)

ENCODER = Evaluation(
    *MINILM,
    documents=200,
    tokens=102_400,
    seed=7,
    passkey=passkey("retrieval", (128, 256, 512), 0.125),
    retrieval=retrieval(),
    shift=shift("encoder"),
    seconds=19.0,
)

SEARCH = Evaluation(*MINILM, search=search(), seconds=185.0)

MASKED = Evaluation(
    *BERT,
    documents=120,
    tokens=49_152,
    contexts=context_losses((128, 256, 512, 1024), 512),
    seconds=33.0,
)

EVALUATIONS = {
    "evaluate-extended": EXTENDED,
    "evaluate-without-base": WITHOUT_BASE,
    "evaluate-interrupted": INTERRUPTED,
    "evaluate-encoder": ENCODER,
    "evaluate-masked": MASKED,
    "evaluate-search": SEARCH,
}
# Means and errors at the limits of a report.
EXTREMES = [
    (math.nan, None),
    (math.inf, math.nan),
    (-math.inf, math.inf),
    (1e38, 0.0),
    (0.0, 0.0),
    (5e-324, 1e9),
]


def extreme_evaluation(mean: float, error: float | None) -> Evaluation:
    """Return an evaluation in which each estimate has this mean and error, with markup and escapes
    in its name.
    """
    extreme = LossEstimate(mean, error, 0, 9)
    buckets = (Bucket(0, 1, {MODEL: extreme}), Bucket(3, 9, {MODEL: extreme, SLIDING: extreme}))
    point = ContextPoint(32, extreme, extreme, extreme, extreme)
    recall = Recall(share(math.nan, error), share(0.5, error), share(mean, error))
    return replace(
        EXTENDED,
        source="--><script>$\\frac{$\na\x1b[31m",
        positions=PositionLosses(
            512, 1, {MODEL: extreme, SLIDING: extreme}, {SLIDING: extreme}, buckets
        ),
        contexts=ContextLosses(BASE_LEN, 1, (point, replace(point, context=512, base=None))),
        passkey=Passkey(
            "loss rank", (8, 99_999), (0.0, 1.0), ((math.nan, None), (1.0, 0.0)), 0, 0.1
        ),
        retrieval=Retrieval(512, 0, 0, 24, "mean", {MODEL: recall}),
        shift=Shift(1, 1, 1, extreme, (ShiftPoint(0, extreme, extreme),)),
    )
