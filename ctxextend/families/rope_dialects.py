"""Both dialects of rotary settings in one config, so that readers of either one get the same.

Transformers 5 reads both; transformers 4, mlx-lm, optimum and others read ``rope_scaling`` and the
keys next to it, and ignore ``rope_parameters`` without an error.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.errors import CheckpointError
from ctxextend.families.rope import (
    MROPE_TYPE,
    OLD_TYPE,
    RopeLayers,
    read_rope,
    rotary_facts,
    settings_key,
)
from ctxextend.families.rope_changes import Changes, effective_path, theta_key
from ctxextend.positions.positions import Keys, Positions, nested
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
)

ADDED = "the same settings in the other dialect"  # why values are added, for users
TYPE_OF_ALPHA = "dynamic"  # how files call `NTK_ALPHA`


def both_dialects(locations: Iterable[Positions]) -> Changes:
    """Return the values that state all rotary settings of a config in both dialects.

    They are those of `with_other_dialect`, for each part of a model; none if the config states both
    already.

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    changes = Changes()
    for location in locations:
        if has_settings(location):
            changes = with_other_dialect(location, changes)
    return changes


def has_settings(location: Positions) -> bool:
    """Whether positions are rotary, and the classes read their settings from the config."""
    return location.rope is not None and bool(location.rope.methods)


def with_other_dialect(location: Positions, changes: Changes) -> Changes:
    """Return changes of a config, with those that state its settings in both dialects.

    What the changed config states stays. The first of these halves is added with which it means the
    same to readers of both dialects, of only ``rope_parameters``, and of only ``rope_scaling`` and
    the keys next to it:

    1. ``rope_scaling`` with only the keys that transformers 4 accepts (`OldRotaryKeys`). It also
       replaces one with more keys.
    2. ``rope_scaling`` with all settings, which other readers accept.
    3. None: the old dialect cannot state the settings, such as other scales of local layers, or an
       engine fails on it. Only ``rope_parameters`` is added, if it is missing.

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    if not rotary_facts(location).has_dialects:
        return changes
    settings = read_rope(with_values(location, changes))
    if _misses_a_base(location, settings):
        return _in_new_dialect(location, changes, settings)
    kept = changes
    if rotary_facts(location).old.scaling_keys:
        kept = _without_scaling(location, changes)
    new = new_half(location, settings)
    for old in _old_halves(location, settings):
        if location.without_scaling_key and any(OLD in path for path in old):
            continue
        added = _added(location, kept, old | new)
        if _states_both(with_values(location, added), settings):
            return _different(location, added)
    return _added(location, changes, new)


def _added(location: Positions, changes: Changes, half: Changes) -> Changes:
    """Return changes with the values of a half that the changed config does not state."""
    added = dict(changes)
    config: Any = with_values(location, changes).config
    for path, value in half.items():
        if nested(config, path) is None:
            added[path] = value
            config = with_value(config, path, value)
    return added


def _different(location: Positions, changes: Changes) -> Changes:
    """Return the changes of values that a config does not state already."""
    config = location.config
    return {path: value for path, value in changes.items() if nested(config, path) != value}


def _without_scaling(location: Positions, changes: Changes) -> Changes:
    """Return changes that remove ``rope_scaling``, instead of changing it."""
    removed = effective_path(location, OLD)
    others = {path: value for path, value in changes.items() if path[: len(removed)] != removed}
    return others | {removed: None}


def _misses_a_base(location: Positions, settings: Sequence[RopeLayers]) -> bool:
    """Whether layers without a key for their base have another one than the main layers.

    Transformers 4 gives them the base of these.
    """
    keys = rotary_facts(location).old.theta_keys
    theta = settings[0].parameters[THETA]
    return any(
        keys.get(layers.layer_type) == "" and layers.parameters[THETA] != theta
        for layers in settings
    )


def _in_new_dialect(
    location: Positions, changes: Changes, settings: Sequence[RopeLayers]
) -> Changes:
    """Return changes that state settings only as ``rope_parameters``."""
    old_paths = _old_paths(location)
    others = {path: value for path, value in changes.items() if path not in old_paths}
    stated = [path for path in old_paths if nested(location.config, path) is not None]
    return _added(location, others | dict.fromkeys(stated), new_half(location, settings))


def stated_dialects(location: Positions) -> tuple[str, ...]:
    """Return the dialects that state the settings of a config: readers of only one get the same.

    A GGUF file states them in neither.

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    if not rotary_facts(location).has_dialects:
        return ()
    settings = read_rope(location)
    paths = {NEW: _new_paths(location), OLD: _old_paths(location)}
    stated = list[str]()
    for dialect, other in ((NEW, OLD), (OLD, NEW)):
        is_used = any(nested(location.config, path) is not None for path in paths[dialect])
        if is_used and _means(_without(location, paths[other]), settings):
            stated.append(dialect)
    return tuple(stated)


