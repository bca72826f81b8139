"""Rotary settings of a config: both dialects come in, and become one form, that of transformers 5.

Files of transformers 5 have ``rope_parameters``; older ones have ``rope_scaling`` and keys next to
it. Source of the rules: ``RotaryEmbeddingConfigMixin`` and ``convert_rope_params_to_dict`` of
transformers 5.23.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxextend.errors import CheckpointError, did_you_mean
from ctxextend.positions.facts import RotaryFacts
from ctxextend.positions.positions import nested, with_values
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

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary

OLD_TYPE = "type"  # the first name of `TYPE`
# Files of Qwen2-VL have this ``type``, also next to a ``rope_type``: it says how the sections of a
# head take their positions, not how these are scaled.
MROPE_TYPE = "mrope"
MAX_NUMBER = 1e30  # of any setting; larger ones overflow in formulas
LARGEST_NUMBER = 10**12  # of factors and lengths

# Numbers; 0 means the default.
OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
# Types whose config has rotary settings of another part next to its text config: of audio.
OWN_SETTINGS = ("musicflamingo",)


class RopeLayers(NamedTuple):
    """The rotary settings that all layers of one type share."""

    layer_type: str  # such as ``full_attention``; empty: all layers
    parameters: Parameters  # as transformers uses them, with its defaults for missing keys
    is_local: bool = False  # whether the layers have a sliding window, so that they are not scaled
    default_theta: float = 0  # the base in a config that states none


def read_layers(positions: "Rotary") -> tuple[RopeLayers, ...]:
    """Return the rotary settings in a model's config, those of local layers last.

    The first of these that the file has counts:

    1. ``rope_scaling``.
    2. ``rope_parameters``.
    3. The model type's settings of a config that states none, unless ``rope_parameters`` is empty.

    All other statements must mean the same: the other dialect, and the keys next to the settings.
    Copies in a config around the model's own are not read: a resize makes them mean the same.

    Raises:
        CheckpointError: A setting is malformed, or two statements differ.
    """
    facts = positions.rope
    scaled = [layer_type for layer_type in facts.theta if layer_type not in facts.local]
    local = [layer_type for layer_type in facts.theta if layer_type in facts.local]
    found = list[RopeLayers]()
    for layer_type in (*scaled, *local):
        used = _used_settings(positions, layer_type)
        is_local = layer_type in facts.local
        found.append(RopeLayers(layer_type, used, is_local, facts.theta[layer_type]))
    return tuple(found)


def _used_settings(positions: "Rotary", layer_type: str) -> dict[str, Any]:
    facts = positions.rope
    statements = list[tuple[str, dict[str, Any]]]()  # each with its place; the first one counts
    for dialect in (OLD, NEW):
        stated = stated_settings(positions, dialect, layer_type)
        if stated and dialect == OLD:  # with what the classes add to it
            stated = {**facts.old.added.get(_type_of(facts, stated), {}), **stated}
        if stated:
            place = _place(positions, settings_key(dialect, layer_type))
            statements.append((place, _complete(positions, layer_type, stated)))
    if not statements:
        unstated: Mapping[str, Any] = facts.defaults.get(layer_type, {})
        if not layer_type and positions.stated(NEW) == {}:  # the type's defaults are replaced
            unstated = {}
        place = f"{positions.family.model_type} in transformers"
        statements.append((place, _complete(positions, layer_type, unstated)))

    (followed, used), *others = statements
    for place, other in others:
        unequal = [key for key in {**used, **other} if used.get(key) != other.get(key)]
        _refuse_difference(unequal, (followed, used), (place, other))
    for key, value in settings_next_to(positions, layer_type).items():
        if used.get(key) != value:
            place = _place(positions, _name_next_to(positions, layer_type, key))
            _refuse_difference([key], (followed, used), (place, {key: value}))
    return used


def _refuse_difference(
    unequal: list[str], used: tuple[str, Parameters], other: tuple[str, Parameters]
) -> None:
    """Raise CheckpointError if any keys of two statements, each with its place, differ."""
    if not unequal:
        return
    key = TYPE if TYPE in unequal else unequal[0]  # the type explains what else differs
    followed, settings = used
    place, others = other
    values = [f"{item[key]!r:.100}" if key in item else "not set" for item in (settings, others)]
    raise CheckpointError(
        f"config.json: {key} is {values[0]} by {followed}, which transformers follows, but "
        f"{values[1]} by {place}.",
        f"Remove the wrong one: {OLD}, {NEW} and the keys next to them must mean the same.",
    )


def theta_key(positions: "Rotary", layer_type: str) -> str:
    """Return the key of the base next to ``rope_scaling``; empty if the layers have none."""
    return positions.rope.old.theta_keys.get(layer_type, THETA)


def _name_next_to(positions: "Rotary", layer_type: str, key: str) -> str:
    """Return the key of the base or the rotated share next to ``rope_scaling``."""
    if key == THETA:
        return theta_key(positions, layer_type)
    return positions.rope.old.partial_key


def _place(positions: "Rotary", key: str) -> str:
    return ".".join((*positions.path, key))


def _complete(positions: "Rotary", layer_type: str, stated: Parameters) -> dict[str, Any]:
    """Return stated settings with the values that transformers uses for missing ones.

    A later one of these replaces the values of earlier ones:

    1. The defaults of the model type.
    2. The keys next to the settings (`settings_next_to`).
    3. The stated settings.
    4. Of types that need the first trained length: the key next to the settings, then these; of
       yarn settings without it, the length of the model. So does ``standardize_rope_params``.

    Raises:
        CheckpointError: The settings are malformed.
    """
    facts = positions.rope
    rope: dict[str, Any] = {TYPE: _type_of(facts, stated), THETA: facts.theta[layer_type]}
    if facts.partial != 1:
        rope[PARTIAL] = facts.partial
    rope |= settings_next_to(positions, layer_type)
    rope |= {key: value for key, value in stated.items() if key not in (TYPE, OLD_TYPE)}
    if rope_type(rope).states_trained:
        trained = trained_length_next_to(positions, layer_type)
        is_missing = rope[TYPE] == "yarn" and TRAINED not in rope
        if trained is None and is_missing:
            trained = positions.value(positions.effective_key)
        if trained is not None and is_missing:
            rope = {TRAINED: trained, **rope}  # in the order in which keys are added to a file
        elif trained is not None:
            rope[TRAINED] = trained
    _check_values(positions, rope)
    return rope


def _type_of(facts: RotaryFacts, stated: Parameters) -> str:
    names = [stated[key] for key in (TYPE, OLD_TYPE) if stated.get(key) is not None]
    if len(names) > 1 and names[1] == MROPE_TYPE:
        names = names[:1]
    kinds = [facts.type_names.get(str(name), name) for name in names]
    if len(set(map(str, kinds))) > 1:
        raise CheckpointError(
            f"config.json: rope_type is {kinds[0]!r:.100}, but type is {names[1]!r:.100}.",
            "Remove the wrong one: both name the type of the rotary settings.",
        )
    kind = str(kinds[0]) if kinds else "default"
    if kind == "dynamic" and facts.reads_alpha and stated.get(ALPHA):
        return NTK_ALPHA
    if kind not in ROPE_TYPES:
        hint = did_you_mean(kind, ROPE_TYPES) or f"Use one of {', '.join(ROPE_TYPES)}."
        raise CheckpointError(f"config.json: unknown rope_type {kinds[0]!r:.100}.", hint)
    return kind


def _check_values(positions: "Rotary", rope: Parameters) -> None:
    needed = rope_type(rope).needs
    of_many_types = (THETA, PARTIAL, FACTOR, TRAINED)
    stated_or_needed = [key for key in of_many_types if key in rope or key in needed]
    optional = [key for key in OPTIONAL if rope.get(key)]  # 0 means the default
    for key in (*stated_or_needed, *needed, *optional):
        value: Any = rope.get(key)
        if key in LISTS:
            pairs = rotary_dim(positions, rope) // 2
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
                f"{positions.file}: {key} of {rope[TYPE]} rotary positions must be {must}, got "
                f"{value!r:.100}."
            )
            raise CheckpointError(message, f"Correct {positions.file}.")


def _is_positive(value: Any, maximum: float = MAX_NUMBER) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= maximum


# Settings as a file states them


def settings_key(dialect: str, layer_type: str) -> str:
    """Return the key of the settings of layers of one type, with a dot if it is nested."""
    return f"{dialect}.{layer_type}" if layer_type and dialect == NEW else dialect


def stated_settings(positions: "Rotary", dialect: str, layer_type: str) -> dict[str, Any]:
    """Return the settings that a dialect states for layers of one type; empty if none.

    ``rope_scaling`` is one object for all types of layers. ``rope_parameters`` is one object or, in
    classes that tell layers apart, one for each type.

    Raises:
        CheckpointError: They have not the form that the classes read, or the classes do not read
            the dialect.
    """
    facts = positions.rope
    stated = positions.stated(dialect)
    if stated is None:
        return {}
    if dialect == OLD and layer_type in facts.local and not facts.old.scales_local:
        return {}
    settings = stated
    expected = "an object of settings"
    is_valid = _is_flat(stated)
    if dialect == OLD and stated and not facts.old.reads_scaling:
        expected = f"null: these models read only {NEW}"
        is_valid = False
    elif dialect == NEW and layer_type:
        settings = positions.stated(settings_key(NEW, layer_type))
        expected = f"one object for each of {', '.join(facts.theta)}"
        is_layered = isinstance(stated, Mapping) and (not stated or not _is_flat(stated))
        is_valid = is_layered and isinstance(settings, Mapping | None)
    if not is_valid:
        place = _place(positions, dialect)
        message = f"config.json: {place} must be {expected}, got {stated!r:.100}."
        raise CheckpointError(message, "Correct config.json.")
    return _without_nulls(settings or {})


def _is_flat(settings: Any) -> bool:
    if not isinstance(settings, Mapping):
        return False
    return not any(isinstance(value, Mapping) for value in settings.values())


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are stated: ``null`` means the default."""
    return {key: value for key, value in settings.items() if value is not None}


