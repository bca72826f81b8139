"""Rotary settings of a config, in either dialect.

Files of transformers 5 have ``rope_parameters``; older ones have ``rope_scaling`` and keys next to
it. Source of the rules: ``RotaryEmbeddingConfigMixin`` and ``convert_rope_params_to_dict`` of
transformers 5.23.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from ctxextend.errors import CheckpointError, did_you_mean
from ctxextend.positions.facts import RotaryFacts
from ctxextend.positions.positions import Keys, Positions, nested
from ctxextend.tables.rope_types import (
    ALPHA,
    FACTOR,
    LISTS,
    NEW,
    NTK_ALPHA,
    OLD,
    PARTIAL,
    ROPE_TYPES,
    THETA,
    TRAINED,
    TYPE,
    Parameters,
    rope_type,
)

OLD_TYPE = "type"  # the first name of `TYPE`
# Files of Qwen2-VL have this ``type``, also next to a ``rope_type``: it says how the sections of a
# head take their positions, not how these are scaled.
MROPE_TYPE = "mrope"
MAX_NUMBER = 1e30  # of any setting; larger ones overflow in formulas
LARGEST_NUMBER = 10**12  # of factors and lengths
# Numbers; 0 means the default.
OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# Settings that have a meaning in every class; a copy may lack others, or have more of them.
NEEDED = set().union(*(kind.needs for kind in ROPE_TYPES.values()))
COMPARED = {TYPE, THETA, PARTIAL, FACTOR, *OPTIONAL, *NEEDED}
# Settings that the settings in a copy leave to the text config.
INHERITED = (THETA, PARTIAL, TRAINED)
REMOVE_ONE = f"Remove the wrong one: {OLD}, {NEW} and the keys next to them must mean the same."
# Types whose config has rotary settings of another part next to its text config: of audio.
OWN_SETTINGS = ("musicflamingo",)


class RopeLayers(NamedTuple):
    """The rotary settings that all layers of one type share."""

    layer_type: str  # such as ``full_attention``; empty: all layers
    parameters: Parameters  # as transformers uses them, with its defaults for missing keys
    is_local: bool = False  # whether the layers have a sliding window, so that they are not scaled


def rotary_facts(location: Positions) -> RotaryFacts:
    """Return how the classes of rotary positions read their settings."""
    assert location.rope is not None
    return location.rope


# Settings as transformers uses them


def read_rope(location: Positions) -> tuple[RopeLayers, ...]:
    """Return the rotary settings in a model's config, those of local layers last.

    Raises:
        CheckpointError: A setting is malformed, both dialects are used and disagree, or a config
            around the model's own states other settings.
    """
    facts = rotary_facts(location)
    scaled = [layer_type for layer_type in facts.theta if layer_type not in facts.local]
    local = [layer_type for layer_type in facts.theta if layer_type in facts.local]
    found = list[RopeLayers]()
    for layer_type in (*scaled, *local):
        used = _read_parameters(location, layer_type)
        for copied in copied_locations(location):
            _check_copy(location, copied, layer_type, used)
        found.append(RopeLayers(layer_type, used, is_local=layer_type in facts.local))
    return tuple(found)


def _read_parameters(location: Positions, layer_type: str) -> dict[str, Any]:
    """Return the settings that layers of one type have in transformers.

    The first of these that the file has counts:

    1. ``rope_scaling``.
    2. ``rope_parameters``.
    3. The model type's settings of a config that states none, unless ``rope_parameters`` is empty.

    Other statements must mean the same: ``rope_parameters`` next to ``rope_scaling``, and the keys
    next to the settings.

    Raises:
        CheckpointError: A setting is malformed, or two statements disagree.
    """
    old = _read_settings(location, OLD, layer_type)
    new = _read_settings(location, NEW, layer_type)
    states_none = not layer_type and location.stated(NEW) == {}  # the type's defaults are replaced
    unstated = {} if states_none else _unstated_settings(location, layer_type)
    used = _complete(location, layer_type, old or new or unstated)
    if old and new:
        other = _complete(location, layer_type, new)
        key = _unequal_key(used, other)
        if key:
            _refuse_dialects(location, layer_type, key, used, other)
    next_to = settings_next_to(location, layer_type)
    key = _unequal_key(used, used | next_to)
    if not key:
        return used
    stated = _stated_next_to(location, layer_type, key)
    if not old and not new:
        raise CheckpointError(
            f"config.json states no {NEW}, so transformers takes those of "
            f"{location.family.model_type}, with {key} {used[key]!r:.100}; it ignores {stated} "
            f"{next_to[key]!r:.100}.",
            f"State all settings in {NEW}, or remove the key.",
        )
    dialect = OLD
    if not old:
        dialect = NEW
    settings = _stated_at(location, settings_key(dialect, layer_type))
    raise CheckpointError(
        f"config.json: {settings} states {key} {used[key]!r:.100}, which transformers follows; "
        f"{stated} next to it is {next_to[key]!r:.100}.",
        REMOVE_ONE,
    )


def _read_settings(location: Positions, dialect: str, layer_type: str) -> dict[str, Any]:
    """Return what a dialect states for layers of one type, with what the classes add to it.

    Raises:
        CheckpointError: The settings are malformed.
    """
    stated = stated_settings(location, dialect, layer_type)
    if not stated or dialect == NEW:
        return stated
    facts = rotary_facts(location)
    return {**facts.old.added.get(_type_of(facts, stated), {}), **stated}


def _unstated_settings(location: Positions, layer_type: str) -> dict[str, Any]:
    """Return the settings of layers of a config that states none.

    Keys next to them count only for what these settings leave out.
    """
    return dict(rotary_facts(location).defaults.get(layer_type, {}))


def _unequal_key(used: Parameters, other: Parameters) -> str:
    """Return a setting that two statements in one config give other values; empty if none."""
    unequal = [key for key in {**used, **other} if used.get(key) != other.get(key)]
    if not unequal:
        return ""
    if TYPE in unequal:  # it explains what else differs
        return TYPE
    return unequal[0]


def _refuse_dialects(
    location: Positions, layer_type: str, key: str, used: Parameters, other: Parameters
) -> NoReturn:
    """Raise CheckpointError for dialects that contradict each other.

    Args:
        location: The config.
        layer_type: The type of layers.
        key: A setting that differs.
        used: The settings by ``rope_scaling``, which transformers follows.
        other: Those by ``rope_parameters``.
    """
    old = _stated_at(location, OLD)
    new = _stated_at(location, settings_key(NEW, layer_type))
    if key not in used:
        message = f"{new} states {key} {other[key]!r:.100}, and {old} does not."
    elif key not in other:
        message = f"{old} states {key} {used[key]!r:.100}, and {new} does not."
    else:
        if key in stated_settings(location, OLD, layer_type) or key == TYPE:
            statement = f"{old} states {key} {used[key]!r:.100}"
        elif key in settings_next_to(location, layer_type):
            where = _stated_next_to(location, layer_type, key)
            statement = f"{where} next to {OLD} is {used[key]!r:.100}"
        else:
            statement = f"{old} has the default {key} {used[key]!r:.100}"
        message = f"{statement}, which transformers follows; {new} states {other[key]!r:.100}."
    raise CheckpointError(f"config.json: {message}", REMOVE_ONE)


def _stated_next_to(location: Positions, layer_type: str, key: str) -> str:
    """Return the path of the base or the rotated share next to ``rope_scaling``, with dots."""
    facts = rotary_facts(location)
    name = facts.old.partial_key
    if key == THETA:
        name = facts.old.theta_keys.get(layer_type, THETA)
    return _stated_at(location, name)


def _stated_at(location: Positions, key: str) -> str:
    """Return the path of a key in the config, with dots."""
    return ".".join((*location.path, key))


def _with_layers(key: str, layer_type: str) -> str:
    """Return a setting with the type of layers that it applies to."""
    return f"{key} of {layer_type}" if layer_type else key


def _complete(location: Positions, layer_type: str, stated: Parameters) -> dict[str, Any]:
    """Return stated settings with the values that transformers uses for missing ones.

    A later one of these replaces the values of earlier ones:

    1. The defaults of the model type.
    2. The keys next to the settings (`settings_next_to`).
    3. The stated settings.
    4. Of types that need the first trained length: this length (`_used_trained_length`).

    Raises:
        CheckpointError: The settings are malformed.
    """
    facts = rotary_facts(location)
    defaults: dict[str, Any] = {TYPE: _type_of(facts, stated), THETA: facts.theta[layer_type]}
    if facts.partial != 1:
        defaults[PARTIAL] = facts.partial
    next_to = settings_next_to(location, layer_type)
    in_settings = {key: value for key, value in stated.items() if key not in (TYPE, OLD_TYPE)}
    rope = {**defaults, **next_to, **in_settings}
    if rope_type(rope).states_trained:
        trained = _used_trained_length(location, layer_type, rope)
        rope = _with_trained_length(rope, trained)
    _check_values(location, rope)
    return rope


def _with_trained_length(rope: Mapping[str, Any], trained: Any) -> dict[str, Any]:
    """Return settings with a first trained length; as they are if it is None."""
    if trained is None:
        return dict(rope)
    if rope[TYPE] == "yarn" and TRAINED not in rope:
        # `rope_changes` adds keys to a file in this order.
        return {TRAINED: trained, **rope}
    return {**rope, TRAINED: trained}


def _type_of(facts: RotaryFacts, stated: Parameters) -> str:
    """Return the rope type of stated settings: its name in transformers, or `NTK_ALPHA`.

    Raises:
        CheckpointError: The type is unknown, or the settings name two.
    """
    kind = _stated_type(facts, stated)
    if kind == "dynamic" and facts.reads_alpha and stated.get(ALPHA):
        return NTK_ALPHA
    if str(kind) not in ROPE_TYPES:
        hint = did_you_mean(str(kind), ROPE_TYPES) or f"Use one of {', '.join(ROPE_TYPES)}."
        raise CheckpointError(f"config.json: unknown rope_type {kind!r:.100}.", hint)
    return str(kind)


def _stated_type(facts: RotaryFacts, stated: Parameters) -> Any:
    """Return what settings state as ``rope_type``, else as ``type``, by its name in transformers.

    Raises:
        CheckpointError: They state both, and these name two types.
    """
    if TYPE not in stated:
        return _official_name(facts, stated.get(OLD_TYPE, "default"))
    kind = _official_name(facts, stated[TYPE])
    old_kind = stated.get(OLD_TYPE)
    if old_kind is None or old_kind == MROPE_TYPE:
        return kind
    if _official_name(facts, old_kind) == kind:
        return kind
    raise CheckpointError(
        f"config.json: rope_type is {kind!r:.100}, but type is {old_kind!r:.100}.",
        "Remove the wrong one: both name the type of the rotary settings.",
    )


def _official_name(facts: RotaryFacts, kind: Any) -> Any:
    """Return the name in transformers of a rope type as a file of these classes states it."""
    return facts.type_names.get(str(kind), kind)


def _check_values(location: Positions, rope: Parameters) -> None:
    """Check the settings that formulas use: see `_checked_keys`.

    Raises:
        CheckpointError: One is missing or malformed.
    """
    for key in _checked_keys(rope):
        value: Any = rope.get(key)
        if key in LISTS:
            pairs = rotary_dim(location, rope) // 2
            must = f"a list of {pairs} numbers above 0, one for each pair of rotated values"
            is_list = isinstance(value, list) and len(value) == pairs
            is_valid = is_list and all(map(_is_positive, value))
        elif key in (FACTOR, TRAINED):
            must = f"a number from 1 to {LARGEST_NUMBER:,}"
            is_valid = _is_positive(value, LARGEST_NUMBER) and value >= 1
        else:
            must = f"a number above 0, of at most {MAX_NUMBER:g}"
            rotates_nothing = key == PARTIAL and rope[TYPE] == "proportional" and value == 0
            is_valid = rotates_nothing or _is_positive(value)
        if not is_valid:
            message = (
                f"{location.file}: {key} of {rope[TYPE]} rotary positions must be {must}, got "
                f"{value!r:.100}."
            )
            raise CheckpointError(message, f"Correct {location.file}.")


def _checked_keys(rope: Parameters) -> list[str]:
    """Return the keys of settings that formulas use: what the type needs, and others if stated."""
    needed = rope_type(rope).needs
    of_many_types = (THETA, PARTIAL, FACTOR, TRAINED)
    stated_or_needed = [key for key in of_many_types if key in rope or key in needed]
    optional = [key for key in OPTIONAL if rope.get(key)]
    return [*stated_or_needed, *needed, *optional]


def _is_positive(value: Any, maximum: float = MAX_NUMBER) -> bool:
    """Whether a value is a number above 0 and up to a maximum."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= maximum


