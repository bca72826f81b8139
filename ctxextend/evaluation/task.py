"""What an evaluation measures, one task at a time."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Task(Protocol):
    """Something to measure of a model, and its results."""

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads."""

    @property
    def base_tokens(self) -> int:
        """The number of tokens that the base reads."""
        return 0

    @property
    def scores(self) -> tuple[NDArray[np.float64], ...]:
        """The values that rank models, per window or document, each of shape (k,); maybe none."""
        return ()

    def run_base(self, advance: Callable[[int], None]) -> None:
        """Run the base, whose results are reused for each model; by default there is none to run.

        `advance` is called with the tokens of each step.
        """
        return

    def measure(self, advance: Callable[[int], None]) -> None:
        """Run the model, and the base if it was not run yet.

        `advance` is called with the tokens of each step.
        """

    def report(self) -> dict[str, Any]:
        """Return fields of `Evaluation`, with ``warnings`` if there are any."""
