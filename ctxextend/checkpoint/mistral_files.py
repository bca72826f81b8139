"""Mistral's own format next to the files of transformers: params.json and consolidated weights.

vLLM 0.33 reads both, if a folder has them, before config.json and other weights: ``get_config`` of
https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/transformers_utils/config.py, and
``_prepare_weights`` of
https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/default_loader.py.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoint.filenames import CONSOLIDATED, matches
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.errors import CheckpointError

# Keys that every params.json of a transformer has; many programs write a file of that name.
SIGN = ("dim", "n_layers", "hidden_dim")


def mistral_params(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return Mistral's params.json; None if there is none, or only that of another program."""
    name = checkpoint.params_file
    if name in checkpoint.copied:
        with suppress(CheckpointError):
            values = checkpoint.read_object(name)
            if all(key in values for key in SIGN):
                return values
    return None


def format_files(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the copied files of Mistral's own format."""
    names = list[str]()
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        if path.parent == checkpoint.model and matches(path.name, CONSOLIDATED):
            names.append(name)
    if mistral_params(checkpoint) is not None:
        names.append(checkpoint.params_file)
    return tuple(names)


def without_format(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that skips the files of Mistral's own format, whose weights are others.

    In a folder with both formats, vLLM would read the old weights.
    """
    stale = format_files(checkpoint)
    skipped = dict.fromkeys(stale, "Mistral's own format, not rewritten")
    return replace(
        checkpoint,
        copied=tuple(name for name in checkpoint.copied if name not in stale),
        omitted={**checkpoint.omitted, **skipped},
    )