# Settings as a file states them


def settings_key(dialect: str, layer_type: str) -> str:
    """Return the key of the settings of layers of one type, with a dot if it is nested."""
    return f"{dialect}.{layer_type}" if layer_type and dialect == NEW else dialect


def stated_settings(location: Positions, dialect: str, layer_type: str) -> dict[str, Any]:
    """Return the settings that a dialect states for layers of one type; empty if none.

    Raises:
        CheckpointError: They are no object of settings, or the classes do not read the dialect.
    """
    if location.stated(dialect) is None:
        return {}
    if dialect == OLD:
        return _old_settings(location, layer_type)
    return _new_settings(location, layer_type)


def _old_settings(location: Positions, layer_type: str) -> dict[str, Any]:
    """Return what ``rope_scaling`` states for layers of one type: it is one object for all types.

    Raises:
        CheckpointError: It is not an object of settings, or the classes do not read it.
    """
    facts = rotary_facts(location)
    settings = location.stated(OLD)
    if layer_type in facts.local and not facts.old.scales_local:
        return {}
    if settings and not facts.old.reads_scaling:
        _refuse_settings(location, OLD, f"null: these models read only {NEW}")
    if not _is_flat(settings):
        _refuse_settings(location, OLD, "an object of settings")
    return _without_nulls(settings)


