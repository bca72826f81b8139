"""What Mistral's params.json states about positions, next to config.json or by itself.

`families.mistral_params` says how it spells each value.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ctxextend.checkpoints.filenames import PARAMS_FILE
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.mistral_files import has_consolidated, is_translated, params_path
from ctxextend.errors import CheckpointError, joined
from ctxextend.families.lookup import TableLocation
from ctxextend.families.mistral_params import (
    HEAD_DIM_KEY,
    LENGTH_KEYS,
    MAX_POSITIONS,
    SIGN,
    Disagreement,
    check_params,
    disagreements,
    is_params,
    length_in_vllm,
)
from ctxextend.families.rope import RopeLayers, read_rope
from ctxextend.families.rope_dialects import has_settings
from ctxextend.limits.config_keys import agreeing_values
from ctxextend.limits.length_edits import LengthChange, following_value
from ctxextend.limits.statements import STATEMENTS
from ctxextend.tables.rope_types import THETA

READERS_OF_PARAMS = {row.key[-1]: row.read_by for row in STATEMENTS if row.file == PARAMS_FILE}


class ParamsFile(NamedTuple):
    """A params.json, as checked."""

    name: str  # relative to the checkpoint's root
    values: Mapping[str, Any]
    # Whether vLLM reads it before config.json, since consolidated weights are next to it.
    is_read_first: bool
    is_only_config: bool  # whether config.json is missing

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths that it states, in tokens."""
        return {key: self.values[key] for key in LENGTH_KEYS if self.values.get(key) is not None}


def find_params(checkpoint: Checkpoint) -> ParamsFile | None:
    """Return the params.json of a folder; None if it has none, or one of another program.

    Raises:
        CheckpointError: It is malformed, or vLLM reads it and it is that of another program.
    """
    name = params_path(checkpoint)
    if name not in checkpoint.copied:
        return None
    is_read_first = has_consolidated(checkpoint)
    values: Mapping[str, Any] = {}
    if is_read_first:
        values = checkpoint.read_object(name)
    else:
        with suppress(CheckpointError):
            values = checkpoint.read_object(name)
    if not is_params(values):
        if not is_read_first:
            return None
        message = (
            f"{checkpoint.root / name} does not state {joined(SIGN)}, but vLLM takes it for "
            "Mistral's config, since consolidated weights are next to it."
        )
        raise CheckpointError(message, f"Remove or rename {name} if it is of another program.")
    check_params(values, str(checkpoint.root / name))
    return ParamsFile(
        name=name,
        values=values,
        is_read_first=is_read_first,
        is_only_config=is_translated(checkpoint),
    )


def params_disagreements(params: ParamsFile, location: TableLocation) -> Iterator[Disagreement]:
    """Yield where the rotary settings of a params.json are not those of config.json.

    Raises:
        CheckpointError: The settings of config.json are malformed.
    """
    if params.is_only_config or not has_settings(location):
        return
    head_dim = params.values.get(HEAD_DIM_KEY)
    in_config = location.stated(HEAD_DIM_KEY)
    if head_dim is not None and in_config not in (None, head_dim):
        yield Disagreement(HEAD_DIM_KEY, head_dim, HEAD_DIM_KEY, in_config)
    settings = read_rope(location)
    for layers in settings:
        if len(settings) > 1:
            yield _of_layer_type(params, layers)
        else:
            yield from disagreements(params.values, layers.parameters)


def _of_layer_type(params: ParamsFile, layers: RopeLayers) -> Disagreement:
    """Return the disagreement of settings of one type of layers, as which none can be stated."""
    return Disagreement(
        key=THETA,
        value=params.values.get(THETA),
        config_key=layers.layer_type,
        config_value=layers.parameters,
        is_statable=False,
    )


def disagreeing_lengths(
    params: ParamsFile, location: TableLocation, positions: int
) -> dict[str, int]:
    """Return the lengths of a params.json that agree with no length of config.json.

    None without config.json: then the smallest one counts.

    Args:
        params: The file.
        location: The config.
        positions: The number of tokens that it serves.
    """
    if params.is_only_config:
        return {}
    agreeing = agreeing_values(location, positions)
    return {key: value for key, value in params.lengths.items() if value not in agreeing}


def readers_of_length(params: ParamsFile, key: str) -> tuple[str, ...]:
    """Return the programs that read a length of a params.json: none without its weights."""
    if not params.is_read_first:
        return ()
    return READERS_OF_PARAMS[key]


def params_length_changes(
    params: ParamsFile, change: LengthChange, stated_after: int
) -> dict[str, int]:
    """Return the lengths of a params.json that a new context length changes.

    A length that disagrees with the old one states the new length. If no key states a length, one
    is added only if vLLM would take another length without it.

    Args:
        params: The file.
        change: The context length before and after.
        stated_after: What config.json states after the change.
    """
    values = dict(params.values)
    changes = dict[str, int]()
    for key, value in params.lengths.items():
        after = following_value(change, value)
        if after is None:
            after = change.after
        if after != value:
            changes[key] = after
    in_config = None if params.is_only_config else stated_after
    if length_in_vllm({**values, **changes}, in_config) != stated_after:
        changes[MAX_POSITIONS] = stated_after
    return changes
