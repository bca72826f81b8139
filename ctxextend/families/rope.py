"""Rotary settings of a config, in either dialect.

Files of transformers 5 have ``rope_parameters``; older ones have ``rope_scaling`` and keys next to
it. Source of the rules: ``RotaryEmbeddingConfigMixin`` and ``convert_rope_params_to_dict`` of
transformers 5.23.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ctxextend.errors import CheckpointError, did_you_mean
from ctxextend.families.lookup import Keys, TableLocation, around, nested
from ctxextend.families.schema import RotaryFacts
from ctxextend.tables.rope_types import (
    ALPHA,
    FACTOR,
    LISTS,
    NTK_ALPHA,
    PARTIAL,
    ROPE_TYPES,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
    rope_type,
)

# Dialects.
NEW = "rope_parameters"
OLD = "rope_scaling"

OLD_TYPE = "type"  # the first name of `TYPE`
MAX_NUMBER = 1e30  # of any setting; larger ones overflow in formulas
MAX_LENGTH = 10**12  # of factors and lengths
# Numbers; 0 means the default.
OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# Settings that have a meaning in every class; others may be missing in a copy.
NEEDED = set().union(*(kind.needs for kind in ROPE_TYPES.values()))
COMPARED = {TYPE, THETA, PARTIAL, FACTOR, *OPTIONAL, *NEEDED}
# Types whose config has rotary settings of another part next to its text config: of audio.
OWN_SETTINGS = ("musicflamingo",)


class RopeLayers(NamedTuple):
    """The rotary settings that all layers of one type share."""

    layers: str  # layer type, such as ``full_attention``; empty: all layers
    parameters: Parameters  # as transformers uses them, with its defaults for missing keys
    is_local: bool = False  # whether the layers have a sliding window, so that they are not scaled


def read_rope(location: TableLocation) -> tuple[RopeLayers, ...]:
    """Return the rotary settings in a model's config, those of local layers last.

    Raises:
        CheckpointError: A setting is malformed, both dialects are used and disagree, or a config
            around the model's own states other settings.
    """
    facts = rotary_facts(location)
    found = list[RopeLayers]()
    for layers in sorted(facts.theta, key=lambda name: name in facts.local):
        used = _read_layers(location, layers)
        for copied in copies(location):
            _check_copy(location, copied, layers, used)
        found.append(RopeLayers(layers, used, is_local=layers in facts.local))
    return tuple(found)


def _read_layers(location: TableLocation, layers: str) -> dict[str, Any]:
    """Return the settings that layers of one type have in transformers.

    Raises:
        CheckpointError: A setting is malformed, or the dialects disagree.
    """
    in_dialects = [stated_settings(location, dialect, layers) for dialect in (OLD, NEW)]
    stated = [settings for settings in in_dialects if settings]
    if not stated:
        stated.append(_unstated_settings(location, layers))
    used, *others = [_complete(location, layers, values) for values in stated]
    others.append(used | settings_next_to(location, layers))
    for other in others:
        unequal = [key for key in used | other if used.get(key) != other.get(key)]
        if unequal:
            name = TYPE if TYPE in unequal else unequal[0]  # the type explains what else differs
            raise CheckpointError(
                f"config.json: {_with_layers(name, layers)} is {used.get(name)!r:.100} in "
                f"transformers, but the file also states {other.get(name)!r:.100}.",
                f"Remove the wrong value: {OLD}, {NEW} and the keys next to them must mean the "
                "same.",
            )
    return used


def _unstated_settings(location: TableLocation, layers: str) -> dict[str, Any]:
    """Return the settings of layers of a config that states none."""
    facts = rotary_facts(location)
    if layers not in facts.defaults:
        return {}
    return {THETA: facts.theta[layers], **facts.defaults[layers]}


def stated_trained_length(location: TableLocation, layers: RopeLayers) -> int | None:
    """Return the length of the first training that the config states for these layers, in tokens.

    It is None if the config states none. A type's own default counts as stated, since
    max_position_embeddings does not change it.

    Raises:
        CheckpointError: The settings are malformed, or the length is not a number.
    """
    stated: list[Mapping[str, Any]] = [
        stated_settings(location, OLD, layers.layers),
        stated_settings(location, NEW, layers.layers),
    ]
    if not any(stated):
        stated.append(rotary_facts(location).defaults.get(layers.layers, {}))
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

    Raises:
        CheckpointError: The config states no valid size of a head.
    """
    key = rotary_facts(location).dim_key
    if location.stated(key) is None and key not in location.family.defaults:
        hidden_size = location.value("hidden_size")
        head_dim = hidden_size // max(location.value("num_attention_heads"), 1)
    else:
        head_dim = location.value(key)
    if parameters[TYPE] == "proportional":
        return head_dim
    return int(head_dim * parameters.get(PARTIAL, 1))