def _new_settings(location: Positions, layer_type: str) -> dict[str, Any]:
    """Return what ``rope_parameters`` states for layers of one type.

    It is one object of settings, or, in classes that tell layers apart, one for each type.

    Raises:
        CheckpointError: It has not the form that the classes read.
    """
    settings = location.stated(NEW)
    if not layer_type:
        if not _is_flat(settings):
            _refuse_settings(location, NEW, "an object of settings")
        return _without_nulls(settings)
    of_layers = location.stated(settings_key(NEW, layer_type))
    if not _is_layered(settings) or not isinstance(of_layers, Mapping | None):
        layer_types = ", ".join(rotary_facts(location).theta)
        _refuse_settings(location, NEW, f"one object for each of {layer_types}")
    return _without_nulls(of_layers or {})


def _is_flat(settings: Any) -> bool:
    """Whether a dialect's value is an object without objects in it."""
    if not isinstance(settings, Mapping):
        return False
    return not any(isinstance(value, Mapping) for value in settings.values())


def _is_layered(settings: Any) -> bool:
    """Whether a dialect's value is an object with objects in it, or empty."""
    return isinstance(settings, Mapping) and (not settings or not _is_flat(settings))


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are stated: ``null`` means the default."""
    return {key: value for key, value in settings.items() if value is not None}


def _refuse_settings(location: Positions, dialect: str, expected: str) -> NoReturn:
    """Raise CheckpointError for a dialect that is not what the classes read."""
    path = _stated_at(location, dialect)
    message = f"config.json: {path} must be {expected}, got {location.stated(dialect)!r:.100}."
    raise CheckpointError(message, "Correct config.json.")


def settings_next_to(location: Positions, layer_type: str) -> dict[str, Any]:
    """Return the base and the rotated share that the keys next to ``rope_scaling`` state.

    Settings of one type of layers have such keys only in classes that read ``rope_scaling``, such
    as those of Gemma 3.
    """
    facts = rotary_facts(location)
    if layer_type and not facts.old.reads_scaling:
        return {}
    stated = {}
    theta_key = facts.old.theta_keys.get(layer_type, THETA)
    if theta_key:  # some types of layers have none
        stated[THETA] = location.stated(theta_key)
    stated[PARTIAL] = location.stated(facts.old.partial_key)
    return _without_nulls(stated)


# The length of the first training
#
# A config can state it in the settings and in a key next to them. Which one counts depends on the
# rope type:
#
# - Types that need it, such as ``yarn``: `_used_trained_length`, as transformers reads it. The key
#   next to the settings comes first.
# - Other types, such as ``linear``: `stated_trained_length`. No class of transformers reads it, and
#   the settings come first.


def _used_trained_length(location: Positions, layer_type: str, rope: Parameters) -> Any:
    """Return the first trained length that transformers uses for settings of a type that needs it.

    The first of these that states it counts, as in ``standardize_rope_params``; None if none does:

    1. The key next to the settings (`trained_length_next_to`).
    2. The settings.
    3. Of yarn settings only: the key of the length of the model.

    It is as in the config, so it may be malformed.

    Raises:
        CheckpointError: The length of the model is needed, and the config states none.
    """
    next_to = trained_length_next_to(location, layer_type)
    if next_to is not None:
        return next_to
    if TRAINED in rope:
        return rope[TRAINED]
    if rope[TYPE] == "yarn":
        return location.value(location.effective_key)
    return None


def stated_trained_length(location: Positions, layers: RopeLayers) -> int | None:
    """Return the first trained length that the config states for these layers, in tokens.

    The first of these that states it counts; None if none does:

    1. The settings (`_trained_length_in_settings`).
    2. The key next to the settings (`trained_length_next_to`).

    Raises:
        CheckpointError: The settings are malformed, or the length is not a number.
    """
    in_settings = _trained_length_in_settings(location, layers)
    if in_settings is not None:
        return in_settings
    next_to = trained_length_next_to(location, layers.layer_type)
    if next_to is None:
        return None
    if not _is_positive(next_to, LARGEST_NUMBER):
        message = f"config.json: {TRAINED} must be a number of tokens, got {next_to!r:.100}."
        raise CheckpointError(message, "Correct config.json.")
    return int(next_to)


def _trained_length_in_settings(location: Positions, layers: RopeLayers) -> int | None:
    """Return the first trained length that valid settings state, in tokens.

    The first of these that states it counts; None if none does:

    1. ``rope_scaling``.
    2. ``rope_parameters``.
    3. If the config states neither: the model type's settings of such a config.

    Raises:
        CheckpointError: The settings are malformed.
    """
    old = stated_settings(location, OLD, layers.layer_type)
    new = stated_settings(location, NEW, layers.layer_type)
    of_model_type: Mapping[str, Any] = {}
    if not old and not new:
        of_model_type = rotary_facts(location).defaults.get(layers.layer_type, {})
    for settings in (old, new, of_model_type):
        if TRAINED in settings:
            return int(settings[TRAINED])
    return None


def trained_length_next_to(location: Positions, layer_type: str) -> Any:
    """Return the first trained length by the key next to the settings, as in the config.

    A missing key has the default of the model type; without one, the length is None. Settings of
    one type of layers do not read the key, so for these it is None too. It may be malformed.
    """
    if layer_type:
        return None
    stated = location.stated(TRAINED)
    if stated is None:
        return location.family.defaults.get(TRAINED)
    return stated


# The size of a head


def rotary_dim(location: Positions, parameters: Parameters) -> int:
    """Return the number of rotated values per head, from which frequencies are computed.

    Settings of type ``proportional`` count the whole head; those that it does not rotate have
    frequency 0.

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


