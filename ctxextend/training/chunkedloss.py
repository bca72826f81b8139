"""The mean loss of tokens by a head of many words, with the logits of few tokens in memory at a time."""

from typing import Any

import torch
from torch.nn import functional

__all__ = ["IGNORED", "LOGITS_AT_ONCE", "chunked_loss"]

# The label of a place at which nothing is to be told, as everywhere in torch.
IGNORED = -100

# Logits that are held at once: 64 MiB of float32, 333 tokens of GPT-2's 50,257 words, and as much of their gradients.
LOGITS_AT_ONCE = 2**24


def chunked_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of what a head makes of hidden states.

    Only states with a label go through the head. Torch's own `linear_cross_entropy` does the work where it is there
    and all is float32. In half precision it returns the loss rounded to that (10.875 for 10.976), and it rounds
    gradients before a loss scale can save them: there, and in older versions of torch, `ChunkedLoss` does it.

    Args:
        head: The output head, d in and v words out; under autocast it multiplies in autocast's dtype.
        states: What stands in front of it, shape (..., d), any float.
        labels: The words to tell, shape (...), int64; `IGNORED` where nothing is to be told.

    Returns:
        A scalar in nats, float32 at least; 0 where there is no label at all.
    """
    is_told = labels != IGNORED
    told, words = states[is_told], labels[is_told]
    dtypes = {states.dtype, head.weight.dtype, _multiplied_in(states)}
    if len(words) and dtypes == {torch.float32} and _torch_has_one():
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=_at_once(head.weight))
        return functional.linear_cross_entropy(told, head.weight, words, linear_bias=head.bias, options=options)
    loss: torch.Tensor = ChunkedLoss.apply(told, head.weight, head.bias, words)  # type: ignore[no-untyped-call]
    return loss


def _torch_has_one() -> bool:
    """Whether the installed torch has such a loss, and it can be told to work in chunks."""
    return hasattr(functional, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions")


def _multiplied_in(states: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a linear layer multiplies states."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def _at_once(weight: torch.Tensor) -> int:
    """Return how many states' logits may be held at once."""
    return max(LOGITS_AT_ONCE // len(weight), 1)


class ChunkedLoss(torch.autograd.Function):
    """The mean cross entropy of a linear head, which makes the gradients of each chunk together with its loss.

    So logits are made once, and no more of them are held than `LOGITS_AT_ONCE`. Products are of the dtype that a
    linear layer would have; the loss and the sums of gradients are float32 at least, and gradients are scaled before
    they are rounded to the dtype of what they belong to. Of what is frozen no gradient is made.

    Source: Hsu et al. 2024, Liger Kernel, section 3.2 (FusedLinearCrossEntropy), arXiv:2410.10989.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, words: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean loss, a scalar in nats, and keep the gradients for `backward`.

        Args:
            ctx: What torch keeps between both.
            states: Shape (n, d).
            weight: The head's, shape (v, d).
            bias: The head's, shape (v,).
            words: The words to tell, shape (n,), int64.
        """
        dtype, size = _multiplied_in(states), _at_once(weight)
        exact = torch.promote_types(dtype, torch.float32)
        given = states, weight, bias
        needed = (x if need else None for x, need in zip(given, ctx.needs_input_grad, strict=False))
        of_states, *others = [x if x is None else torch.zeros_like(x, dtype=exact) for x in needed]
        matrix, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
        loss = torch.zeros((), dtype=exact, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for rows in (slice(start, start + size) for start in range(0, len(words), size)):
                part, theirs = states[rows].to(dtype), None if of_states is None else of_states[rows]
                errors, summed = _errors(functional.linear(part, matrix, shift).to(exact), words[rows])
                loss += summed
                _add_gradients(errors.to(dtype), part, matrix, (theirs, *others))
        ctx.save_for_backward(of_states, *others)
        ctx.count, ctx.dtypes = max(len(words), 1), [None if x is None else x.dtype for x in given]
        return loss / max(len(words), 1)

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of states, weight and bias; those of words are none.

        Args:
            ctx: What `forward` kept.
            scale: What the loss is multiplied by, a scalar.
        """
        # In place: the weight's gradient alone can be as large as everything else.
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *(x if x is None else x.mul_(scale / ctx.count).to(dtype) for x, dtype in pairs), None


def _errors(logits: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn logits, shape (k, v), into the gradients of their summed loss, in place; return them and that loss."""
    normalizers = logits.logsumexp(-1, keepdim=True)
    places = words[:, None]
    loss = (normalizers - logits.gather(1, places)).sum()
    errors = logits.sub_(normalizers).exp_()
    return errors.scatter_add_(1, places, errors.new_full((1, 1), -1).expand_as(places)), loss


def _add_gradients(
    errors: torch.Tensor, states: torch.Tensor, weight: torch.Tensor, grads: tuple[torch.Tensor | None, ...]
) -> None:
    """Add a chunk's gradients to those of its states, shape (k, d), of the weight and of the bias, where wanted."""
    of_states, of_weight, of_bias = grads
    if of_states is not None:
        of_states += errors @ weight
    if of_weight is not None and of_weight.dtype == errors.dtype:
        of_weight.addmm_(errors.T, states)  # no second matrix of that size
    elif of_weight is not None:
        of_weight += errors.T @ states
    if of_bias is not None:
        of_bias += errors.sum(0, dtype=of_bias.dtype)