def with_values(location: Positions, changes: Mapping[Keys, Any]) -> Positions:
    """Return a location whose config has other values, by path of keys; None removes a key."""
    config: Any = location.config
    for path, value in changes.items():
        config = with_value(config, path, value)
    return replace(location, config=config)


def with_value(config: Any, path: Keys, value: Any) -> Any:
    """Return a config with a value at a path of keys, whose objects are created."""
    if not path:
        return value
    values = dict(config) if isinstance(config, Mapping) else {}
    values[path[0]] = with_value(values.get(path[0]), path[1:], value)
    return values


# What the two halves mean


def _states_both(location: Positions, settings: Sequence[RopeLayers]) -> bool:
    """Whether readers of both dialects, and of only one, get these settings."""
    readings = (
        location,
        _without(location, _old_paths(location)),
        _without(location, _new_paths(location)),
    )
    return all(_means(reading, settings) for reading in readings)


def _means(location: Positions, settings: Sequence[RopeLayers]) -> bool:
    """Whether a config states these settings."""
    try:
        return list(read_rope(location)) == list(settings)
    except CheckpointError:
        return False


def _without(location: Positions, paths: Collection[Keys]) -> Positions:
    """Return a location whose config lacks the values at some paths."""
    stated = [path for path in paths if nested(location.config, path) is not None]
    return with_values(location, dict.fromkeys(stated))


def _new_paths(location: Positions) -> list[Keys]:
    """Return the paths of ``rope_parameters``."""
    return list(location.paths_of(NEW))


def _old_paths(location: Positions) -> list[Keys]:
    """Return the paths of ``rope_scaling``, and of the base and rotated share next to it."""
    return [path for key in old_keys(location) for path in location.paths_of(key)]


def old_keys(location: Positions) -> list[str]:
    """Return the keys of the old dialect: ``rope_scaling``, base and rotated share."""
    facts = rotary_facts(location)
    keys = {OLD, THETA, PARTIAL, facts.old.partial_key, *facts.old.theta_keys.values()}
    return sorted(keys - {""})


# The halves


def new_half(location: Positions, settings: Sequence[RopeLayers]) -> Changes:
    """Return ``rope_parameters`` with the settings of all layers."""
    changes = Changes()
    for layers in settings:
        path = effective_path(location, settings_key(NEW, layers.layer_type))
        changes[path] = {**layers.parameters, TYPE: _stated_type(layers.parameters)}
    return changes


def _old_halves(location: Positions, settings: Sequence[RopeLayers]) -> Iterator[Changes]:
    """Yield ``rope_scaling`` and the keys next to it, as `with_other_dialect` tries them."""
    facts = rotary_facts(location)
    main = settings[0]
    if main.layer_type and not facts.old.reads_scaling:
        return
    next_to = _keys_next_to(location, settings)
    scaling = _scaling(location, main)
    if not scaling:
        yield next_to
        return
    path = effective_path(location, OLD)
    accepted = facts.old.scaling_keys
    if accepted and scaling.keys() >= set(accepted):
        yield {path: {key: scaling[key] for key in accepted}, **next_to}
    # CTranslate2 reads the base only here if there is a `rope_scaling`, and otherwise takes 10,000.
    base = main.parameters[THETA]
    yield {path: {**scaling, THETA: base}, (*path, THETA): base, **next_to}


def _keys_next_to(location: Positions, settings: Sequence[RopeLayers]) -> Changes:
    """Return the values next to ``rope_scaling``: bases, rotated share and first trained length.

    Transformers 4 reads the first trained length of ``longrope`` settings only here.
    """
    main = settings[0]
    changes = Changes()
    for layers in settings:
        key = theta_key(location, layers)
        if key:
            changes[effective_path(location, key)] = layers.parameters[THETA]
    if PARTIAL in main.parameters:
        key = rotary_facts(location).old.partial_key
        changes[effective_path(location, key)] = main.parameters[PARTIAL]
    if main.parameters[TYPE] == "longrope" and not main.layer_type:
        changes[effective_path(location, TRAINED)] = main.parameters[TRAINED]
    return changes


def _scaling(location: Positions, main: RopeLayers) -> dict[str, Any]:
    """Return ``rope_scaling``; empty if the settings need none."""
    facts = rotary_facts(location)
    settings = {key: value for key, value in main.parameters.items() if key not in (THETA, PARTIAL)}
    is_scaled = settings.keys() != {TYPE} or settings[TYPE] != "default"
    if not is_scaled and not facts.old.needs_scaling and main.layer_type not in facts.defaults:
        return {}
    name = _stated_type(main.parameters)
    settings[TYPE] = name
    settings[OLD_TYPE] = name
    if name == "default" and MROPE_TYPE in facts.type_names:
        settings[OLD_TYPE] = MROPE_TYPE
    return settings


def _stated_type(parameters: Parameters) -> str:
    """Return the name that files state for the type of settings."""
    if parameters[TYPE] == NTK_ALPHA:
        return TYPE_OF_ALPHA
    return rope_type(parameters).name
