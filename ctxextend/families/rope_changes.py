"""Changes of rotary settings, in the dialect of the file."""

from typing import Any

from ctxextend.families.rope import (
    OLD_TYPE,
    RopeLayers,
    copied_locations,
    read_rope,
    rotary_dim,
    rotary_facts,
    settings_key,
    settings_next_to,
    stated_settings,
    stated_trained_length,
    trained_length_next_to,
)
from ctxextend.positions.positions import Keys, Positions, nested
from ctxextend.tables.rope_types import (
    NEW,
    OLD,
    PARTIAL,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
    rope_type,
    rotates,
)

Changes = dict[Keys, Any]  # new values by path of keys; None removes a key


def rope_changes(location: Positions, layers: RopeLayers, after: Parameters) -> Changes:
    """Return the config values that give these layers other settings, in the file's dialect.

    Files that use both dialects keep both, and copies of the settings around the model's config
    change too. The type is also written as ``type``, its first name, in files that have this key,
    and in a new ``rope_scaling`` (vllm-project/vllm#10293).

    Raises:
        CheckpointError: The config's own settings are malformed.
    """
    changes = _own_changes(location, layers, after)
    for copied in copied_locations(location):
        changes |= _copy_changes(location, copied, layers, after)
    return changes


def copied_length_paths(location: Positions) -> list[Keys]:
    """Return the paths of the length next to copies of the rotary settings.

    They must follow that of the model. A copy without a length gets one, since transformers asks
    for it next to scaled settings.
    """
    key = location.effective_key
    paths = list[Keys]()
    for copied in copied_locations(location):
        path = (*copied.path, key)
        if nested(location.config, path) in (None, location.stated(key)):
            paths.append(path)
    return paths


def _copy_changes(
    location: Positions, copied: Positions, layers: RopeLayers, after: Parameters
) -> Changes:
    """Return the values that give a copy of the settings of these layers other settings.

    Transformers does not load types with a trained length next to ``rope_theta`` outside of a text
    config: it moves into the settings.
    """
    changes = _own_changes(copied, layers, after)
    theta = (*copied.path, theta_key(copied, layers))
    path = (*copied.path, OLD)
    has_theta = theta in changes or nested(location.config, theta) is not None
    is_moved = has_theta and rope_type(after).states_trained and OLD in _dialects(copied)
    if not changes or not is_moved:
        return changes
    if isinstance(changes.get(path), dict):
        changes[path] = {**changes[path], THETA: after[THETA]}
    else:
        changes[(*path, THETA)] = after[THETA]
    return changes | {theta: None}


def _own_changes(location: Positions, layers: RopeLayers, after: Parameters) -> Changes:
    """Return the values in one config that give these layers other settings."""
    # Yarn settings without the trained length take max_position_embeddings for it, which is about
    # to change.
    is_pinned = TRAINED in after and stated_trained_length(location, layers) is None
    if after == layers.parameters and not is_pinned:
        return {}
    changes = _changes_next_to(location, layers, after)
    dialects = _dialects(location)
    if OLD in dialects and not _can_state_in_old(location, layers, after):
        dialects = (NEW,)
        if stated_settings(location, OLD, layers.layer_type):
            changes[effective_path(location, OLD)] = None
    for dialect in dialects:
        if dialect == OLD:
            changes |= _old_changes(location, layers, after)
        else:
            changes |= _new_changes(location, layers, after)
    return changes


def _can_state_in_old(location: Positions, layers: RopeLayers, after: Parameters) -> bool:
    """Whether the old dialect can state the new settings.

    It cannot if it would apply them to local layers too, if the classes add a setting to it, if an
    engine fails on it, or if it would leave local layers rotated.
    """
    if location.without_scaling_key and after[TYPE] != "default":
        return False
    if layers.layer_type and not rotates(after):
        return False
    old = rotary_facts(location).old
    if old.scales_local and _is_rescaled(layers, after):
        return False
    added = old.added.get(after[TYPE], {})
    return added.keys() <= after.keys()


def _is_rescaled(layers: RopeLayers, after: Parameters) -> bool:
    """Whether more than the base changes."""
    return {**layers.parameters, THETA: after[THETA]} != after


