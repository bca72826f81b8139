"""Rotary settings go out in both dialects, so that readers of either one get the same.

Transformers 5 reads both; transformers 4, mlx-lm, optimum and others read ``rope_scaling`` and the
keys next to it, and ignore ``rope_parameters`` without an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ctxextend.errors import CheckpointError
from ctxextend.positions.positions import ConfigValues, Keys, Positions, nested, with_values
from ctxextend.positions.rotary_settings import (
    MROPE_TYPE,
    OLD_TYPE,
    RopeLayers,
    positions_of_copies,
    rotary_dim,
    settings_key,
    settings_next_to,
    stated_settings,
    theta_key,
    trained_length_next_to,
)
from ctxextend.tables.rope_types import (
    NEW,
    NTK_ALPHA,
    OLD,
    PARTIAL,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
    rope_type,
    rotates,
)

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary

ADDED = "the same settings in the other dialect"  # why values are added, for users
TYPE_OF_ALPHA = "dynamic"  # how files call `NTK_ALPHA`


def both_dialects(positions: Iterable[Positions]) -> ConfigValues:
    """Return the values that state all rotary settings of a config in both dialects.

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    changes = ConfigValues()
    for item in positions:
        changes |= replace(item, config=with_values(item.config, changes)).values_for({})
    return changes