# Copies of the settings


def copied_locations(location: Positions) -> Iterator[Positions]:
    """Yield locations that read copies of a text config as if these were the text config.

    A copy is a config around the text config that states its rotary settings, or its sizes, again;
    here at the top level::

        {"model_type": "qwen2_vl", "hidden_size": 8192, "rope_theta": 1000000.0,
         "text_config": {"hidden_size": 8192, "rope_theta": 1000000.0, "num_attention_heads": 64}}

    Transformers reads only ``text_config``; other readers may read the copy. The location of this
    copy has the path of the top level, and the 64 heads that the top level lacks; see
    `_filled_copy`.
    """
    if location.config.get("model_type") in OWN_SETTINGS:
        return
    text_config = nested(location.config, location.path)
    if not isinstance(text_config, Mapping):
        return
    for path in location.around():
        outer = nested(location.config, path)
        if isinstance(outer, Mapping) and _is_copy(location, outer):
            config = _with_object_at(location.config, path, _filled_copy(outer, text_config))
            yield replace(location, path=path, overrides=(), config=config)


def _is_copy(location: Positions, outer: Mapping[str, Any]) -> bool:
    """Whether a config around a text config states its sizes, or any of its rotary settings."""
    facts = rotary_facts(location)
    stated = _without_nulls(outer).keys()
    sizes = {"hidden_size", location.effective_key}
    settings = {OLD, NEW, THETA, facts.old.partial_key, *facts.old.theta_keys.values()}
    return sizes <= stated or not settings.isdisjoint(stated)


