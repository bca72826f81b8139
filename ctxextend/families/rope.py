"""Rotary settings of a config: read them in either dialect, and write changes in the dialect of the
file.

Files of transformers 5 have ``rope_parameters``; older ones have ``rope_scaling`` and keys next to
it. Source of the rules: ``RotaryEmbeddingConfigMixin`` and ``convert_rope_params_to_dict`` of
transformers 5.23.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ctxextend.errors import CheckpointError, did_you_mean
from ctxextend.families.lookup import Keys, TableLocation, around, nested
from ctxextend.families.schema import RotaryFacts
from ctxextend.tables.rotary import (
    ALPHA,
    FACTOR,
    LISTS,
    NEEDS,
    NTK_ALPHA,
    PARTIAL,
    STATES_TRAINED,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
)

NEW, OLD = "rope_parameters", "rope_scaling"  # dialects
MAX_NUMBER = 1e30  # of any setting; larger ones overflow in formulas
MAX_LENGTH = 10**12  # of factors and lengths
OPTIONAL = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)  # numbers; 0: the default
# Settings that have a meaning in every class; others may be missing in a copy.
NEEDED = {key for needed in NEEDS.values() for key in needed}
COMPARED = {TYPE, THETA, PARTIAL, FACTOR, *OPTIONAL, *NEEDED}
# Types whose config has rotary settings of another part next to its text config: of audio.
OWN_SETTINGS = ("musicflamingo",)


@dataclass(frozen=True)
class RopeLayers:
    """The rotary settings that all layers of one type share."""

    layers: str  # layer type, such as ``full_attention``; empty: all layers
    parameters: Parameters  # as transformers uses them, with its defaults for missing keys
    is_local: bool = False  # whether the layers have a sliding window, so that they are not scaled


def read_rope(location: TableLocation) -> tuple[RopeLayers, ...]:
    """Return the rotary settings in a model's config, those of local layers last.

    Raises CheckpointError if a setting is malformed, if both dialects are used and disagree, or if
    a config around the model's own states other settings.
    """
    facts, found = _facts(location), list[RopeLayers]()
    for layers in sorted(facts.theta, key=lambda name: name in facts.local):
        stated = [
            values for dialect in (OLD, NEW) if (values := _stated(location, dialect, layers))
        ]
        stated = stated or [
            {THETA: facts.theta[layers], **facts.defaults[layers]}
            if layers in facts.defaults
            else {}
        ]
        first, *others = (_complete(location, layers, values) for values in stated)
        for other in (*others, first | _next_to(location, layers)):
            if unequal := [key for key in first | other if first.get(key) != other.get(key)]:
                name = min(unequal, key=TYPE.__ne__)  # the type explains what else differs
                used, stated_too = first.get(name), other.get(name)
                message = (
                    f"config.json: {name}{layers and f' of {layers}'} is {used!r:.100} in "
                    "transformers"
                )
                hint = (
                    f"Remove the wrong value: {OLD}, {NEW} and the keys next to them must mean "
                    "the same."
                )
                raise CheckpointError(
                    f"{message}, but the file also states {stated_too!r:.100}.", hint
                )
        for copied in _copies(location):
            _check_copy(location, copied, layers, first)
        found.append(RopeLayers(layers, first, layers in facts.local))
    return tuple(found)


def stated_trained_length(location: TableLocation, layers: RopeLayers) -> int | None:
    """Return the length of the first training that the config states for these layers, in tokens;
    None if it does not.

    A type's own default counts as stated, since max_position_embeddings does not change it.
    """
    facts = _facts(location)
    stated: list[Mapping[str, Any]] = [
        _stated(location, dialect, layers.layers) for dialect in (OLD, NEW)
    ]
    if not any(stated):
        stated.append(facts.defaults.get(layers.layers, {}))
    for settings in stated:
        if TRAINED in settings:
            return int(settings[TRAINED])
    if layers.layers:  # settings of one type of layers do not read the key next to them
        return None
    next_to = location.stated(TRAINED)
    if next_to is None:
        next_to = location.family.defaults.get(TRAINED)
    if next_to is None:
        return None
    if not _is_number(next_to, MAX_LENGTH):
        message = f"config.json: {TRAINED} must be a number of tokens, got {next_to!r:.100}."
        raise CheckpointError(message, "Correct config.json.")
    return int(next_to)


def rotary_dim(location: TableLocation, parameters: Parameters) -> int:
    """Return the number of rotated values per head, with those that ``proportional`` does not move.

    Source: ``ROPE_INIT_FUNCTIONS`` of transformers 5.23.
    """
    key = _facts(location).dim_key
    if location.stated(key) is None and key not in location.family.defaults:
        head_dim = location.value("hidden_size") // max(location.value("num_attention_heads"), 1)
    else:
        head_dim = location.value(key)
    return int(head_dim * (1 if parameters[TYPE] == "proportional" else parameters.get(PARTIAL, 1)))


def rope_changes(location: TableLocation, layers: RopeLayers, after: Parameters) -> dict[Keys, Any]:
    """Return the config values, by path of keys, that give these layers other settings, in the
    file's dialect.

    Files that use both dialects keep both, and copies of the settings around the model's config
    change too. The type is also written as ``type``, its first name, in files that have this key,
    and in a new ``rope_scaling`` (vllm-project/vllm#10293).
    """
    changes = _own_changes(location, layers, after)
    for copied in _copies(location):
        changes |= _copy_changes(location, copied, layers, after)
    return changes


def copied_length_paths(location: TableLocation) -> list[Keys]:
    """Return the paths of the length next to copies of the rotary settings, which must follow that
    of the model.

    A copy without a length gets one, since transformers asks for it next to scaled settings.
    """
    key = location.effective_key
    paths = list[Keys]()
    for copied in _copies(location):
        path = (*copied.path, key)
        if nested(location.config, path) in (None, location.stated(key)):
            paths.append(path)
    return paths


def _copies(location: TableLocation) -> Iterator[TableLocation]:
    """Yield the configs around a text config that state its rotary settings, or its sizes, once
    more.

    Transformers reads none of them; other readers may. What they do not state is that of the text
    config.
    """
    if location.config.get("model_type") in OWN_SETTINGS:
        return
    facts = _facts(location)
    keys = {OLD, NEW, THETA, facts.partial_key, *facts.theta_keys.values()}
    own = nested(location.config, location.path)
    if not isinstance(own, Mapping):
        return
    missing = {key: value for key, value in own.items() if key not in (OLD, NEW)}
    for path in around(location):
        outer = nested(location.config, path)
        if not isinstance(outer, Mapping):
            continue
        stated = {key for key, value in outer.items() if value is not None}
        is_flat = {"hidden_size", location.effective_key} <= stated
        if is_flat or not stated.isdisjoint(keys):
            config = _with_missing(location.config, path, missing)
            yield replace(location, path=path, overrides=(), config=config)


def _with_missing(
    config: Mapping[str, Any], path: Keys, missing: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a config with values for the keys that the object at a path does not state."""
    if path:
        return {**config, path[0]: _with_missing(config[path[0]], path[1:], missing)}
    return {**missing, **{key: value for key, value in config.items() if value is not None}}


def _check_copy(
    location: TableLocation, copied: TableLocation, layers: str, used: Parameters
) -> None:
    """Raise CheckpointError if a copy of the settings of one type of layers differs from those that
    are used.
    """
    next_to = _next_to(copied, layers)
    shared = {key: used[key] for key in {THETA, PARTIAL, TRAINED} & used.keys() - next_to.keys()}
    found = [{**used, **next_to}]
    for dialect in (OLD, NEW):
        if stated := _stated(copied, dialect, layers):
            found.append(_complete(copied, layers, {**shared, **stated}))
    for other in found:
        keys = (used.keys() & other.keys()) | ((used.keys() ^ other.keys()) & COMPARED)
        unequal = [key for key in keys if used.get(key) != other.get(key)]
        if unequal:
            name = TYPE if TYPE in unequal else min(unequal)  # the type explains what else differs
            where = ".".join(location.path)
            outer = ".".join(copied.path) or "the top level"
            name_and_layers = f"{name} of {layers}" if layers else name
            message = f"config.json: {name_and_layers} is {used.get(name)!r:.100} in {where}"
            message = (
                f"{message}, which transformers reads, but {other.get(name)!r:.100} at {outer}."
            )
            hint = f"Remove {OLD}, {NEW} and the keys next to them at {outer}"
            raise CheckpointError(message, f"{hint}, or make them mean the same as {where}.")


def _copy_changes(
    location: TableLocation, copied: TableLocation, layers: RopeLayers, after: Parameters
) -> dict[Keys, Any]:
    """Return the values that give a copy of the settings of these layers other settings.

    Transformers does not load types with a trained length next to ``rope_theta`` outside of a text
    config: it moves into the settings.
    """
    changes = _own_changes(copied, layers, after)
    theta = (*copied.path, _facts(copied).theta_keys.get(layers.layers, THETA))
    path = (*copied.path, OLD)
    has_theta = theta in changes or nested(location.config, theta) is not None
    is_moved = has_theta and after[TYPE] in STATES_TRAINED and OLD in _dialects(copied)
    if not changes or not is_moved:
        return changes
    if isinstance(changes.get(path), dict):
        changes[path] = {**changes[path], THETA: after[THETA]}
    else:
        changes[(*path, THETA)] = after[THETA]
    return changes | {theta: None}


def _own_changes(location: TableLocation, layers: RopeLayers, after: Parameters) -> dict[Keys, Any]:
    facts = _facts(location)
    name = layers.layers
    before = layers.parameters
    changes = dict[Keys, Any]()
    # Yarn settings without the trained length take max_position_embeddings for it, which is about
    # to change.
    is_pinned = TRAINED in after and stated_trained_length(location, layers) is None
    if after == before and not is_pinned:
        return changes
    if facts.needs_dim and location.stated(facts.dim_key) is None:
        changes[location.paths_of(facts.dim_key)[-1]] = rotary_dim(location, {**before, PARTIAL: 1})
    is_rescaled = {**before, THETA: after[THETA]} != after
    dialects, old = _dialects(location), _stated(location, OLD, name)
    if after[THETA] != before[THETA] and (
        THETA in _next_to(location, name) or (OLD in dialects and THETA not in old)
    ):
        changes[location.paths_of(facts.theta_keys.get(name, THETA))[-1]] = after[THETA]
    trained = location.stated(TRAINED) or location.family.defaults.get(TRAINED)
    if not name and trained and after.get(TRAINED, trained) != trained:
        changes[location.paths_of(TRAINED)[-1]] = after[TRAINED]
    if OLD in dialects and facts.scales_local and is_rescaled:  # it would scale local layers too
        dialects = (NEW,)
        changes = changes | ({location.paths_of(OLD)[-1]: None} if old else {})
    for dialect in dialects:
        stated = _stated(location, dialect, name)
        is_old = dialect == OLD
        outside = (
            {THETA, PARTIAL} - stated.keys() if is_old else set()
        )  # settings that are stated next to it
        settings = {key: value for key, value in after.items() if key not in outside}
        if (
            is_old
            and not is_rescaled
            and THETA in outside
            and settings.keys() - stated.keys() <= {TYPE}
        ):
            continue
        if "type" in stated or (is_old and not stated):
            settings["type"] = (
                stated["type"] if "type" in stated and after[TYPE] == before[TYPE] else after[TYPE]
            )
        path = location.paths_of(_key(dialect, name))[-1]
        if stated and stated.keys() <= settings.keys():
            changes |= {
                (*path, key): value for key, value in settings.items() if stated.get(key) != value
            }
            continue
        changes[path] = settings
        if not is_old and location.stated(NEW) is None:
            local = (item for item in read_rope(location) if item.is_local)
            changes |= {
                location.paths_of(_key(NEW, item.layers))[-1]: dict(item.parameters)
                for item in local
            }
    return changes


def _facts(location: TableLocation) -> RotaryFacts:
    assert location.table.rope is not None
    return location.table.rope


def _key(dialect: str, layers: str) -> str:
    """Return the key of the settings of layers of one type, with a dot if it is nested."""
    return f"{dialect}.{layers}" if layers and dialect == NEW else dialect


def _stated(location: TableLocation, dialect: str, layers: str) -> dict[str, Any]:
    """Return the settings that a dialect states for layers of one type; empty if none."""
    facts, whole = _facts(location), location.stated(dialect)
    if whole is None or (dialect == OLD and layers in facts.local and not facts.scales_local):
        return {}
    stated = location.stated(_key(dialect, layers))
    is_layered = bool(layers) and dialect == NEW
    has_layers = isinstance(whole, Mapping) and any(
        isinstance(value, Mapping) for value in whole.values()
    )
    if dialect == OLD and not facts.reads_old and whole:
        expected = f"null: these models read only {NEW}"
    elif (
        isinstance(whole, Mapping)
        and isinstance(stated, Mapping | None)
        and (has_layers == is_layered or not whole)
    ):
        return {key: value for key, value in (stated or {}).items() if value is not None}
    else:
        expected = (
            f"one object for each of {', '.join(facts.theta)}"
            if is_layered
            else "an object of settings"
        )
    message = (
        f"config.json: {'.'.join((*location.path, dialect))} must be {expected}, got "
        f"{whole!r:.100}."
    )
    raise CheckpointError(message, "Correct config.json.")


def _next_to(location: TableLocation, layers: str) -> dict[str, Any]:
    """Return the settings that the old dialect states next to ``rope_scaling``."""
    facts = _facts(location)
    keys = {THETA: facts.theta_keys.get(layers, THETA), PARTIAL: facts.partial_key}
    keys = keys if facts.reads_old or not layers else {}
    return {
        name: value for name, key in keys.items() if (value := location.stated(key)) is not None
    }


def _dialects(location: TableLocation) -> tuple[str, ...]:
    """Return the dialects that a config uses; without settings, that of the transformers version
    that wrote it.
    """
    if used := tuple(dialect for dialect in (OLD, NEW) if location.stated(dialect)):
        return used
    facts = _facts(location)
    path = location.paths_of(OLD)[-1][:-1]
    keys = {OLD, *(facts.theta_keys.get(layers, THETA) for layers in facts.theta)}
    version = str(location.config.get("transformers_version")).partition(".")[0]
    is_new = (
        version.isdigit()
        and int(version) >= 5
        and keys.isdisjoint(nested(location.config, path) or {})
    )
    return (NEW,) if is_new or facts.defaults or not facts.reads_old else (OLD,)


def _complete(location: TableLocation, layers: str, stated: Parameters) -> dict[str, Any]:
    """Return stated settings with transformers' defaults; raise CheckpointError if they are
    malformed.
    """
    facts = _facts(location)
    share = {} if facts.partial == 1 else {PARTIAL: facts.partial}
    rope = {
        TYPE: stated.get("type", "default"),
        THETA: facts.theta[layers],
        **share,
        **_next_to(location, layers),
    }
    rope |= {key: value for key, value in stated.items() if key != "type"}
    kind = rope[TYPE] = facts.type_names.get(str(rope[TYPE]), rope[TYPE])
    if (old_kind := stated.get("type", kind)) not in (kind, "mrope") and facts.type_names.get(
        str(old_kind)
    ) != kind:
        message = f"config.json: rope_type is {kind!r:.100}, but type is {old_kind!r:.100}."
        raise CheckpointError(
            message, "Remove the wrong one: both name the type of the rotary settings."
        )
    needed = NEEDS.get(str(kind), ())
    if kind == "dynamic" and facts.reads_alpha and rope.get(ALPHA):
        kind = rope[TYPE] = NTK_ALPHA
        needed = (ALPHA,)
    elif str(kind) not in NEEDS:
        hint = did_you_mean(str(kind), NEEDS) or f"Use one of {', '.join(NEEDS)}."
        raise CheckpointError(f"config.json: unknown rope_type {kind!r:.100}.", hint)
    if TRAINED in needed:
        trained = (
            None if layers else location.stated(TRAINED) or location.family.defaults.get(TRAINED)
        )
        default = {TRAINED: location.value(location.effective_key)} if kind == "yarn" else {}
        rope = default | rope | ({TRAINED: trained} if trained else {})
    for key in (
        THETA,
        PARTIAL,
        FACTOR,
        TRAINED,
        *needed,
        *(key for key in OPTIONAL if rope.get(key)),
    ):
        value = rope.get(key)
        least = 1 if key in (FACTOR, TRAINED) else 0
        if key in LISTS:
            pairs = rotary_dim(location, rope) // 2
            is_valid = (
                isinstance(value, list) and len(value) == pairs and all(map(_is_number, value))
            )
            expected = f"a list of {pairs} numbers above 0, one for each pair of rotated values"
        else:
            maximum = MAX_LENGTH if least else MAX_NUMBER
            is_valid = key not in (*needed, *rope) or (
                _is_number(value, maximum) and rope[key] >= least
            )
            expected = f"a number {'of at least 1' if least else 'above 0'}"
            if isinstance(value, int | float) and value > maximum:
                expected = f"a number of at most {maximum:,.0f}"
        if not is_valid:
            message = (
                f"config.json: {key} of {kind} rotary positions must be {expected}, got "
                f"{value!r:.100}."
            )
            raise CheckpointError(message, "Correct config.json.")
    return rope


def _is_number(value: Any, maximum: float = MAX_NUMBER) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= maximum
