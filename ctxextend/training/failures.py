"""What ends a training early, and what is left of it then."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ctxextend.errors import TrainingError
from ctxextend.training.devices import first_failed
from ctxextend.training.trainer import NotFiniteError, RunTrainer, not_saved
from ctxextend.training.work import Work

if TYPE_CHECKING:
    from ctxextend.training.learning import Learner

__all__ = ["explained"]


@contextmanager
def explained(learner: "Learner", trainer: RunTrainer, work: Work) -> Iterator[None]:
    """Turn what ends a training early into errors that say what is left, and what to do.

    Args:
        learner: What is trained.
        trainer: What takes its steps.
        work: Where saves are.

    Raises:
        TrainingError: A number was not finite, or memory did not suffice.
        OutputError: The log or a save could not be written.
    """
    try:
        yield
    except NotFiniteError as error:
        failed = _not_finite(learner, trainer, error, work)
        raise (failed if trainer.is_world_process_zero() else first_failed()) from None
    except OSError as error:  # on a full disk the log is the first that cannot be written
        raise not_saved(work, learner.trained, error) from error
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "can't allocate memory" not in str(error):
            raise
        count, length = learner.choice.micro_batch, learner.opened.length
        raise TrainingError(
            f"The memory did not hold {count} sequences of {length:,} tokens at once.",
            "Give a smaller --micro-batch, a shorter --seq-len, or --window.",
        ) from error


def _not_finite(learner: "Learner", trainer: RunTrainer, error: NotFiniteError, work: Work) -> TrainingError:
    """Save what was learned before a number was not finite, if that is sound, and return what to say."""
    step, steps = error.step, learner.opened.settings.steps
    if step == 0:
        return TrainingError(
            f"The loss of {learner.opened.files.ref.source} is no finite number before the first step.",
            "Look at its table: ctxextend inspect; or train with --precision fp32.",
        )
    if _is_sound(trainer):
        trainer._save_checkpoint(trainer.model, None)
    elif work.step == trainer.state.global_step and trainer.is_world_process_zero():
        work.remove_last()
    kept = work.step
    again = f"Begin anew with an --lr below {learner.lr:.2g}" + " and --force" * bool(kept)
    return TrainingError(
        f"The loss or its gradient is no finite number at step {step} of {steps}. "
        + (f"What was learned until step {kept} is saved in {work.save}." if kept else "Nothing was saved."),
        f"{again}, or write what is saved: the same command with --resume --steps {kept}." if kept else f"{again}.",
    )


def _is_sound(trainer: RunTrainer) -> bool:
    """Whether a model that was not given its last step can still read the held-out text."""
    if not trainer.state.global_step:
        return False
    try:
        trainer.evaluate()
    except NotFiniteError:
        return False
    return True
