"""Synthetic results of `compare`."""

import math
from dataclasses import replace

from ctxextend.comparison.comparison_result import CheckpointFacts, Comparison, Row
from ctxextend.comparison.metrics import FOUND, LOSS, NDCG, RECIPROCAL_RANK
from ctxextend.lab.evaluation_result import (
    MODEL,
    SLIDING,
    Bucket,
    Estimate,
    Evaluation,
    PositionLosses,
    Recall,
)
from tests.helpers.evaluations import (
    EFFECTIVE,
    SEARCH,
    all_at_chance,
    context_losses,
    effective,
    effective_of_encoder,
    estimate,
    retrieval,
    share,
)

BEFORE, AFTER = 128, 512

# Added loss in nats beyond and within the learned length, by method as named on the command line.
METHODS = {
    "bands": (-0.10, 0.03),
    "stretch --keep-first 20": (-0.07, 0.12),
    "linear": (-0.06, 0.16),
    "copy": (0.42, 0.0),
    "hierarchical": (0.55, 0.0),
    "last": (0.63, 0.0),
    "sinusoidal": (1.1, 0.0),
    "random": (1.5, 0.0),
}


def loss_at(position: float) -> float:
    """Return a loss that decreases with the context."""
    return 2.75 + 1.7 / math.sqrt(1 + position / 5)


def losses(beyond: float, within: float) -> PositionLosses:
    """Return losses with a penalty beyond the learned length and another within it."""
    buckets = []
    for start in range(0, AFTER, 32):
        middle = start + 16.0
        seam = 0.06 * math.sin(start / 37) if beyond > 0.3 else 0.0
        if middle < BEFORE:
            mean = loss_at(middle) + within
            sliding = loss_at(middle)
        else:
            mean = loss_at(middle) + (beyond + 0.1 * within + seam)
            sliding = loss_at(BEFORE / 2 + middle % (BEFORE / 2))
        found = {MODEL: estimate(mean, 0.021), SLIDING: estimate(sliding, 0.02)}
        buckets.append(Bucket(start, start + 32, found))
    mean = sum(bucket.losses[MODEL].mean for bucket in buckets) / len(buckets)
    sliding = sum(bucket.losses[SLIDING].mean for bucket in buckets) / len(buckets)
    totals = {MODEL: estimate(mean, 0.022), SLIDING: estimate(sliding, 0.021)}
    differences = {SLIDING: Estimate(mean - sliding, 0.006, 1536, 48)}
    return PositionLosses(AFTER, 48, totals, differences, tuple(buckets))


def evaluation(method: str, beyond: float, within: float) -> Evaluation:
    return Evaluation(
        f"tiny-gpt2-512 ({method})",
        "gpt2",
        "causal",
        AFTER,
        "tiny-gpt2",
        BEFORE,
        documents=37,
        tokens=24_576,
        positions=losses(beyond, within),
        contexts=context_losses((32, 64, 128, 256, 512), BEFORE),
        effective=effective((64, 128, 256, 512)),
    )


def row(method: str, best: str | None = None) -> Row:
    """Return the result of a method, and its delta vs. best."""
    beyond, within = METHODS[method]
    found = evaluation(method, beyond, within)
    assert found.positions is not None
    score = found.positions.losses[MODEL]
    delta = None
    if best is not None:
        lead = score.mean - row(best).score.mean
        error = lead / 1.5 if method.startswith("stretch") else 0.004 + 0.03 * lead
        delta = Estimate(lead, error, 24_576, 48)
    short = Estimate(within, 0.004 if within else 0.0, 3072, 48)
    return Row(method, within == 0, recipe(method), score, delta, short, found, 3.2)


def recipe(method: str) -> str:
    name, *flags = method.split()
    keep = f"  keep_first: {flags[1]}\n" if flags else ""
    return f"source: tiny-gpt2\nresize:\n  to: 512\n  method: {name}\n{keep}"


