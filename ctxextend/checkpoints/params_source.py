"""A folder whose only weights are in Mistral's own format: how it is found, and what is read.

Its params.json states the config, where config.json is missing. Consolidated weights by themselves,
or a params.json by itself, are not enough: the former are also Meta's, and many programs write the
latter.
"""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.filenames import (
    CONSOLIDATED,
    CONSOLIDATED_INDEX,
    PARAMS_FILE,
    first_consolidated,
)
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import Source, has_file
from ctxextend.errors import CheckpointError


def has_params_format(source: Source, folder: Path) -> bool:
    """Whether a model's folder has params.json and its weights.

    Raises:
        CheckpointError: The params.json is not a regular file inside the folder.
    """
    if source.file is not None or not has_file(source, folder / PARAMS_FILE):
        return False
    return bool(_consolidated(source, folder))


def read_translated(folder: Path) -> Mapping[str, Any]:
    """Return the config that transformers would have of the params.json in a folder.

    Raises:
        CheckpointError: It is malformed, or cannot be translated.
    """
    from ctxextend.families.mistral_params import config_of_params

    path = folder / PARAMS_FILE
    return config_of_params(load_object(path), str(path))


def find_consolidated(source: Source, folder: Path) -> str:
    """Return the name of the weights next to params.json: of their index, or of the only file.

    Raises:
        CheckpointError: There are only shards, without their index.
    """
    name = first_consolidated(folder)
    if name is not None:
        return name
    shards = ", ".join(_consolidated(source, folder))
    message = f"{folder} has no {CONSOLIDATED_INDEX}, only {shards}."
    raise CheckpointError(message, f"Download {CONSOLIDATED_INDEX}, which lists their tensors.")


def _consolidated(source: Source, folder: Path) -> list[str]:
    """Return the names of the consolidated weights of a folder, also of those on the Hub only."""
    names = (*(path.name for path in folder.iterdir()), *source.not_downloaded)
    return sorted(name for name in names if fnmatch(name, CONSOLIDATED))