def _filled_copy(outer: Mapping[str, Any], text_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with the values of the text config that it lacks.

    ``rope_scaling`` and ``rope_parameters`` are not filled in as a whole: `_copied_settings` fills
    in single settings.
    """
    inherited = {key: value for key, value in text_config.items() if key not in (OLD, NEW)}
    return {**inherited, **_without_nulls(outer)}


def _with_object_at(
    config: Mapping[str, Any], path: Keys, values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a config with another object at a path of keys, which exists."""
    if not path:
        return values
    return {**config, path[0]: _with_object_at(config[path[0]], path[1:], values)}


def _check_copy(location: Positions, copied: Positions, layer_type: str, used: Parameters) -> None:
    """Check that a copy of the settings of one type of layers equals those that are used.

    Readers of the copy may use two kinds of settings, and each must be equal:

    - Those in the text config, with the keys next to ``rope_scaling`` in the copy.
    - Those of a dialect that the copy states; see `_copied_settings`.

    Raises:
        CheckpointError: The copy differs, or is malformed.
    """
    with_next_to = {**used, **settings_next_to(copied, layer_type)}
    readings = [with_next_to, *_copied_settings(copied, layer_type, used)]
    for other in readings:
        _check_equal_in_copy(location, copied, layer_type, used, other)


def _copied_settings(copied: Positions, layer_type: str, used: Parameters) -> Iterator[Parameters]:
    """Yield the complete settings of each dialect that a copy states.

    A base, rotated share or first trained length that the copy states nowhere is that of the text
    config. With ``rope_theta`` 1000000.0 in ``rope_parameters`` of the text config, the copy
    ``{"rope_scaling": {"type": "linear", "factor": 4}}`` has base 1000000.0.

    Raises:
        CheckpointError: The copy is malformed.
    """
    next_to = settings_next_to(copied, layer_type)
    inherited = {key: used[key] for key in INHERITED if key in used and key not in next_to}
    for dialect in (OLD, NEW):
        stated = _read_settings(copied, dialect, layer_type)
        if stated:
            yield _complete(copied, layer_type, {**inherited, **stated})


def _check_equal_in_copy(
    location: Positions,
    copied: Positions,
    layer_type: str,
    used: Parameters,
    other: Parameters,
) -> None:
    """Check that settings of a copy are those that transformers uses.

    Args:
        location: The text config.
        copied: The copy.
        layer_type: The type of layers.
        used: The settings in the text config.
        other: The settings that a reader of the copy may use.

    Raises:
        CheckpointError: They are not.
    """
    unequal = _unequal_in_copy(used, other)
    if not unequal:
        return
    key = TYPE if TYPE in unequal else min(unequal)  # the type explains what else differs
    where = ".".join(location.path)
    outer = ".".join(copied.path) or "the top level"
    raise CheckpointError(
        f"config.json: {_with_layers(key, layer_type)} is {used.get(key)!r:.100} in {where}, which "
        f"transformers reads, but {other.get(key)!r:.100} at {outer}.",
        f"Remove {OLD}, {NEW} and the keys next to them at {outer}, or make them mean the same as "
        f"{where}.",
    )


def _unequal_in_copy(used: Parameters, copied: Parameters) -> list[str]:
    """Return the settings that differ in a copy.

    A setting that only one of them states differs if it has a meaning in every class.
    """
    unequal = list[str]()
    for key in {**used, **copied}:
        is_in_both = key in used and key in copied
        is_compared = is_in_both or key in COMPARED
        if is_compared and used.get(key) != copied.get(key):
            unequal.append(key)
    return unequal