def copies(location: TableLocation) -> Iterator[TableLocation]:
    """Yield the configs around a text config that state its rotary settings, or its sizes, again.

    Transformers reads none of them; other readers may. What they do not state is that of the text
    config.
    """
    if location.config.get("model_type") in OWN_SETTINGS:
        return
    facts = rotary_facts(location)
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
    """Check that a copy of the settings of one type of layers equals those that are used.

    Raises:
        CheckpointError: It differs.
    """
    next_to = settings_next_to(copied, layers)
    shared = {key: used[key] for key in {THETA, PARTIAL, TRAINED} & used.keys() - next_to.keys()}
    found = [{**used, **next_to}]
    for dialect in (OLD, NEW):
        stated = stated_settings(copied, dialect, layers)
        if stated:
            found.append(_complete(copied, layers, {**shared, **stated}))
    for other in found:
        in_both = used.keys() & other.keys()
        in_one = used.keys() ^ other.keys()
        keys = in_both | (in_one & COMPARED)
        unequal = [key for key in keys if used.get(key) != other.get(key)]
        if unequal:
            name = TYPE if TYPE in unequal else min(unequal)  # the type explains what else differs
            where = ".".join(location.path)
            outer = ".".join(copied.path) or "the top level"
            raise CheckpointError(
                f"config.json: {_with_layers(name, layers)} is {used.get(name)!r:.100} in {where}, "
                f"which transformers reads, but {other.get(name)!r:.100} at {outer}.",
                f"Remove {OLD}, {NEW} and the keys next to them at {outer}, or make them mean the "
                f"same as {where}.",
            )


def _with_layers(key: str, layers: str) -> str:
    """Return a setting with the type of layers that it applies to."""
    return f"{key} of {layers}" if layers else key


def rotary_facts(location: TableLocation) -> RotaryFacts:
    """Return how the classes of rotary positions read their settings."""
    assert location.table.rope is not None
    return location.table.rope


def settings_key(dialect: str, layers: str) -> str:
    """Return the key of the settings of layers of one type, with a dot if it is nested."""
    return f"{dialect}.{layers}" if layers and dialect == NEW else dialect


def stated_settings(location: TableLocation, dialect: str, layers: str) -> dict[str, Any]:
    """Return the settings that a dialect states for layers of one type; empty if none.

    Raises:
        CheckpointError: They are no object of settings, or the classes do not read the dialect.
    """
    facts = rotary_facts(location)
    whole = location.stated(dialect)
    is_skipped = dialect == OLD and layers in facts.local and not facts.scales_local
    if whole is None or is_skipped:
        return {}
    if dialect == OLD and not facts.reads_old and whole:
        raise _malformed(location, dialect, f"null: these models read only {NEW}")
    stated = location.stated(settings_key(dialect, layers))
    is_layered = bool(layers) and dialect == NEW
    if _is_object(whole, stated, is_layered=is_layered):
        return {key: value for key, value in (stated or {}).items() if value is not None}
    if is_layered:
        raise _malformed(location, dialect, f"one object for each of {', '.join(facts.theta)}")
    raise _malformed(location, dialect, "an object of settings")


def _is_object(whole: Any, stated: Any, *, is_layered: bool) -> bool:
    """Whether a dialect has the form of settings.

    Args:
        whole: The value of the dialect.
        stated: The settings of one type of layers in it.
        is_layered: Whether it must contain one object for each type of layers.
    """
    if not isinstance(whole, Mapping) or not isinstance(stated, Mapping | None):
        return False
    has_layers = any(isinstance(value, Mapping) for value in whole.values())
    return has_layers == is_layered or not whole


def _malformed(location: TableLocation, dialect: str, expected: str) -> CheckpointError:
    """Return the error for a dialect that is not what the classes read."""
    path = ".".join((*location.path, dialect))
    message = f"config.json: {path} must be {expected}, got {location.stated(dialect)!r:.100}."
    return CheckpointError(message, "Correct config.json.")


