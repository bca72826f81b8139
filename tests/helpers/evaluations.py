"""Synthetic results of `evaluate`."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ctxextend.lab.effective_result import (
    THRESHOLD,
    Cell,
    Effective,
    LengthResult,
    TaskResult,
)
from ctxextend.lab.evaluation_result import (
    CHUNKS,
    MODEL,
    SAME_TEXT,
    SLIDING,
    TRUNCATED,
    Bucket,
    ContextLosses,
    ContextPoint,
    Estimate,
    Evaluation,
    LossEstimate,
    PositionLosses,
    Recall,
    Retrieval,
    SearchResult,
    TokensRead,
)

BASE_LEN = 128


def estimate(mean: float, error: float | None = 0.008, tokens: int = 6144) -> LossEstimate:
    return LossEstimate(mean, error, tokens, samples=48)


def loss_at(position: float, longest: float) -> float:
    """Return a loss that decreases with the context, up to a limit."""
    return 3.1 + 2.4 / math.sqrt(1 + min(position, longest) / 6)


def position_losses(length: int, base_len: int | None, step: int = 32) -> PositionLosses:
    """Return losses by position, also of the base if it has a context length."""
    starts = range(0, length, step)
    buckets = tuple(_bucket(start, start + step, length, base_len) for start in starts)
    means = {}
    for mode in buckets[0].losses:
        total = sum(bucket.losses[mode].mean for bucket in buckets)
        means[mode] = total / len(buckets)

    losses = {mode: estimate(mean, 0.011, 48 * length) for mode, mean in means.items()}
    changes = {mode: Estimate(means[MODEL] - mean, 0.006, 6144, 48) for mode, mean in means.items()}
    del changes[MODEL]
    return PositionLosses(length, windows=48, losses=losses, changes=changes, buckets=buckets)


def _bucket(start: int, stop: int, length: int, base_len: int | None) -> Bucket:
    middle = (start + stop) / 2
    losses = {MODEL: estimate(loss_at(middle, length), 0.021)}
    if base_len is not None:
        in_window = middle % base_len
        losses[TRUNCATED] = estimate(loss_at(in_window, base_len), 0.024)
        in_sliding_window = middle
        if middle >= base_len:
            half = base_len / 2
            in_sliding_window = half + middle % half
        losses[SLIDING] = estimate(loss_at(in_sliding_window, base_len), 0.022)
    return Bucket(start, stop, losses)


def context_losses(lengths: tuple[int, ...], base_len: int | None) -> ContextLosses:
    reference = base_len or lengths[0]
    points = tuple(_point(context, reference, base_len) for context in lengths)
    return ContextLosses(reference, windows=48, points=points)


def _point(context: int, reference: int, base_len: int | None) -> ContextPoint:
    mean = loss_at(0.75 * context, context)
    change = mean - loss_at(0.75 * reference, reference)
    error = 0.006
    if context == reference:
        error = 0.0
    point = ContextPoint(
        context,
        loss=estimate(mean, 0.021),
        change=Estimate(change, error, 6144, 48),
        base=None,
        against_base=None,
    )
    if base_len is None:
        return point
    point = replace(point, against_base=Estimate(change - 0.013, 0.007, 6144, 48))
    if context > base_len:
        return point
    return replace(point, base=estimate(mean + 0.013, 0.022))


def effective(lengths: tuple[int, ...], limit: int = 512) -> Effective:
    """Return how far a language model reads, at chance in one of three tasks.

    What is found decreases with the length and with the distance from the end.

    Args:
        lengths: The lengths of the texts.
        limit: A length that the model does not read.
    """
    tasks = {
        "needle": _task(lengths, chance=0.1, lost=0.4 / limit),
        "key": _task(lengths, chance=0.1, lost=0.9 / limit),
        "tracking": at_chance(_task(lengths[:1], chance=0.25, lost=0.0)),
    }
    return _effective("likelihood rank", lengths, tasks)


def effective_of_encoder(lengths: tuple[int, ...]) -> Effective:
    """Return how far an encoder reads, which is asked for passages only."""
    tasks = {"passage": _task(lengths, chance=0.1, lost=0.9 / lengths[-1])}
    return _effective("cosine rank", lengths, tasks)


def _effective(scoring: str, lengths: tuple[int, ...], tasks: dict[str, TaskResult]) -> Effective:
    return Effective(
        scoring=scoring,
        max_len=lengths[-1],
        threshold=THRESHOLD,
        tasks=tasks,
        questions=24,
        budget=120,
        left_out=(),
        left_out_seconds=None,
    )


TRIALS = 24  # of each cell


def _task(lengths: tuple[int, ...], chance: float, lost: float) -> TaskResult:
    """Return the results of a task.

    Args:
        lengths: Its lengths.
        chance: The accuracy of guessing.
        lost: The share of answers at the start of a text that each of its tokens hides.
    """
    results = []
    for length in lengths:
        cells = []
        for start in (0, 1, 2):
            depth = (start + 0.5) / 3
            found = max(1 - lost * length * (1 - depth), chance)
            cells.append(cell(start / 3, (start + 1) / 3, round(TRIALS * found)))
        results.append(LengthResult(length, texts=3, cells=tuple(cells), chance=chance))
    return TaskResult(chance=chance, lengths=tuple(results))


def cell(start: float, stop: float, found: int, trials: int = TRIALS) -> Cell:
    return Cell(start=start, stop=stop, found=found, trials=trials)


def at_chance(task: TaskResult) -> TaskResult:
    """Return a task in which as much is found as by guessing."""
    lengths = []
    for result in task.lengths:
        guessed = tuple(
            replace(cell, found=round(task.chance * cell.trials)) for cell in result.cells
        )
        lengths.append(replace(result, cells=guessed))
    return replace(task, lengths=tuple(lengths))


def all_at_chance(effective: Effective) -> Effective:
    """Return the results of a model that is at chance in all tasks."""
    return replace(
        effective, tasks={name: at_chance(task) for name, task in effective.tasks.items()}
    )


def share(mean: float, error: float | None) -> Estimate:
    return Estimate(mean, error, tokens=200, samples=200)


def retrieval() -> Retrieval:
    modes = {
        TRUNCATED: Recall(
            recall=share(0.165, 0.0263),
            reciprocal_rank=share(0.242, 0.0251),
        ),
        CHUNKS: Recall(
            recall=share(0.415, 0.0349),
            reciprocal_rank=share(0.522, 0.0317),
            change=share(0.25, 0.0401),
        ),
        MODEL: Recall(
            recall=share(0.47, 0.0353),
            reciprocal_rank=share(0.571, 0.0311),
            change=share(0.305, 0.0388),
        ),
    }
    return Retrieval(
        length=512,
        documents=200,
        queries=200,
        query_tokens=24,
        pooling="mean",
        modes=modes,
        tokens_read={
            TRUNCATED: TokensRead(limit=BASE_LEN, median=BASE_LEN),
            CHUNKS: TokensRead(limit=None, median=512),
            MODEL: TokensRead(limit=512, median=512),
        },
        differences={
            TRUNCATED: _differences(0.329, 0.0346, ("nDCG@10", "MRR", "recall@1")),
            CHUNKS: _differences(0.049, 0.0271, ("nDCG@10", "MRR", "recall@1")),
        },
    )


def _differences(mean: float, error: float, names: Sequence[str]) -> dict[str, Estimate]:
    return {name: share(mean, error) for name in names}


def search() -> SearchResult:
    return SearchResult(
        length=512,
        documents=1200,
        queries=200,
        longer_than_model=35,
        longer_than_base=640,
        pooling="mean",
        scores={
            TRUNCATED: _search_scores(0.425),
            SAME_TEXT: _search_scores(0.466),
            CHUNKS: _search_scores(0.619),
            MODEL: _search_scores(0.479),
        },
        tokens_read={
            TRUNCATED: TokensRead(limit=BASE_LEN, median=BASE_LEN),
            SAME_TEXT: TokensRead(limit=512, median=512),
            CHUNKS: TokensRead(limit=None, median=1730),
            MODEL: TokensRead(limit=512, median=512),
        },
        changes={
            SAME_TEXT: share(0.041, 0.0149),
            CHUNKS: share(0.194, 0.0236),
            MODEL: share(0.054, 0.0152),
        },
        differences={
            TRUNCATED: _differences(0.054, 0.0152, [*SEARCH_SCORES]),
            SAME_TEXT: _differences(0.013, 0.0102, [*SEARCH_SCORES]),
            CHUNKS: _differences(-0.14, 0.0221, [*SEARCH_SCORES]),
        },
    )


# By name: how much more than nDCG@10.
SEARCH_SCORES = {"nDCG@10": 0.0, "MRR": -0.06, "recall@1": -0.2, "recall@10": 0.26}


def _search_scores(ndcg: float) -> dict[str, Estimate]:
    return {name: share(ndcg + more, 0.021) for name, more in SEARCH_SCORES.items()}


# Evaluations without results.
BERT = Evaluation(
    source="bert-1024",
    model_type="bert",
    kind="masked",
    max_len=1024,
    base="bert-base-uncased",
    base_max_len=512,
)
MINILM = Evaluation(
    source="minilm-512",
    model_type="bert",
    kind="encoder",
    max_len=512,
    base="minilm",
    base_max_len=BASE_LEN,
)

EXTENDED = Evaluation(
    source="gpt2-512",
    model_type="gpt2",
    kind="causal",
    max_len=512,
    base="tiny-gpt2",
    base_max_len=BASE_LEN,
    documents=37,
    tokens=24_576,
    across_documents=True,
    positions=position_losses(512, BASE_LEN),
    contexts=context_losses((32, 64, 128, 256, 512), BASE_LEN),
    effective=effective((64, 128, 256, 512)),
    retrieval=retrieval(),
    seconds=41.25,
    notes=("ctxextend.yaml states the base.",),
)

WITHOUT_BASE = Evaluation(
    source="tiny-gpt2",
    model_type="gpt2",
    kind="causal",
    max_len=BASE_LEN,
    base=None,
    base_max_len=None,
    documents=1,
    tokens=6144,
    positions=position_losses(BASE_LEN, None),
    contexts=context_losses((32, 64, 128), None),
    effective=effective((64, 128)),
    seconds=7.5,
)

ENCODER = replace(
    MINILM,
    documents=200,
    tokens=102_400,
    seed=7,
    effective=effective_of_encoder((128, 256, 512)),
    retrieval=retrieval(),
    seconds=19.0,
)

EFFECTIVE = Evaluation(
    source="llama-8192",
    model_type="llama",
    kind="causal",
    max_len=8192,
    base=None,
    base_max_len=None,
    documents=3,
    tokens=32_768,
    effective=replace(
        effective((256, 512, 1024, 8192), limit=12_288),
        left_out=(2048, 4096),
        left_out_seconds=317.2,
    ),
    seconds=118.0,
)

SEARCH = replace(MINILM, search=search(), seconds=185.0)

MASKED = replace(
    BERT,
    documents=120,
    tokens=49_152,
    contexts=context_losses((128, 256, 512, 1024), 512),
    seconds=33.0,
)

EVALUATIONS = {
    "evaluate-extended": EXTENDED,
    "evaluate-without-base": WITHOUT_BASE,
    "evaluate-encoder": ENCODER,
    "evaluate-masked": MASKED,
    "evaluate-effective": EFFECTIVE,
    "evaluate-effective-at-chance": replace(
        EFFECTIVE, effective=all_at_chance(effective((256, 512, 1024, 8192)))
    ),
    "evaluate-search": SEARCH,
}

# Means and errors at the limits of a report.
EXTREMES = [
    (math.nan, None),
    (-math.inf, math.inf),
    (1e38, 0.0),
    (5e-324, 1e9),
]


def extreme_evaluation(mean: float, error: float | None) -> Evaluation:
    """Return an evaluation with this mean and error everywhere, and markup in its name."""
    extreme = LossEstimate(mean, error, tokens=0, samples=9)
    positions = PositionLosses(
        length=512,
        windows=1,
        losses={MODEL: extreme, SLIDING: extreme},
        changes={SLIDING: extreme},
        buckets=(Bucket(0, 1, {MODEL: extreme}), Bucket(3, 9, {MODEL: extreme, SLIDING: extreme})),
    )
    short = ContextPoint(32, extreme, extreme, base=extreme, against_base=extreme)
    long = replace(short, context=512, base=None)
    lengths = (
        LengthResult(8, texts=1, cells=(cell(0.0, 1.0, found=0, trials=1),), chance=0.1),
        LengthResult(99_999, texts=1, cells=(cell(0.0, 1.0, found=9, trials=9),), chance=0.1),
    )
    tasks = {"key": TaskResult(chance=0.1, lengths=lengths)}
    recall = Recall(
        recall=share(math.nan, error),
        reciprocal_rank=share(0.5, error),
        change=share(mean, error),
    )
    return replace(
        EXTENDED,
        source="--><script>$\\frac{$\na\x1b[31m",
        positions=positions,
        contexts=ContextLosses(BASE_LEN, windows=1, points=(short, long)),
        effective=replace(
            _effective("likelihood rank", (8, 99_999), tasks),
            left_out=(10**9,),
            left_out_seconds=1e18,
        ),
        retrieval=replace(
            retrieval(), documents=0, queries=0, modes={MODEL: recall}, differences={}
        ),
    )
