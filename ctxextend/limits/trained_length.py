"""Collect what other files of a folder say about its lengths if the rotary settings do not tell."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from ctxextend.checkpoints.filenames import matches
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, MethodError
from ctxextend.families.lookup import Architecture
from ctxextend.limits.statements import (
    SENTENCE_CONFIG,
    TOKENIZER,
    config_length_keys,
    stated_limits,
)
from ctxextend.positions.positions import Positions
from ctxextend.provenance import read_provenance


def with_trained_length(
    architecture: Architecture, checkpoint: Checkpoint, trained_length: int | None
) -> Architecture:
    """Return an architecture whose rotary positions know their first trained length, if stated.

    Args:
        architecture: That of the checkpoint.
        checkpoint: Its tokenizer files and recipe are read only if the rotary settings leave the
            question open.
        trained_length: The length of the first training, in tokens, as the user states it.

    Raises:
        MethodError: The user states it, but nothing of the positions scales.
    """
    if trained_length is not None:
        return state_trained_length(architecture, trained_length)
    locations = list[Positions]()
    for location in architecture.locations:
        with suppress(CheckpointError):  # reported when the settings are used
            if location.lengths.question:
                seen = tuple(_seen_lengths(location, checkpoint))
                location = replace(location, seen_lengths=seen)
        locations.append(location)
    return architecture._replace(locations=tuple(locations))


def state_trained_length(architecture: Architecture, trained_length: int) -> Architecture:
    """Return an architecture whose rotary positions were first trained at a length, in tokens.

    Raises:
        MethodError: Nothing of its positions scales.
    """
    locations = [
        location.with_trained_length(trained_length) for location in architecture.locations
    ]
    if all(location.trained_length is None for location in locations):
        schemes = " and ".join(dict.fromkeys(location.scheme for location in locations))
        message = f"--trained-length applies to rotary positions that scale, not to {schemes} ones"
        raise MethodError(
            f"{message} of {architecture.family.model_type}.", "Remove --trained-length."
        )
    return architecture._replace(locations=tuple(locations))


def with_config_lengths(architecture: Architecture) -> Architecture:
    """Return an architecture whose rotary positions know the lengths that other keys state."""
    locations = list[Positions]()
    for location in architecture.locations:
        seen = tuple(length for _, length in config_length_keys(location))
        locations.append(replace(location, seen_lengths=seen))
    return architecture._replace(locations=tuple(locations))


def may_lack_scaling(location: Positions, checkpoint: Checkpoint) -> bool:
    """Whether a rotary length may have been raised by hand, past the one of the training.

    Unscaled settings look the same as those of a model that was trained at the length. A recipe
    that made the length tells them apart.

    Raises:
        CheckpointError: The config states no valid length, or malformed rotary settings.
    """
    if not location.methods or location.trained_length is not None:
        return False
    lengths = location.lengths
    if lengths.served != lengths.first_trained:
        return False
    provenance = read_provenance(checkpoint)
    if provenance is None:
        return True
    _, after = provenance.steps[-1].rows.get(location.usual_name, (0, 0))
    return location.positions_in(after) != lengths.context


def may_state_trained_length(file: str) -> bool:
    """Whether a limit in a file may be the length of the training.

    Configs and model_max_length of tokenizers state what a model reads. The limits of tokenizers
    and of sentence-transformers are often shorter on purpose.
    """
    name = PurePosixPath(file).name
    return name != TOKENIZER and not matches(name, SENTENCE_CONFIG)


def lower_stated_length(location: Positions, checkpoint: Checkpoint, length: int) -> int | None:
    """Return the largest length below one that may be the length of the training.

    Args:
        location: The positions, whose other keys in the config may state it.
        checkpoint: Its tokenizer files may state it.
        length: The length, in tokens.
    """
    stated = [value for _, value in config_length_keys(location)]
    if location.tokenizer is not None:
        for limit in stated_limits(checkpoint, location.tokenizer):
            if limit.tokens is not None and may_state_trained_length(limit.file):
                stated.append(limit.tokens)
    return max((value for value in stated if value < length), default=None)


def _seen_lengths(location: Positions, checkpoint: Checkpoint) -> Iterator[int]:
    """Yield the lengths that a recipe, other keys of the config and tokenizer files state, in
    tokens.
    """
    provenance = read_provenance(checkpoint)
    if provenance is not None:
        _, after = provenance.steps[-1].rows.get(location.usual_name, (0, 0))
        yield location.positions_in(after)
    for _, length in config_length_keys(location):
        yield length
    for limit in stated_limits(checkpoint, location.tokenizer or ""):
        if limit.tokens is not None:
            yield limit.tokens