def _changes_next_to(location: Positions, layers: RopeLayers, after: Parameters) -> Changes:
    """Return the changes of keys next to the settings: size of a head, base and trained length."""
    facts = rotary_facts(location)
    before = layers.parameters
    changes = Changes()
    if facts.needs_dim and location.stated(facts.dim_key) is None:
        whole_head = {**before, PARTIAL: 1}
        changes[effective_path(location, facts.dim_key)] = rotary_dim(location, whole_head)
    if after[THETA] != before[THETA] and _has_theta_next_to(location, layers.layer_type):
        changes[effective_path(location, theta_key(location, layers))] = after[THETA]
    trained = trained_length_next_to(location, layers.layer_type)
    if trained is not None and after.get(TRAINED, trained) != trained:
        changes[effective_path(location, TRAINED)] = after[TRAINED]
    return changes


def _has_theta_next_to(location: Positions, layers: str) -> bool:
    """Whether the base is next to the settings, or would be if it were stated."""
    if THETA in settings_next_to(location, layers):
        return True
    return OLD in _dialects(location) and THETA not in stated_settings(location, OLD, layers)


def _old_changes(location: Positions, layers: RopeLayers, after: Parameters) -> Changes:
    """Return the changes of ``rope_scaling``; base and rotated share may be next to it."""
    stated = stated_settings(location, OLD, layers.layer_type)
    outside = {THETA, PARTIAL} - stated.keys()
    settings = {key: value for key, value in after.items() if key not in outside}
    added = settings.keys() - stated.keys()
    if THETA in outside and added <= {TYPE} and not _is_rescaled(layers, after):
        return {}
    if OLD_TYPE in stated or not stated:
        settings[OLD_TYPE] = _old_type(stated, layers, after)
    return _settings_changes(effective_path(location, OLD), stated, settings)


def _new_changes(location: Positions, layers: RopeLayers, after: Parameters) -> Changes:
    """Return the changes of ``rope_parameters``, which must state other local layers too."""
    stated = stated_settings(location, NEW, layers.layer_type)
    settings = dict(after)
    if OLD_TYPE in stated:
        settings[OLD_TYPE] = _old_type(stated, layers, after)
    path = effective_path(location, settings_key(NEW, layers.layer_type))
    changes = _settings_changes(path, stated, settings)
    if location.stated(NEW) is None:
        for item in read_rope(location):
            if item.is_local and item.layer_type != layers.layer_type:
                path = effective_path(location, settings_key(NEW, item.layer_type))
                changes[path] = dict(item.parameters)
    return changes


def _old_type(stated: Parameters, layers: RopeLayers, after: Parameters) -> Any:
    """Return the type by its first name, as the file writes it if it does not change."""
    if OLD_TYPE in stated and after[TYPE] == layers.parameters[TYPE]:
        return stated[OLD_TYPE]
    return after[TYPE]


def _settings_changes(path: Keys, stated: Parameters, settings: dict[str, Any]) -> Changes:
    """Return the changes of single settings; of the whole object if any is removed."""
    if not stated or not stated.keys() <= settings.keys():
        return {path: settings}
    return {(*path, key): value for key, value in settings.items() if stated.get(key) != value}


def effective_path(location: Positions, key: str) -> Keys:
    """Return the path of a key in the config that transformers uses."""
    return location.paths_of(key)[-1]


def theta_key(location: Positions, layers: RopeLayers) -> str:
    """Return the key of the base of these layers next to the settings."""
    return rotary_facts(location).old.theta_keys.get(layers.layer_type, THETA)


def _dialects(location: Positions) -> tuple[str, ...]:
    """Return the dialects that a config uses.

    Without settings, it is that of the transformers version that wrote the config.
    """
    used = tuple(dialect for dialect in (OLD, NEW) if location.stated(dialect))
    if used:
        return used
    facts = rotary_facts(location)
    if facts.defaults or not facts.old.reads_scaling or _is_of_version_5(location):
        return (NEW,)
    return (OLD,)


def _is_of_version_5(location: Positions) -> bool:
    """Whether transformers 5 or later wrote a config, and no key of older ones is in it."""
    version = str(location.config.get("transformers_version")).partition(".")[0]
    if not version.isdigit() or int(version) < 5:
        return False
    facts = rotary_facts(location)
    old_keys = {OLD, *(facts.old.theta_keys.get(layers, THETA) for layers in facts.theta)}
    stated = nested(location.config, effective_path(location, OLD)[:-1]) or {}
    return old_keys.isdisjoint(stated)
