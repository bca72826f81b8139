"""The positions of a GGUF file, and why some cannot be resized."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ctxextend.checkpoint.folder import Checkpoint, no_lm
from ctxextend.checkpoint.gguf_checkpoint import gguf_file, gguf_values
from ctxextend.errors import CheckpointError, MethodError, ResizeError
from ctxextend.families.registry import Architecture
from ctxextend.gguf.gguf_architectures import GGUF_ARCHITECTURES, GGUF_METHODS, GgufArchitecture
from ctxextend.gguf.gguf_config import ROUTE, SLIDING_WINDOW
from ctxextend.gguf.gguf_positions import gguf_architecture
from ctxextend.positions.positions import Positions, nested
from ctxextend.settings import CheckpointRef
from ctxextend.tables.rope_types import TYPE

ROW_DTYPES = ("F32", "F16", "BF16")  # others consist of blocks of quantised values
# How GGUF files state what no key of theirs can, by method.
NOT_STATED: Mapping[str, str] = {
    "dynamic": "has no key for a base that follows the length of the input",
    "llama3": "states these settings as a tensor of factors, rope_freqs.weight",
    **dict.fromkeys(
        ("longrope", "switch"),
        "states these settings as two tensors of factors, rope_factors_long.weight and "
        "rope_factors_short.weight",
    ),
    "proportional": "has no key for these settings",
}
# Flags that describe other checkpoints: a GGUF file states all that they say.
OTHER_FLAGS: Mapping[str, str] = {
    "model_type": "--model-type",
    "table": "--table",
    "tokenizer": "--tokenizer",
}


def check_gguf_ref(ref: CheckpointRef) -> None:
    """Check that a reference to a GGUF file has only settings that apply to one.

    Raises:
        MethodError: It has others.
    """
    for name, flag in OTHER_FLAGS.items():
        if getattr(ref, name) is not None:
            message = f"{flag} does not apply to {ref.source}: a GGUF file states its architecture."
            raise MethodError(message, f"Remove {flag}.")


def find_gguf_positions(checkpoint: Checkpoint) -> Architecture:
    """Return the positions of a GGUF file."""
    return gguf_architecture(checkpoint.config, gguf_values(checkpoint), checkpoint.config_file)


def measure_gguf_tables(
    checkpoint: Checkpoint, architecture: Architecture
) -> tuple[Positions, ...]:
    """Return the position table of a GGUF file, or its positions without one.

    Raises:
        CheckpointError: The table is missing, or has another shape than the file states.
    """
    (location,) = architecture.locations
    if not location.tensor:
        return (replace(location, name=location.usual_name),)
    file = gguf_file(checkpoint)
    entry = file.entries.get(location.tensor)
    if entry is None:
        raise CheckpointError(f"{file.path} has no tensor {location.tensor}.", ROUTE)
    width = nested(location.config, (*location.path, "embedding_length"))
    if len(entry.shape) != 2 or entry.shape[1] != width or not entry.shape[0]:
        message = (
            f"{file.path}: {location.tensor} has shape {list(entry.shape)}, expected (rows, "
            f"{width}) by {location.family.model_type}.embedding_length."
        )
        raise CheckpointError(message, ROUTE)
    table = replace(
        location,
        name=location.tensor,
        rows=entry.shape[0],
        hidden_size=width,
        dtype=entry.dtype,
        weights_file=checkpoint.relative(file),
        read=partial(checkpoint.weights.read_floats, location.tensor),
        no_lm=no_lm(checkpoint),
    )
    return (table,)


def is_quantised(table: Positions) -> bool:
    """Whether a table of a GGUF file consists of blocks of quantised values."""
    return bool(table.dtype) and table.dtype not in ROW_DTYPES


def check_not_quantised(checkpoint: Checkpoint, table: Positions) -> None:
    """Raise CheckpointError for a table whose rows cannot be read."""
    if is_quantised(table):
        path = gguf_file(checkpoint).path
        message = f"{path}: {table.name} is quantised ({table.dtype}), so it cannot be resized."
        raise CheckpointError(message, ROUTE)


def check_scales(checkpoint: Checkpoint, location: Positions, method: str) -> None:
    """Check that a GGUF file can state scaled rotary settings, and that llama.cpp applies them.

    Args:
        checkpoint: The file.
        location: Its positions.
        method: As requested, or chosen.

    Raises:
        MethodError: It cannot, or llama.cpp does not.
        ResizeError: No method applies to the file.
    """
    if method in NOT_STATED:
        raise MethodError(
            f"--method {method}: the GGUF format {NOT_STATED[method]}.",
            f"Use one of {', '.join(GGUF_METHODS)}. {ROUTE}",
        )
    _check_no_factors(checkpoint, location)
    row = GGUF_ARCHITECTURES[location.family.model_type]
    _check_kept_type(checkpoint, location, row)
    if method == "theta" and row.local_base == "shared":
        _check_no_window(checkpoint, location)
    if method in row.methods:
        return
    message = f"--method {method} does not apply to architecture {row.name}: {row.reason}."
    hint = ROUTE
    if row.methods:
        hint = f"Use --method {' or '.join(row.methods)}."
    raise MethodError(message, hint)


def _check_kept_type(checkpoint: Checkpoint, location: Positions, row: GgufArchitecture) -> None:
    """Raise ResizeError if the file has scaled settings of a type that the architecture changes.

    Scaled settings keep their type, so no method applies to them.
    """
    for layers in location.layers:
        kind = layers.parameters[TYPE]
        if kind == "default" or kind in row.methods:
            continue
        message = (
            f"{checkpoint.root / checkpoint.config_file} has {kind} settings, and those of "
            f"architecture {row.name} cannot be scaled further: {row.reason}."
        )
        raise ResizeError(message, ROUTE)


def _check_no_window(checkpoint: Checkpoint, location: Positions) -> None:
    """Raise MethodError if layers have a sliding window."""
    architecture = location.family.model_type
    if not gguf_values(checkpoint).get(f"{architecture}.{SLIDING_WINDOW}"):
        return
    raise MethodError(
        f"--method theta does not apply to architecture {architecture} with a sliding window: "
        "llama.cpp gives the layers that have one the base of the others, and they keep theirs.",
        "Use --method yarn or linear.",
    )


def _check_no_factors(checkpoint: Checkpoint, location: Positions) -> None:
    """Raise ResizeError if tensors of factors divide the frequencies too.

    llama.cpp applies them in addition to what the metadata state.
    """
    found: Any = nested(location.config, (*location.path, "factor_tensors"))
    if not found:
        return
    message = (
        f"{checkpoint.root / checkpoint.config_file} has {found[0]}, which divides its rotary "
        "frequencies in addition to what its metadata state: how they are scaled together was not "
        "trained."
    )
    raise ResizeError(message, ROUTE)