def state_settings(
    positions: "Rotary", settings: Mapping[str, Parameters], config: Mapping[str, Any]
) -> ConfigValues:
    """Return the config values that give layers other settings, in both dialects.

    The first of these statements is written with which the config means the same to readers of both
    dialects, of only ``rope_parameters``, and of only ``rope_scaling`` and the keys next to it:

    1. ``rope_scaling`` with only the keys that transformers 4 accepts (`OldRotaryKeys`).
    2. ``rope_scaling`` with all settings, which other readers accept.
    3. Only ``rope_parameters``: the old dialect cannot state the settings, such as other scales of
       local layers, or an engine fails on it.

    Copies of the settings around the model's config follow in the dialects that they use.

    Args:
        positions: The config, with the settings as they are.
        settings: New ones, by type of layers; others stay.
        config: The config with its new length, which some settings read.

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    layers = [
        item._replace(parameters=settings.get(item.layer_type, item.parameters))
        for item in positions.layers
    ]
    copies = ConfigValues()
    for copied in positions_of_copies(positions):
        for item, before in zip(layers, positions.layers, strict=True):
            if item != before:
                copies |= _copy_changes(copied, item)
    config = with_values(config, copies)

    always: ConfigValues = {positions.paths_of(OLD)[-1]: None}
    always |= dict(_new_half(positions, layers)) | _trained_length_and_head(positions, layers)
    for candidate in _old_candidates(positions, layers):
        values = always | candidate
        written = replace(positions, config=with_values(config, values))
        if _means(written, layers) and _stating(written, layers) == (NEW, OLD):
            return copies | _differences(positions.config, values)
    return copies | _differences(positions.config, always | _keys_next_to(positions, layers))


def stated_dialects(positions: "Rotary") -> tuple[str, ...]:
    """Return the dialects that state the settings of a config: readers of only one get the same."""
    paths = {NEW: positions.paths_of(NEW), OLD: _old_paths(positions)}
    stating = _stating(positions, positions.layers)
    return tuple(
        dialect
        for dialect in stating
        if any(nested(positions.config, path) is not None for path in paths[dialect])
    )


def _stating(positions: "Rotary", layers: Sequence[RopeLayers]) -> tuple[str, ...]:
    """Return the dialects whose readers find these settings in a config without the other one."""
    without_old = with_values(positions.config, dict.fromkeys(_old_paths(positions)))
    without_new = with_values(positions.config, dict.fromkeys(positions.paths_of(NEW)))
    readers = {NEW: without_old, OLD: without_new}
    return tuple(
        dialect
        for dialect, seen in readers.items()
        if _means(replace(positions, config=seen), layers)
    )


def _old_paths(positions: "Rotary") -> list[Keys]:
    return [path for key in old_keys(positions) for path in positions.paths_of(key)]


def _means(positions: "Rotary", layers: Sequence[RopeLayers]) -> bool:
    try:
        return list(positions.layers) == list(layers)
    except CheckpointError:
        return False


def old_keys(positions: "Rotary") -> list[str]:
    """Return the keys of the old dialect: ``rope_scaling``, base and rotated share."""
    old = positions.rope.old
    return sorted({OLD, THETA, PARTIAL, old.partial_key, *old.theta_keys.values()} - {""})


def _differences(config: Mapping[str, Any], changes: ConfigValues) -> ConfigValues:
    """Return the changes that a config does not state already; of objects, single settings."""
    differences = ConfigValues()
    for path, value in changes.items():
        stated = nested(config, path)
        if stated == value:
            continue
        are_objects = isinstance(stated, Mapping) and isinstance(value, dict)
        # An object with a key that must go is replaced.
        if are_objects and stated.keys() <= value.keys():
            for key, item in value.items():
                if stated.get(key) != item:
                    differences[(*path, key)] = item
        else:
            differences[path] = value
    return differences


# The two halves


def _new_half(positions: "Rotary", layers: Sequence[RopeLayers]) -> Iterator[tuple[Keys, Any]]:
    """Yield ``rope_parameters`` with the settings of all layers."""
    for item in layers:
        settings = {**item.parameters, TYPE: _type_in_files(item.parameters)}
        stated = stated_settings(positions, NEW, item.layer_type)
        if OLD_TYPE in stated:
            settings[OLD_TYPE] = _old_type(positions, stated, item)
        yield positions.paths_of(settings_key(NEW, item.layer_type))[-1], settings


def _old_candidates(positions: "Rotary", layers: Sequence[RopeLayers]) -> Iterator[ConfigValues]:
    """Yield statements by ``rope_scaling`` and the keys next to it, the preferred one first."""
    facts = positions.rope
    main = layers[0]
    theta = main.parameters[THETA]
    if positions.is_loaded or not facts.has_dialects:
        return
    if main.layer_type and not facts.old.reads_scaling:
        return
    if main.layer_type and not rotates(main.parameters):  # the classes fail on both at once
        return
    next_to = _keys_next_to(positions, layers, adds=True)
    scaling = {key: value for key, value in main.parameters.items() if key not in (THETA, PARTIAL)}
    is_scaled = scaling.keys() != {TYPE} or scaling[TYPE] != "default"
    is_needed = is_scaled or facts.old.needs_scaling or main.layer_type in facts.defaults
    stated = stated_settings(positions, OLD, main.layer_type)
    if not is_needed and (not stated or facts.old.scaling_keys):
        yield next_to
        return
    path = positions.paths_of(OLD)[-1]
    name = _type_in_files(main.parameters)
    scaling |= {TYPE: name, OLD_TYPE: _old_type(positions, stated, main)}
    accepted = facts.old.scaling_keys
    if accepted and scaling.keys() >= set(accepted):
        yield {path: {key: scaling[key] for key in accepted}, **next_to}
    # CTranslate2 reads the base only here if there is a `rope_scaling`, and otherwise takes 10,000.
    if is_needed or THETA in stated:
        yield {path: {**scaling, THETA: theta}, **next_to}
    yield {path: scaling, **next_to}


def _keys_next_to(
    positions: "Rotary", layers: Sequence[RopeLayers], *, adds: bool = False
) -> ConfigValues:
    """Return bases and rotated share next to ``rope_scaling``.

    They are removed if transformers 4 would give layers without such a key another base: that of
    the main layers.

    Args:
        positions: The config.
        layers: The settings.
        adds: Whether keys are added; else only those that the config states change.
    """
    main = layers[0].parameters
    values = {positions.rope.old.partial_key: main.get(PARTIAL)}
    misses_a_base = False
    for item in layers:
        key = theta_key(positions, item.layer_type)
        misses_a_base |= not key and item.parameters[THETA] != main[THETA]
        values[key] = item.parameters[THETA]
    changes = ConfigValues()
    for key, value in values.items():
        is_written = adds or positions.stated(key) is not None
        if key and value is not None and is_written:
            changes[positions.paths_of(key)[-1]] = None if misses_a_base else value
    return changes


def _trained_length_and_head(positions: "Rotary", layers: Sequence[RopeLayers]) -> ConfigValues:
    """Return the first trained length and the size of a head next to the settings.

    Transformers 4 reads the first trained length of ``longrope`` settings only here.
    """
    facts = positions.rope
    main = layers[0]
    changes = ConfigValues()
    trained = trained_length_next_to(positions, main.layer_type)
    is_read_here = main.parameters[TYPE] == "longrope" and not main.layer_type
    if TRAINED in main.parameters and (is_read_here or trained is not None):
        changes[positions.paths_of(TRAINED)[-1]] = main.parameters[TRAINED]
    is_changed = main.parameters != positions.layers[0].parameters
    if is_changed and facts.needs_dim and positions.stated(facts.dim_key) is None:
        whole_head = {**main.parameters, TYPE: "default", PARTIAL: 1}
        changes[positions.paths_of(facts.dim_key)[-1]] = rotary_dim(positions, whole_head)
    return changes


def _old_type(positions: "Rotary", stated: Parameters, layers: RopeLayers) -> Any:
    """Return the value of ``type``: as stated if the type stays, else by its name in files."""
    name = _type_in_files(layers.parameters)
    before = {item.layer_type: item.parameters[TYPE] for item in positions.layers}
    if OLD_TYPE in stated and layers.parameters[TYPE] == before[layers.layer_type]:
        return stated[OLD_TYPE]
    if name == "default" and MROPE_TYPE in positions.rope.type_names:
        return MROPE_TYPE
    return name


def _type_in_files(parameters: Parameters) -> str:
    if parameters[TYPE] == NTK_ALPHA:
        return TYPE_OF_ALPHA
    return rope_type(parameters).name


# Copies


def _copy_changes(copied: "Rotary", layers: RopeLayers) -> ConfigValues:
    """Return the values that give a copy of the settings of these layers other settings.

    Transformers does not load types with a trained length next to ``rope_theta`` outside of a text
    config: it moves into the settings.
    """
    after = layers.parameters
    dialects = _copy_dialects(copied)
    theta_path = (*copied.path, theta_key(copied, layers.layer_type))
    has_theta = THETA in settings_next_to(copied, layers.layer_type)
    is_scaled = after[TYPE] != "default"
    is_moved = has_theta and rope_type(after).states_trained and OLD in dialects
    changes = ConfigValues()
    for dialect in dialects:
        stated = stated_settings(copied, dialect, layers.layer_type)
        settings = {**after, TYPE: _type_in_files(after)}
        if dialect == OLD:
            if not is_moved and THETA not in stated:
                settings.pop(THETA)
            if PARTIAL not in stated:
                settings.pop(PARTIAL, None)
            settings[OLD_TYPE] = _type_in_files(after)
            if not is_scaled and not stated:
                continue
        changes[(*copied.path, *settings_key(dialect, layers.layer_type).split("."))] = settings
    if has_theta:
        changes[theta_path] = None if is_moved else after[THETA]
    return changes


def _copy_dialects(copied: "Rotary") -> list[str]:
    """Return the dialects of a copy; without settings, that of the version that wrote it."""
    stated = [dialect for dialect in (OLD, NEW) if copied.stated(dialect)]
    if stated:
        return stated
    if copied.rope.defaults or not copied.rope.old.reads_scaling:
        return [NEW]
    version = str(copied.config.get("transformers_version")).partition(".")[0]
    is_new = version.isdigit() and int(version) >= 5
    has_old_key = any(copied.stated(key) is not None for key in old_keys(copied))
    return [NEW] if is_new and not has_old_key else [OLD]