def settings_next_to(positions: "Rotary", layer_type: str) -> dict[str, Any]:
    """Return the base and the rotated share that the keys next to ``rope_scaling`` state.

    Settings of one type of layers have such keys only in classes that read ``rope_scaling``, such
    as those of Gemma 3.
    """
    if layer_type and not positions.rope.old.reads_scaling:
        return {}
    stated = {}
    for key in (THETA, PARTIAL):
        name = _name_next_to(positions, layer_type, key)
        if name:  # some types of layers have none
            stated[key] = positions.stated(name)
    return _without_nulls(stated)


# The length of the first training
#
# A config can state it in the settings and in a key next to them. Which one counts depends on the
# rope type:
#
# - Types that need it, such as ``yarn``: as transformers reads it (`_complete`). The key next to
#   the settings comes first.
# - Other types, such as ``linear``: `stated_trained_length`. No class of transformers reads it, and
#   the settings come first.


def stated_trained_length(positions: "Rotary", layer_type: str) -> int | None:
    """Return the first trained length that the config states for layers of one type, in tokens.

    The first of these that states it counts; None if none does:

    1. ``rope_scaling``.
    2. ``rope_parameters``.
    3. If the config states neither: the model type's settings of such a config.
    4. The key next to the settings (`trained_length_next_to`).

    Raises:
        CheckpointError: The settings are malformed, or the length is not a number.
    """
    old = stated_settings(positions, OLD, layer_type)
    new = stated_settings(positions, NEW, layer_type)
    statements: list[Mapping[str, Any]] = [old, new]
    if not old and not new:
        statements.append(positions.rope.defaults.get(layer_type, {}))
    statements.append({TRAINED: trained_length_next_to(positions, layer_type)})
    lengths = [item[TRAINED] for item in statements if item.get(TRAINED) is not None]
    if not lengths:
        return None
    if not _is_positive(lengths[0], LARGEST_NUMBER):
        message = f"config.json: {TRAINED} must be a number of tokens, got {lengths[0]!r:.100}."
        raise CheckpointError(message, "Correct config.json.")
    return int(lengths[0])


