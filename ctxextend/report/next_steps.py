"""The command to type after a result, with the names that the user typed."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ctxextend.errors import not_an_option

if TYPE_CHECKING:
    from ctxextend.comparison.comparison_result import Comparison
    from ctxextend.lab.evaluation_result import Evaluation
    from ctxextend.inspection.inspection_result import Inspection

STEPS = 200  # of a first training
TEXT = "TEXT"  # where the user's text goes


def after_comparison(comparison: "Comparison") -> str:
    """Return the command that uses the best row."""
    if comparison.row_type == "checkpoint":
        best = comparison.rows[0]
        assert best.checkpoint is not None
        return f"ctxextend inspect {_word(best.checkpoint.source)}"
    return comparison.next_command


def after_evaluation(evaluation: "Evaluation", data: Sequence[str] = ()) -> str:
    """Return the command that follows from how much a longer context helps.

    Args:
        evaluation: The result.
        data: The text that it was measured on.
    """
    source = _word(evaluation.source)
    texts = " ".join(shlex.quote(path) for path in data) or TEXT
    if evaluation.base is None:
        return f"ctxextend inspect {source}"
    # Whether a longer context helps by more than its 95 % interval.
    measured = evaluation.search or evaluation.retrieval
    helps = False
    if evaluation.contexts is not None:
        helps = evaluation.contexts.points[-1].change.sign == -1
    elif measured is not None and measured.against_chunks is not None:
        helps = measured.against_chunks.sign == 1
    if helps:
        return f"ctxextend verify {source} --deep"
    return f"ctxextend train {source} --data {texts} --steps {STEPS}"


def after_inspection(inspections: "Sequence[Inspection]") -> str:
    """Return the command that the first checkpoint with a finding needs, or one to go on.

    If only the user knows which command that is, it is the one that shows them all.
    """
    for inspection in inspections:
        for limit in inspection.limits:
            if limit.fix is not None:
                return limit.fix
            if limit.choices:
                return f"ctxextend inspect {_word(inspection.source)} --check"
    for inspection in inspections:
        if inspection.has_untrained_new_rows:
            source = _word(inspection.source)
            return f"ctxextend train {source} --data {TEXT} --steps {STEPS}"
    first = inspections[0]
    source = _word(first.source)
    if first.method is not None or first.trainable is not None:
        return f"ctxextend evaluate {source} --data {TEXT}"
    return f"ctxextend resize {source} --to 2x"


def _word(source: str) -> str:
    return shlex.quote(not_an_option(source))
