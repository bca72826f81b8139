"""Parameters of tests."""

from typing import Any

import pytest


def slow(*values: object) -> Any:
    """Return parameters that `make test` leaves out, since others of their kind remain."""
    return pytest.param(*values, marks=pytest.mark.slow)