def comparison(methods: tuple[str, ...] = tuple(METHODS)) -> Comparison:
    """Return a comparison of methods, best first."""
    rows = [row(methods[0]), *(row(method, methods[0]) for method in methods[1:])]
    return Comparison(
        "tiny-gpt2",
        "gpt2",
        "causal",
        "transformer.wpe.weight",
        BEFORE,
        AFTER,
        LOSS,
        losses(0.0, 0.0).losses[SLIDING],
        tuple(rows),
        skipped={"mean": "it cannot create so many rows."},
        documents=37,
        tokens=24_576,
        seconds=84.2,
        warnings=("Few documents have 512 tokens, so windows span several documents.",),
        notes=("The effective length was not measured at 16 tokens: it needs at least 60.",),
    )


def encoders() -> Comparison:
    """Return a comparison on an encoder, without losses."""
    rows = []
    for number, method in enumerate(METHODS):
        rank = 0.62 - 0.03 * number
        own = Recall(share(rank - 0.1, 0.0353), share(rank, 0.0311), share(rank - 0.265, 0.0388))
        found = replace(retrieval(), modes={**retrieval().modes, MODEL: own})
        delta = share(0.03 * number, 0.018) if number else None
        measured = evaluation(method, 0.1 * number, 0.0)
        measured = replace(
            measured,
            kind="encoder",
            positions=None,
            contexts=None,
            effective=effective_of_encoder((128, 256, 512)),
            retrieval=found,
        )
        keeps = METHODS[method][1] == 0
        score = share(rank, 0.0311)
        rows.append(Row(method, keeps, recipe(method), score, delta, None, measured, 2.5))
    other = {"source": "minilm", "model_type": "bert", "kind": "encoder", "metric": RECIPROCAL_RANK}
    return replace(comparison(), **other, base=share(0.522, 0.0317), rows=tuple(rows))  # type: ignore[arg-type]


def searched() -> Comparison:
    """Return a comparison on an encoder with a search set, without text."""
    found = encoders()
    rows = []
    for row in found.rows:
        measured = replace(SEARCH, source=row.method)
        rows.append(replace(row, evaluation=measured))
    return replace(found, metric=NDCG, rows=tuple(rows), documents=0, tokens=0)


def effective_only() -> Comparison:
    """Return a comparison of checkpoints by how far they read, the last one at chance."""
    lengths = (256, 512, 1024, 8192)
    measured = {
        "llama-8192": effective(lengths, limit=12_288),
        "llama-yarn": effective(lengths, limit=4096),
        "llama-random": all_at_chance(effective(lengths)),
    }
    rows = list[Row]()
    best = None
    for name, found in measured.items():
        score = sum(one.accuracy for one in found.tasks["key"].lengths) / len(lengths)
        best = score if best is None else best
        delta = share(best - score, 0.021) if rows else None
        within_budget = replace(found, left_out=(2048, 4096), left_out_seconds=317.2)
        own = replace(EFFECTIVE, source=name, effective=within_budget)
        facts = CheckpointFacts(
            source=name,
            model_type="llama",
            scheme="rotary",
            max_len=8192,
            parameters=134_515_008,
            bytes=269_030_016,
            peak_bytes=1_312_345_678,
            tokens_per_second=3123.4,
        )
        own_score = share(score, 0.0214)
        rows.append(Row(name, False, "", own_score, delta, None, own, 118.0, checkpoint=facts))
    return Comparison(
        source="",
        model_type="",
        kind="causal",
        table="",
        max_len_before=256,
        max_len_after=8192,
        metric=FOUND,
        base=None,
        rows=tuple(rows),
        row_type="checkpoint",
        documents=3,
        tokens=32_768,
        seconds=361.5,
    )


def unknown_intervals() -> Comparison:
    """Return a comparison on one window, so without intervals, in which one loss is NaN."""
    found = comparison(("bands", "copy"))
    first, second = found.rows
    single = replace(
        second,
        score=Estimate(math.nan, None, 0, 0),
        delta=Estimate(0.5, None, 64, 1),
        short_inputs=None,
    )
    return replace(found, rows=(first, single), skipped={})


COMPARISONS = {
    "compare-methods": comparison(),
    "compare-encoders": encoders(),
    "compare-search": searched(),
    "compare-effective": effective_only(),
    "compare-one-window": unknown_intervals(),
}
