"""How a model is told at which positions its tokens stand, found out by trying."""

import torch

from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.eval_model import EvalModel, prepare_inputs

__all__ = ["position_base"]

# The rows of the table that are tried: as a text stands without being told, the other way round, and with a jump.
USUAL, REVERSED, JUMPING = (0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 5, 6)

# Two answers are the same where they differ by less than this part of what other positions change.
SAME = 0.01


def position_base(reader: EvalModel) -> int:
    """Return what a model counts its first usable position as.

    Some number the rows of their tables, those in front of position 0 included, and others number positions. A model
    numbers as it is told where the usual positions change nothing and others do.

    Args:
        reader: The model, not in training.

    Raises:
        UnsupportedModelError: It takes no position ids, takes no heed of them, or does not read back across a jump.
    """
    try:
        bases = [base for base in (0, reader.reserved_rows) if _counts_from(reader, base)]
    except (IndexError, RuntimeError, TypeError, ValueError):  # each class has its own way to take no position ids
        bases = []
    if not bases:
        raise UnsupportedModelError(
            f"{reader.name} cannot be told at which positions a text stands: models of type {reader.family} count "
            "them by themselves.",
            "Leave --window out.",
        )
    return bases[0]


def _counts_from(reader: EvalModel, base: int) -> bool:
    """Whether positions that begin with this number are the usual ones, and others are read as they are told."""
    usual, told, reversed_ = (_answer(reader, places, base) for places in (None, USUAL, REVERSED))
    jumping, other = (_answer(reader, JUMPING, base, first) for first in (0, 1))
    if _difference(told, usual) < SAME * _difference(reversed_, usual):
        return _difference(jumping[:, -1], other[:, -1]) > 0
    return False


def _answer(reader: EvalModel, places: tuple[int, ...] | None, base: int, first: int = 0) -> torch.Tensor:
    """Return what a model gives for a text of four tokens that stand at some places, shape (1, 4, …), float32."""
    device, words = reader.model.device, int(reader.model.config.get_text_config().vocab_size)
    ids = torch.arange(len(USUAL), device=device)[None] + min(words // 2, 100)  # clear of what stands for padding
    ids[0, 0] -= first
    positions = None if places is None else torch.tensor([places], device=device) + base
    given = prepare_inputs(reader.model, ids, positions)
    with torch.inference_mode():
        found: torch.Tensor = reader.model(**given)[0]
    return found.float()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
