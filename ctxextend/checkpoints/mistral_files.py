"""Mistral's own format in a checkpoint: next to the files of transformers, or by itself.

vLLM 0.33 reads params.json and consolidated weights, if a folder has both, before config.json and
other weights: ``get_config`` of
https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/transformers_utils/config.py, and
``_prepare_weights`` of
https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/default_loader.py.
"""

from dataclasses import replace
from pathlib import PurePosixPath

from ctxextend.checkpoints.filenames import (
    CONSOLIDATED,
    CONSOLIDATED_INDEX,
    PARAMS_FILE,
    first_match,
    is_consolidated,
    matches,
)
from ctxextend.checkpoints.folder import Checkpoint

# Why its files are skipped.
STALE_FORMAT = "Meta's or Mistral's own format, not rewritten"

# Its config, weights and index; the last one is from before safetensors.
FORMAT_FILES = (PARAMS_FILE, CONSOLIDATED, CONSOLIDATED_INDEX, "consolidated.*.pth")


def is_translated(checkpoint: Checkpoint) -> bool:
    """Whether the config is params.json in the words of transformers, without a config.json."""
    return checkpoint.config_name == PARAMS_FILE


def has_only_format(checkpoint: Checkpoint) -> bool:
    """Whether the weights are Mistral's own ones, with or without a config.json.

    transformers does not load them.
    """
    return any(is_consolidated(PurePosixPath(name).name) for name in checkpoint.weights.files)


def params_path(checkpoint: Checkpoint) -> str:
    """Return the path at which a folder has a params.json, if it has one."""
    return (checkpoint.model / PARAMS_FILE).as_posix()


def has_params(checkpoint: Checkpoint) -> bool:
    """Whether a folder has a params.json, which may be that of another program."""
    return params_path(checkpoint) in checkpoint.copied


def has_consolidated(checkpoint: Checkpoint) -> bool:
    """Whether a folder has weights that vLLM reads before those of transformers."""
    names = (*checkpoint.copied, *checkpoint.weights.files, *checkpoint.source.not_downloaded)
    for name in names:
        path = PurePosixPath(name)
        if path.parent == checkpoint.model and matches(path.name, CONSOLIDATED):
            return True
    return False


def format_files(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the copied files of Mistral's own format: params.json and consolidated weights.

    A params.json by itself may be that of another program.
    """
    names = list[str]()
    for name in checkpoint.copied:
        path = PurePosixPath(name)
        pattern = first_match(PurePosixPath(path.name), FORMAT_FILES)
        if path.parent == checkpoint.model and pattern is not None:
            names.append(name)
    if names == [params_path(checkpoint)]:
        return ()
    return tuple(names)


def without_format(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that skips the files of Mistral's own format, whose weights are others.

    In a folder with both formats, vLLM would read the old weights.
    """
    stale = format_files(checkpoint)
    if not stale:
        return checkpoint
    return replace(
        checkpoint,
        copied=tuple(name for name in checkpoint.copied if name not in stale),
        omitted={**checkpoint.omitted, **dict.fromkeys(stale, STALE_FORMAT)},
    )
