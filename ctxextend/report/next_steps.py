"""The command to type after a result, with the names that the user typed."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ctxextend.errors import not_an_option

if TYPE_CHECKING:
    from ctxextend.inspection.inspection_result import Inspection

STEPS = 200  # of a first training
TEXT = "TEXT"  # where the user's text goes


def after_inspection(inspections: "Sequence[Inspection]") -> str:
    """Return the command that the first checkpoint with a finding needs, or one to go on."""
    for inspection in inspections:
        for limit in inspection.limits:
            if limit.fix is not None:
                return limit.fix
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