def settings_next_to(location: TableLocation, layers: str) -> dict[str, Any]:
    """Return the settings that the old dialect states next to ``rope_scaling``."""
    facts = rotary_facts(location)
    if layers and not facts.reads_old:
        return {}
    stated = {
        THETA: location.stated(facts.theta_keys.get(layers, THETA)),
        PARTIAL: location.stated(facts.partial_key),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _complete(location: TableLocation, layers: str, stated: Parameters) -> dict[str, Any]:
    """Return stated settings with transformers' defaults.

    Raises:
        CheckpointError: They are malformed.
    """
    facts = rotary_facts(location)
    rope = {TYPE: stated.get(OLD_TYPE, "default"), THETA: facts.theta[layers]}
    if facts.partial != 1:
        rope[PARTIAL] = facts.partial
    rope |= settings_next_to(location, layers)
    rope |= {key: value for key, value in stated.items() if key != OLD_TYPE}
    rope[TYPE] = _type_of(facts, rope, stated)
    needed = rope_type(rope).needs
    if TRAINED in needed:
        rope = _with_trained_length(location, layers, rope)
    optional = [key for key in OPTIONAL if rope.get(key)]
    for key in (THETA, PARTIAL, FACTOR, TRAINED, *needed, *optional):
        if key in LISTS:
            expected = _list_fault(rope.get(key), rotary_dim(location, rope) // 2)
        elif key in needed or key in rope:
            expected = _number_fault(rope.get(key), least=1 if key in (FACTOR, TRAINED) else 0)
        else:
            continue
        if expected:
            raise CheckpointError(
                f"config.json: {key} of {rope[TYPE]} rotary positions must be {expected}, got "
                f"{rope.get(key)!r:.100}.",
                "Correct config.json.",
            )
    return rope


def _type_of(facts: RotaryFacts, rope: Parameters, stated: Parameters) -> str:
    """Return the rope type of settings, by its name in transformers.

    Args:
        facts: How the classes read the settings.
        rope: The settings, with defaults.
        stated: Those that the config states.

    Raises:
        CheckpointError: The type is unknown, or the settings name two.
    """
    kind = facts.type_names.get(str(rope[TYPE]), rope[TYPE])
    old_kind = stated.get(OLD_TYPE, kind)
    if old_kind not in (kind, "mrope") and facts.type_names.get(str(old_kind)) != kind:
        message = f"config.json: rope_type is {kind!r:.100}, but type is {old_kind!r:.100}."
        raise CheckpointError(
            message, "Remove the wrong one: both name the type of the rotary settings."
        )
    if kind == "dynamic" and facts.reads_alpha and rope.get(ALPHA):
        return NTK_ALPHA
    if str(kind) not in ROPE_TYPES:
        hint = did_you_mean(str(kind), ROPE_TYPES) or f"Use one of {', '.join(ROPE_TYPES)}."
        raise CheckpointError(f"config.json: unknown rope_type {kind!r:.100}.", hint)
    return str(kind)


def _with_trained_length(
    location: TableLocation, layers: str, rope: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings with the length of the first training, if the config states one.

    Raises:
        CheckpointError: It states neither this one nor the length of the model.
    """
    completed = dict(rope)
    if rope[TYPE] == "yarn":
        completed = {TRAINED: location.value(location.effective_key), **rope}
    if layers:  # settings of one type of layers do not read the key next to them
        return completed
    trained = location.stated(TRAINED) or location.family.defaults.get(TRAINED)
    if trained:
        completed[TRAINED] = trained
    return completed


def _list_fault(value: Any, pairs: int) -> str:
    """Return what a list of settings must be; empty if it is so."""
    if isinstance(value, list) and len(value) == pairs and all(map(_is_number, value)):
        return ""
    return f"a list of {pairs} numbers above 0, one for each pair of rotated values"


def _number_fault(value: Any, *, least: int) -> str:
    """Return what a setting must be; empty if it is so. With `least` 0, it must be above 0."""
    maximum = MAX_LENGTH if least else MAX_NUMBER
    if _is_number(value, maximum) and value >= least:
        return ""
    if isinstance(value, int | float) and value > maximum:
        return f"a number of at most {maximum:,.0f}"
    return f"a number of at least {least}" if least else "a number above 0"


def _is_number(value: Any, maximum: float = MAX_NUMBER) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= maximum
