"""Rank candidates by their measurements."""

import time
from collections.abc import Sequence

from ctxextend.comparison.candidates import Candidate
from ctxextend.comparison.comparison_result import Comparison, Row
from ctxextend.comparison.metrics import METRICS
from ctxextend.errors import DataError
from ctxextend.lab.effective import EffectiveTask
from ctxextend.lab.evaluation_result import CHUNKS, SLIDING, Estimate, Evaluation
from ctxextend.lab.evaluation_run import EvaluationRun


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
    hint = "Pass more or longer texts with --data, or a search set with --search."
    raise DataError(message, f"{hint} {advice}".strip())


def rank(candidates: Sequence[Candidate], metric: str) -> tuple[Row, ...]:
    """Return candidates as rows, best first."""
    measure = METRICS[metric]

    def cost(candidate: Candidate) -> float:
        return measure.cost(measure.mean(candidate.scores).mean)

    best = min(candidates, key=cost)
    rows = []
    for candidate in sorted(candidates, key=cost):
        evaluation = candidate.evaluation
        short_inputs = None
        if evaluation.contexts is not None:
            for point in evaluation.contexts.points:
                if point.context == evaluation.base_max_len:
                    short_inputs = point.against_base
        delta = None
        if candidate is not best:
            delta = measure.worsening(candidate.scores, best.scores)
        rows.append(
            Row(
                method=candidate.name,
                keeps_learned_rows=candidate.keeps_learned_rows,
                recipe=candidate.recipe,
                score=measure.mean(candidate.scores),
                delta=delta,
                short_inputs=short_inputs,
                evaluation=evaluation,
                seconds=round(candidate.seconds, 3),
            )
        )
    return tuple(rows)


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
    """Return the comparison of what was measured.

    `run` is the evaluation of any candidate, and `started` the time at which the comparison was;
    the others are fields of `Comparison`.
    """
    rows = rank(candidates, metric)
    warnings = [text for row in rows for text in row.evaluation.warnings]
    return Comparison(
        source=source,
        model_type=model_type,
        kind=run.model.kind,
        table=table,
        max_len_before=max_len_before,
        max_len_after=max_len_after,
        metric=metric,
        base=_score_of_base(rows[0].evaluation),
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
    measured = evaluation.search or evaluation.retrieval
    if evaluation.base is None:
        return None
    if measured is not None:
        return measured.ranking_scores[CHUNKS]
    if evaluation.positions is not None:
        return evaluation.positions.losses[SLIDING]
    return None
