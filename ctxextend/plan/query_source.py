"""What a query scale needs of an open checkpoint, and what to note about it."""

from collections.abc import Sequence
from functools import partial

from ctxextend.checkpoints.gguf_checkpoint import gguf_of
from ctxextend.checkpoints.safetensors_file import TORCH_DTYPES
from ctxextend.errors import MethodError
from ctxextend.plan.choose import read_rows
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.query_scale import (
    PlannedQueryScale,
    TensorFacts,
    WeightFacts,
    plan_query_scale,
)
from ctxextend.plan.table_plan import TablePlan
from ctxextend.recipe import Resize


def plan_scale(
    model: OpenedModel, tables: Sequence[TablePlan], settings: Resize
) -> tuple[PlannedQueryScale, OpenedModel]:
    """Plan the query scale of an open checkpoint, and return the model with notes about it.

    Files in Mistral's own format, which have the old weights too, are no longer part of the model.

    Raises:
        MethodError: It does not apply to such a checkpoint.
        CtxextendError: As `plan_query_scale`.
    """
    _check_source(model)
    planned = plan_query_scale(_weight_facts(model), tables, settings)
    if planned.tensors:
        model = model.without_other_format()
    for name in planned.smooth_tables:
        note = (
            f"--query-scale auto is 1: bands finds no high-frequency part in {name}, and without "
            "one, a scale made models worse."
        )
        model = model.with_note(note)
    return planned, model


def _check_source(model: OpenedModel) -> None:
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


def _weight_facts(model: OpenedModel) -> WeightFacts:
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