def trained_length_next_to(positions: "Rotary", layer_type: str) -> Any:
    """Return the first trained length by the key next to the settings, as in the config.

    A missing key has the default of the model type; without one, the length is None. Settings of
    one type of layers do not read the key, so for these it is None too. It may be malformed.
    """
    if layer_type:
        return None
    return positions.stated_or_default(TRAINED)


# The size of a head


def rotary_dim(positions: "Rotary", parameters: Parameters) -> int:
    """Return the number of rotated values per head, from which frequencies are computed.

    Settings of type ``proportional`` count the whole head; those that it does not rotate have
    frequency 0.

    Source: ``ROPE_INIT_FUNCTIONS`` of transformers 5.23.

    Raises:
        CheckpointError: The config states no valid size of a head.
    """
    key = positions.rope.dim_key
    if positions.stated(key) is None and key not in positions.family.defaults:
        hidden_size = positions.value("hidden_size")
        head_dim = hidden_size // max(positions.value("num_attention_heads"), 1)
    else:
        head_dim = positions.value(key)
    if parameters[TYPE] == "proportional":
        return head_dim
    return int(head_dim * parameters.get(PARTIAL, 1))


# Copies of the settings


def positions_of_copies(positions: "Rotary") -> Iterator["Rotary"]:
    """Yield the positions that readers of copies of a text config find.

    A copy is a config around the text config that states its rotary settings, or its sizes, again;
    here at the top level::

        {"model_type": "qwen2_vl", "hidden_size": 8192, "rope_theta": 1000000.0,
         "text_config": {"hidden_size": 8192, "rope_theta": 1000000.0, "num_attention_heads": 64}}

    Transformers reads only ``text_config``; other readers may read the copy. The positions of this
    copy have the path of the top level, and the 64 heads that the top level lacks; rotary settings
    are not filled in.
    """
    text_config = nested(positions.config, positions.path)
    if positions.config.get("model_type") in OWN_SETTINGS or not isinstance(text_config, Mapping):
        return
    facts = positions.rope
    inherited = {key: value for key, value in text_config.items() if key not in (OLD, NEW)}
    sizes = {"hidden_size", positions.effective_key}
    settings = {OLD, NEW, THETA, facts.old.partial_key, *facts.old.theta_keys.values()}
    for path in positions.outer_paths():
        outer = nested(positions.config, path)
        if not isinstance(outer, Mapping):
            continue
        stated = _without_nulls(outer)
        if sizes <= stated.keys() or not settings.isdisjoint(stated):
            config = with_values(positions.config, {path: {**inherited, **stated}})
            yield replace(positions, path=path, override=None, config=config)
