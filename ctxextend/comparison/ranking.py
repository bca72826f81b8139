"""Rank candidates by their measurements."""

import time
from collections.abc import Iterable, Sequence

from ctxextend.comparison.candidates import Candidate, Measurement
from ctxextend.comparison.comparison_result import Comparison, Outcome, Row
from ctxextend.comparison.metrics import METRICS, Metric
from ctxextend.errors import DataError
from ctxextend.evaluation.effective import EffectiveTask
from ctxextend.evaluation.evaluation_result import CHUNKS, SLIDING, Estimate, Evaluation
from ctxextend.evaluation.evaluation_run import EvaluationRun
from ctxextend.evaluation.retrieval import NDCG_AT_10


def check_ranked(run: EvaluationRun, advice: str = "") -> None:
    """Check that the first task of an evaluation ranks models, as `retrieval` ranks encoders.

    Raises:
        DataError: The text is too short for it; `advice` is added to the hint.
    """
    if run.tasks and not isinstance(run.tasks[0], EffectiveTask):
        return
    if run.settings.measures_effective_only:
        return
    reason = next(note for note in run.notes if note.startswith("Retrieval"))
    message = f"Encoders such as {run.model.name} are ranked by document retrieval. {reason}"
    hint = "Pass more or longer texts with --data, or a search set with --corpus."
    raise DataError(message, f"{hint} {advice}".strip())


def rank(candidates: Sequence[Candidate], metric: str) -> tuple[Row, ...]:
    """Return measured candidates, best first and those without training last.

    The deltas of a stage, untrained or trained, refer to the best candidate of that stage.
    """
    measure = METRICS[metric]
    best_untrained = _best((one.untrained for one in candidates), measure)
    best_trained = _best((one.trained for one in candidates), measure)
    rows = list[Row]()
    for candidate in candidates:
        if candidate.untrained is None:
            continue
        trained = None
        if candidate.trained is not None:
            trained = _outcome(candidate.trained, best_trained, measure)
        rows.append(
            Row(
                method=candidate.name,
                keeps_learned_rows=candidate.keeps_learned_rows,
                recipe=candidate.recipe,
                untrained=_outcome(candidate.untrained, best_untrained, measure),
                trained=trained,
                seconds=round(candidate.seconds, 3),
                tuned=candidate.tuned,
            )
        )

    def order(row: Row) -> tuple[bool, float]:
        return row.trained is None, measure.cost(row.final.score.mean)

    return tuple(sorted(rows, key=order))


def _best(stage: Iterable[Measurement | None], metric: Metric) -> Measurement | None:
    """Return the best measurement of a stage; None if nothing was measured."""

    def cost(measurement: Measurement) -> float:
        return metric.cost(metric.mean(measurement.scores).mean)

    return min(filter(None, stage), key=cost, default=None)


def _outcome(measured: Measurement, best: Measurement | None, metric: Metric) -> Outcome:
    delta = None
    if best is not None and measured is not best:
        delta = metric.worsening(measured.scores, best.scores)
    return Outcome(
        score=metric.mean(measured.scores),
        delta=delta,
        short_inputs=_short_inputs(measured.evaluation),
        evaluation=measured.evaluation,
    )


def _short_inputs(evaluation: Evaluation) -> Estimate | None:
    """Return the cost on short inputs; None if it was not measured."""
    if evaluation.contexts is None:
        return None
    for point in evaluation.contexts.points:
        if point.context == evaluation.base_max_len:
            return point.against_base
    return None


def measured_comparison(
    candidates: Sequence[Candidate],
    metric: str,
    run: EvaluationRun,
    started: float,
    *,
    source: str,
    max_len_before: int,
    max_len_after: int,
    model_type: str = "",
    table: str = "",
) -> Comparison:
    """Return the comparison of what was measured so far.

    `run` is the evaluation of any candidate, and `started` the time at which the comparison was;
    the others are fields of `Comparison`.
    """
    rows = rank(candidates, metric)
    evaluations = list[Evaluation]()
    for row in rows:
        evaluations.append(row.untrained.evaluation)
        if row.trained is not None:
            evaluations.append(row.trained.evaluation)
    warnings = [text for evaluation in evaluations for text in evaluation.warnings]
    base = None
    if evaluations:
        base = _score_of_base(evaluations[0])
    return Comparison(
        source=source,
        model_type=model_type,
        kind=run.model.kind,
        table=table,
        max_len_before=max_len_before,
        max_len_after=max_len_after,
        metric=metric,
        base=base,
        rows=rows,
        documents=len(run.text.documents),
        tokens=run.text_tokens,
        limited_by=run.text.limited_by,
        seed=run.settings.seed,
        precision=run.model.precision,
        seconds=round(time.perf_counter() - started, 3),
        warnings=tuple(dict.fromkeys(warnings)),
        notes=run.notes,
    )


def _score_of_base(evaluation: Evaluation) -> Estimate | None:
    """Return the score of the base in pieces; None without a base."""
    has_base = evaluation.base is not None
    if evaluation.search is not None and has_base:
        return evaluation.search.scores[CHUNKS][NDCG_AT_10]
    if evaluation.retrieval is not None:
        return evaluation.retrieval.modes[CHUNKS].reciprocal_rank
    if evaluation.positions is not None and has_base:
        return evaluation.positions.losses[SLIDING]
    return None
