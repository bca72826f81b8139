"""What a query scale needs of an open checkpoint, and what to note about it."""

from functools import partial

from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.safetensors_file import TORCH_DTYPES
from ctxextend.errors import MethodError
from ctxextend.plan.choose import read_rows
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.query_scale import PlannedQueryScale, TensorFacts, WeightFacts


def check_scales_weights(model: OpenedModel) -> None:
    """Check that a checkpoint contains the weights of a known model, as floats.

    Raises:
        MethodError: It is a GGUF file, an adapter, or a model of which the user named the table.
    """
    checkpoint = model.checkpoint
    message = ""
    if gguf_of(checkpoint) is not None:
        message = "--query-scale does not apply to a GGUF file."
        hint = "Use it on the checkpoint that it was made from, a folder."
    elif model.ref.tensor is not None:
        message = "--query-scale cannot be used with --tensor, which names only the table."
        hint = "Remove one of them."
    elif checkpoint.adapter_of:
        message = "--query-scale changes weights of the base, and this is an adapter."
        hint = f"Resize {checkpoint.adapter_of} with --query-scale, and merge the adapter first."
    if message:
        raise MethodError(message, hint)


def weight_facts(model: OpenedModel) -> WeightFacts:
    """Return what a query scale depends on of the weights of a checkpoint."""
    checkpoint = model.checkpoint
    tensors = dict[str, TensorFacts]()
    for name, entry in checkpoint.weights.entries.items():
        dtype = TORCH_DTYPES.get(entry.dtype, entry.dtype)
        tensors[name] = TensorFacts(shape=entry.shape, dtype=dtype)
    return WeightFacts(
        tensors=tensors,
        is_quantised=bool(checkpoint.config.get("quantization_config")),
        read_rows=partial(read_rows, checkpoint),
    )


def with_scale_notes(model: OpenedModel, planned: PlannedQueryScale) -> OpenedModel:
    """Return a model that no longer has other copies of scaled weights, with notes on the scale."""
    if planned.tensors:
        model = model.without_other_format()
    for name in planned.smooth_tables:
        note = (
            f"--query-scale auto is 1: bands finds no high-frequency part in {name}, and without "
            "one, a scale made models worse."
        )
        model = model.with_note(note)
    return model
