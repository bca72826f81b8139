"""What an engine did with a folder, from the values that it returned."""

from typing import NamedTuple

import numpy as np

from tests.engines.cases import Prepared, Values
from tests.engines.models import OLD

# A model without the method must differ from the reference by this many tolerances.
MARGIN = 20


class Outcome(NamedTuple):
    """An outcome with the numbers that it is based on."""

    name: str  # right, wrong, refused, vague, or a key of `Prepared.others`
    difference: float  # largest one to the reference beyond the old length; nan if refused
    # The smallest one of `Prepared.others`, which must be larger; nan if there are none.
    others_difference: float
    note: str = ""  # the first line of the engine's error


def classify_short(prepared: Prepared, values: Values, tolerance: float) -> str:
    """Return what an engine did with an input of the old length.

    It is right, wrong, vague or "long": with the frequencies of longer inputs.
    """
    assert prepared.short_reference is not None
    values = values[:, : prepared.short_reference.shape[1]]
    long = prepared.reference[:OLD]
    if float(np.abs(prepared.short_reference - long).max()) < MARGIN * tolerance:
        return "vague"
    if float(np.abs(values - prepared.short_reference).max()) <= tolerance:
        return "right"
    if float(np.abs(values - long).max()) <= tolerance:
        return "long"
    return "wrong"


def classify(prepared: Prepared, values: Values, tolerance: float) -> Outcome:
    """Return the outcome of a run that returned values."""
    beyond = slice(OLD, None)
    if values.shape[0] != prepared.reference.shape[0]:
        return Outcome("wrong", np.nan, np.nan, f"shape {values.shape}")
    values = values[:, : prepared.reference.shape[1]]
    if values.shape != prepared.reference.shape:
        return Outcome("wrong", np.nan, np.nan, f"shape {values.shape}")
    difference = float(np.abs(values - prepared.reference)[beyond].max())
    others = {
        name: float(np.abs(other - prepared.reference)[beyond].max())
        for name, other in prepared.others.items()
    }
    apart = min(others.values(), default=np.nan)
    if apart < MARGIN * tolerance:
        return Outcome("vague", difference, apart)
    if difference <= tolerance:
        return Outcome("right", difference, apart)
    for name, other in prepared.others.items():
        if float(np.abs(values - other)[beyond].max()) <= tolerance:
            return Outcome(name, difference, apart)
    return Outcome("wrong", difference, apart)
