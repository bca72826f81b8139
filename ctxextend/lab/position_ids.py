"""Whether a model accepts position ids, and where it counts them from."""

from typing import TYPE_CHECKING

from ctxextend.errors import UnsupportedModelError
from ctxextend.lab.eval_model import EvalModel, prepare_inputs
from ctxextend.models.load import first_trial_token

if TYPE_CHECKING:
    import torch

# Position ids that are tried, from the base on: default, reversed, and with a jump.
DEFAULT_IDS = (0, 1, 2, 3)
REVERSED_IDS = (3, 2, 1, 0)
JUMPING_IDS = (0, 1, 5, 6)
# Outputs count as equal if they differ by less than this share of the effect of reversed positions.
EQUAL_SHARE = 0.01


def position_base(model: EvalModel) -> int:
    """Return the position id of a model's first usable position: 0, or its number of unusable rows.

    No config states it, so both are tried: with the right base, default positions change nothing
    and others do.

    Raises:
        UnsupportedModelError: Neither works.
    """
    try:
        bases = [base for base in (0, model.unusable_rows) if _counts_from(model, base)]
    except (IndexError, RuntimeError, TypeError, ValueError):
        bases = []  # model classes reject position ids differently
    if not bases:
        reason = f"{model.model_type} models compute positions themselves"
        message = f"{model.name} does not accept position ids: {reason}."
        raise UnsupportedModelError(message, "Remove --window.")
    return bases[0]


def _counts_from(model: EvalModel, base: int) -> bool:
    """Whether a model's position ids start at `base`, and attention works across a jump in them."""
    import torch

    expected = _output(model, None)
    default = _output(model, DEFAULT_IDS, base)
    turned = _output(model, REVERSED_IDS, base)
    effect = (turned - expected).abs().max()
    if (default - expected).abs().max() >= EQUAL_SHARE * effect:
        return False
    last = _output(model, JUMPING_IDS, base)[:, -1]
    other = _output(model, JUMPING_IDS, base, first_token=-1)[:, -1]
    return not torch.equal(last, other)


def _output(
    model: EvalModel, positions: tuple[int, ...] | None, base: int = 0, *, first_token: int = 0
) -> "torch.Tensor":
    """Return a model's output for four tokens, float32; `first_token` is added to the first."""
    import torch

    vocab_size = int(model.model.config.get_text_config().vocab_size)
    ids = torch.arange(4, device=model.model.device)[None] + first_trial_token(vocab_size)
    ids[0, 0] += first_token
    position_ids = None
    if positions is not None:
        position_ids = torch.tensor([positions], device=ids.device) + base
    with torch.inference_mode():
        inputs = prepare_inputs(model.model, ids, position_ids)
        output: torch.Tensor = model.model(**inputs)[0]
    return output.float()
