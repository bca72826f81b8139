"""Other programs in which the losses of a training can be seen while it runs."""

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ctxextend.errors import TrainingError

__all__ = ["check_shown"]

# What transformers takes beside the programs' names.
NONE, ALL = "none", "all"


def check_shown(name: str) -> None:
    """Refuse a program that transformers does not know, or that is not installed, before long work begins.

    Args:
        name: As transformers calls it; ``none`` is none, ``all`` is whatever is installed.

    Raises:
        TrainingError: Losses cannot be shown there.
    """
    if name in (NONE, ALL):
        return
    if name not in INTEGRATION_TO_CALLBACK:
        raise TrainingError(
            f"There is no --report-to {name}.", f"There are {', '.join((NONE, ALL, *sorted(INTEGRATION_TO_CALLBACK)))}."
        )
    try:
        INTEGRATION_TO_CALLBACK[name]()
    except (ImportError, RuntimeError) as error:  # each has its own way to miss its package
        said = " ".join(str(error).split())[:200]
        raise TrainingError(
            f"--report-to {name} cannot be used here: {said}", f"pip install {name}, or leave it out."
        ) from error
