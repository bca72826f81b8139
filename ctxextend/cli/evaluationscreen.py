"""An evaluation as lines for a terminal."""

from collections.abc import Iterator

from ctxextend.cli.chart import WHOLE_SCREEN, Pieces, chart_height
from ctxextend.cli.evaluationwording import run_facts
from ctxextend.cli.findinglines import passkey_lines, retrieval_lines
from ctxextend.cli.lines import Screen, labelled
from ctxextend.cli.losslines import context_lines, position_lines
from ctxextend.evaluation.evaluation_result import Evaluation

__all__ = ["evaluation_lines"]


def evaluation_lines(
    evaluation: Evaluation, width: int, *, unicode: bool, screen: int = WHOLE_SCREEN
) -> Iterator[Pieces]:
    """Yield the screen: what was read, then whatever was measured of losses, passkeys and retrieval.

    Args:
        evaluation: What was found; parts that are None are left out.
        width: Characters of a line.
        unicode: Whether charts and figures may use more than ASCII.
        screen: Lines of the screen: charts are lower on a small one.
    """
    room = Screen(width, chart_height(screen), unicode)
    yield [(evaluation.source, "title"), (f" ({evaluation.family}, {evaluation.kind})", "")]
    yield from labelled(run_facts(evaluation), width)
    if not evaluation.complete:
        yield from room.says("incomplete: it ended before all that was asked for was measured", "wrong")
    if evaluation.positions is not None:
        yield from position_lines(evaluation.positions, evaluation, room)
    if evaluation.contexts is not None:
        yield from context_lines(evaluation.contexts, evaluation, room)
    if evaluation.passkey is not None:
        yield from passkey_lines(evaluation.passkey, evaluation, room)
    if evaluation.retrieval is not None:
        yield from retrieval_lines(evaluation.retrieval, room)
