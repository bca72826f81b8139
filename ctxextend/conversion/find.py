"""Find the twin of a checkpoint: its type, class and config, and the origin of each tensor."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.conversion.conversion import Conversion, Origin
from ctxextend.conversion.source_types import SOURCE_TYPES, types_with_twin
from ctxextend.conversion.twins import (
    BASE_MODEL,
    CAUSAL_LM,
    COPIED,
    MASKED_LM,
    PLUS_MEAN,
    SEPARATOR_KEY,
    SourceType,
    TensorRule,
    Twin,
    TwinHead,
    match_pattern,
)
from ctxextend.conversion.without_windows import check_has_windows
from ctxextend.errors import CheckpointError, MethodError, UnsupportedModelError
from ctxextend.families.registry import FAMILIES, find_architecture
from ctxextend.kinds import Factor
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.facts import ALIBI, ROTARY
from ctxextend.positions.rotary_dialects import both_dialects
from ctxextend.settings import ATTENTION_WINDOWS, DEFAULT_ATTENTION_WINDOW, DEFAULT_THETA, Convert

FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # of weights that are not quantised
# Layer norm parameters in old TensorFlow checkpoints.
OLD_NAMES = {"gamma": "weight", "beta": "bias"}
SCHEME_NAMES = {"rotary": ROTARY, "alibi": ALIBI}  # how messages name them
DROP_HEAD = "To drop the head and convert the base model, add --encoder-only."
# Tensors that are dropped with a warning: most uses of a base model do not need them.
DROPPED = ("pooler.", "cls.seq_relationship.")
NOT_COPIED = ("architectures", "model_type")  # config keys that the twin states for itself


def check_type(model_type: str, scheme: str) -> None:
    """Check that models of a type have a twin; of those that have one, some have no other scheme.

    Raises:
        UnsupportedModelError: They have none.
    """
    if scheme == ATTENTION_WINDOWS:
        check_has_windows(model_type)
    elif model_type not in SOURCE_TYPES:
        message = f"{model_type} models cannot be converted to other positions."
        raise UnsupportedModelError(message, _pass_type(scheme))


def _pass_type(scheme: str) -> str:
    """Return a hint with the model types that have a twin with a position scheme."""
    types = ", ".join(types_with_twin(scheme))
    return f"Pass the folder of a model of type {types}, or use ctxextend resize."


def find_conversion(model: OpenedModel, settings: Convert) -> Conversion:
    """Return the conversion of an open checkpoint.

    Raises:
        CheckpointError: The config and the table disagree, or no tensor takes the mean row.
        MethodError: A setting does not apply to the twin.
        UnsupportedModelError: No model type of transformers computes the same.
    """
    model_type = model.architecture.family.model_type
    check_type(model_type, settings.scheme)
    _check_complete(model, settings.scheme)
    source_type = SOURCE_TYPES[model_type]
    twin = _find_twin(model, source_type, settings)
    _check_config(model, source_type, twin)
    table = model.tables[0]
    table.check_width()
    max_len = table.length()
    length = _new_length(settings, max_len)
    if settings.method is not None and length <= max_len:
        message = (
            f"--method creates new rows, but --to {length} needs none: the source has {max_len} "
            "positions."
        )
        raise MethodError(message, "Remove --method.")
    complete_settings = replace(
        settings,
        to=length,
        theta=_theta(twin, settings),
        attention_window=_attention_window(twin, settings),
    )
    head = twin.heads[BASE_MODEL]
    if not settings.encoder_only:
        head = _find_twin_head(model, source_type, twin)
    config = _twin_config(model, source_type, twin, head, complete_settings)
    _check_separator(model, twin, head, config)
    origins, dropped = _find_origins(model, source_type, twin, head)
    _check_dtypes(model, origins)
    return Conversion(
        model=model,
        settings=complete_settings,
        max_len_before=max_len,
        twin=twin,
        head=head,
        config=config,
        origins=origins,
        dropped=dropped,
        missing=_find_missing(twin, head, config, origins),
        tokenizer=source_type.tokenizer,
    )


# ---- checks


def _check_complete(model: OpenedModel, scheme: str) -> None:
    if model.ref.table:
        message = f"{model.ref.source} cannot be converted: it is not a complete model."
        raise UnsupportedModelError(message, _pass_type(scheme))


def _find_twin(model: OpenedModel, source_type: SourceType, settings: Convert) -> Twin:
    """Return the twin with the requested position scheme.

    Raises:
        UnsupportedModelError: The type has no such twin.
    """
    for twin in source_type.twins:
        if twin.scheme == settings.scheme:
            return twin
    model_type = model.architecture.family.model_type
    message = (
        f"{model.ref.source} ({model_type}) cannot be converted to {settings.scheme}: no class of "
        f"transformers computes what {source_type.class_name}Model does with "
        f"{SCHEME_NAMES[settings.scheme]} positions."
    )
    raise UnsupportedModelError(message, f"Use --scheme {source_type.twins[0].scheme}.")


def _check_config(model: OpenedModel, source_type: SourceType, twin: Twin) -> None:
    """Raise UnsupportedModelError if the config has a value that the twin does not support."""
    checkpoint = model.checkpoint
    instead = "Resize the checkpoint instead, with ctxextend resize."
    given = _with_defaults(model, source_type, twin)
    if len({json.dumps(given.get(key)) for key in twin.equal_keys}) > 1:
        stated = " and ".join(f"{key} {json.dumps(given.get(key))}" for key in twin.equal_keys)
        message = (
            f"{checkpoint.config_file}: {stated} differ, and {twin.model_type} models have one "
            "width."
        )
        raise UnsupportedModelError(message, instead)
    for key, values in source_type.required.items():
        value = checkpoint.config.get(key)
        if value not in values:
            message = (
                f"{checkpoint.config_file}: {key} is {json.dumps(value)}, which "
                f"{twin.model_type} models do not support."
            )
            raise UnsupportedModelError(message, instead)
    counted_from = _counted_from(twin)
    if counted_from is not None and not _is_token(given.get(counted_from)):
        token = json.dumps(given.get(counted_from))
        message = (
            f"{checkpoint.config_file}: {counted_from} is {token}, but positions of "
            f"{twin.model_type} models are counted from it."
        )
        raise UnsupportedModelError(message, f"State it in {checkpoint.config_file}.")


def _counted_from(twin: Twin) -> str | None:
    """Return the key of the token that the positions of a twin are counted from, if there is one.

    Only twins with windows have tables of learned rows.
    """
    if not twin.has_windows:
        return None
    return FAMILIES[twin.model_type].tables[0].reserved.config_key


def _check_separator(
    model: OpenedModel, twin: Twin, head: TwinHead, config: Mapping[str, Any]
) -> None:
    """Raise UnsupportedModelError if the twin's class looks for separators, and none is known."""
    separator = config.get(SEPARATOR_KEY)
    if head.needs_separators and not _is_token(separator):
        message = (
            f"{model.checkpoint.config_file}: {SEPARATOR_KEY} is {json.dumps(separator)}, but "
            f"{twin.class_of(head)} looks for separators."
        )
        raise UnsupportedModelError(message, f"State it in {model.checkpoint.config_file}.")


def _is_token(value: Any) -> bool:
    return type(value) is int and value >= 0


def _check_dtypes(model: OpenedModel, origins: Mapping[str, Origin]) -> None:
    """Raise UnsupportedModelError if a tensor is quantised, since its twin may be a sum."""
    for origin in origins.values():
        entry = model.checkpoint.weights.entries[origin.tensor]
        if entry.dtype not in FLOAT_DTYPES:
            message = (
                f"{model.ref.source} has quantised weights ({entry.name} is {entry.dtype}), which "
                "cannot be converted."
            )
            raise UnsupportedModelError(message, "Convert the checkpoint from before quantisation.")


def _check_attention_heads(model: OpenedModel, config: Mapping[str, Any], twin: Twin) -> None:
    """Raise UnsupportedModelError unless width and heads are integers that fit each other."""
    width = config[twin.width_key]
    heads = config[twin.heads_key]
    is_valid = type(heads) is int and type(width) is int and heads > 0
    divisor = 2 if twin.scheme == "rotary" else 1
    if is_valid and width % (heads * divisor) == 0:
        return
    integer = "an integer"
    if divisor == 2:
        integer = "an even integer for rotary positions"
    message = (
        f"{model.checkpoint.config_file}: {heads} heads do not fit a width of {width}: the size "
        f"of a head must be {integer}."
    )
    raise UnsupportedModelError(message)


# ---- settings


def _new_length(settings: Convert, max_len: int) -> int:
    """Return the requested length in positions; ``4x`` is four times the old one."""
    if isinstance(settings.to, Factor):
        return settings.to.times(max_len)
    return settings.length


def _theta(twin: Twin, settings: Convert) -> float | None:
    """Return the base of the rotary frequencies; None if the twin does not read one.

    Recipes state the default too, in case it changes.

    Raises:
        MethodError: One is requested of a twin whose angles are fixed.
    """
    if settings.theta is not None and twin.has_angles:
        message = (
            f"--theta cannot be used with {twin.model_type}, whose angles transformers "
            "computes with 10,000."
        )
        raise MethodError(message, "Remove --theta.")
    if twin.scheme != "rotary" or twin.has_angles:
        return None
    return settings.theta or DEFAULT_THETA


def _attention_window(twin: Twin, settings: Convert) -> int | None:
    """Return the attention window, which recipes state too; None if the twin has none."""
    if not twin.has_windows:
        return None
    return settings.attention_window or DEFAULT_ATTENTION_WINDOW


# ---- the twin's class and config


def _find_twin_head(model: OpenedModel, source_type: SourceType, twin: Twin) -> TwinHead:
    """Return the twin's class.

    Raises:
        UnsupportedModelError: No class of the twin has the same head.
    """
    model_class = model.checkpoint.model_class
    if not model_class:
        model_class = f"{source_type.class_name}{_stored_head(model, source_type)}"
    twin_head = _twin_head_of_class(model_class, twin)
    if twin_head.end == MASKED_LM:
        _check_activation(model, source_type, twin)
    return twin_head


def _twin_head_of_class(model_class: str, twin: Twin) -> TwinHead:
    """Return the twin's class for a class that the config states.

    Raises:
        UnsupportedModelError: No class of the twin has the same head.
    """
    type_names = "|".join(item.class_name for item in SOURCE_TYPES.values())
    head = re.sub(f"^(?:{type_names})", "", model_class)
    if head in twin.heads:
        return twin.heads[head]
    message = f"{twin.model_type} models have no head like that of {model_class}."
    if head in twin.without_head:
        message = f"{model_class} cannot be converted: {twin.without_head[head]}."
    raise UnsupportedModelError(message, DROP_HEAD)


def _stored_head(model: OpenedModel, source_type: SourceType) -> str:
    """Return the head of a model whose config states no class, from the names of its tensors."""
    names = model.checkpoint.weights.entries
    for part, head in source_type.head_of_tensor.items():
        if any(part in name for name in names):
            return head
    return source_type.default_head


def _check_activation(model: OpenedModel, source_type: SourceType, twin: Twin) -> None:
    """Check that the LM head of the twin has the activation of the source's.

    Raises:
        UnsupportedModelError: It has another one.
    """
    hidden_act = _with_defaults(model, source_type, twin)["hidden_act"]
    # Without an activation that is always the same, an LM head has that of the layers.
    before = source_type.lm_act or hidden_act
    after = twin.lm_act or hidden_act
    if before == after:
        return
    if twin.lm_act is None:
        reason = f"but the LM head uses {before}: {twin.model_type} has one for both"
    else:
        reason = f"also in the LM head, where {twin.model_type} models have {after}"
    raise UnsupportedModelError(f"hidden_act is {hidden_act}, {reason}.", DROP_HEAD)


def _twin_config(
    model: OpenedModel, source_type: SourceType, twin: Twin, head: TwinHead, settings: Convert
) -> dict[str, Any]:
    """Return the config of a twin; of these values, later ones replace earlier ones.

    1. The twin's class and model type.
    2. The source's values, under the twin's names.
    3. What the configs of all twins of this type state.
    4. The length: the new one, or the old one if a resize of the twin's table follows.
    5. A width of the MLP that transformers would derive, the rotary settings and the window.

    Raises:
        UnsupportedModelError: The size of a head is not one that the twin can have.
    """
    config: dict[str, Any] = {
        "architectures": [twin.class_of(head)],
        "model_type": twin.model_type,
    }
    config |= _renamed_values(model, source_type, twin)
    config |= twin.fixed
    for key, other in twin.stated_as.items():
        value = config.get(other)
        config.setdefault(key, value if _is_token(value) else None)
    _check_attention_heads(model, config, twin)
    if twin.has_windows:
        config |= _old_lengths(model, config)
        config["attention_window"] = settings.attention_window
    else:
        config["max_position_embeddings"] = settings.to
    if "intermediate_size" in config and config["intermediate_size"] is None:
        config["intermediate_size"] = 4 * config["hidden_size"]
    if settings.theta is not None:
        config["rope_parameters"] = _rotary_settings(settings.theta)
        for (key,), value in both_dialects(find_architecture(config).locations).items():
            config[key] = value
    return config


def _old_lengths(model: OpenedModel, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of the source's tables, by the keys that state them in a twin's config."""
    lengths = {table.part: table.length() for table in model.tables}
    stated = dict[str, int]()
    for location in find_architecture(config).locations:
        stated[location.config_key] = location.key_value(lengths[location.part])
    return stated


def _renamed_values(model: OpenedModel, source_type: SourceType, twin: Twin) -> dict[str, Any]:
    """Return the source's config by the twin's keys, without keys that only the source has.

    The source can state a value under several keys. For the width of a GPT-2, which is
    ``hidden_size`` in the twin, the last of these counts:

    1. The key that the twin renames: ``n_embd``, or its default.
    2. An alias, which transformers accepts in the source too: ``hidden_size``.

    Any other key that already has the name of a renamed one has no effect in the source, such as
    ``hidden_act`` next to ``activation_function``.
    """
    source_values = _values_to_keep(model, source_type, twin)
    names_of_renamed = set(twin.keys.values())
    values = dict[str, Any]()
    for key, value in source_values.items():
        if key in twin.keys:
            values[twin.keys[key]] = value
        elif key not in names_of_renamed:
            values[key] = value
    for alias in source_type.aliases:
        if alias in source_values:
            values[alias] = source_values[alias]
    return values


def _with_defaults(model: OpenedModel, source_type: SourceType, twin: Twin) -> dict[str, Any]:
    """Return the source's config with the defaults that the twin needs, by the source's keys."""
    return {**source_type.defaults, **twin.defaults, **model.checkpoint.config}


def _values_to_keep(model: OpenedModel, source_type: SourceType, twin: Twin) -> dict[str, Any]:
    """Return the source's config with the defaults that the twin needs, by the source's keys.

    Keys that only the source has, and keys that the twin states for itself, are left out.
    """
    length_key = model.tables[0].config_key
    unused = (*source_type.unused, *twin.unused)
    left_out = [*NOT_COPIED, *source_type.required, *unused, length_key]
    values = dict[str, Any]()
    for key, value in _with_defaults(model, source_type, twin).items():
        if not any(match_pattern(pattern, key) for pattern in left_out):
            values[key] = value
    return values


def _rotary_settings(theta: float) -> dict[str, Any]:
    """Return the rotary settings of a twin, which rotates whole heads."""
    base = theta
    if theta == int(theta):
        base = int(theta)
    return {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1.0}


# ---- the origins of its tensors


def _find_origins(
    model: OpenedModel, source_type: SourceType, twin: Twin, head: TwinHead
) -> tuple[dict[str, Origin], list[str]]:
    """Return how each tensor of a twin is computed, by name, and which tensors are dropped.

    Raises:
        CheckpointError: The source lacks the embeddings that the mean position row is added to.
        UnsupportedModelError: A tensor of the head has no place in the twin.
    """
    location = model.tables[0]
    prefix = model.tables[0].name.removesuffix(location.tensor)
    rules = _origin_rules(twin, head, prefix)
    ignored = [prefix + name for name in (location.tensor, *source_type.ignored)]
    origins = dict[str, Origin]()
    dropped = list[str]()
    for tensor in model.checkpoint.weights.entries:
        name = _current_name(tensor)
        found = _apply_rules(rules, name)
        for target, how in found.items():
            origins[target] = Origin(tensor=tensor, how=how)
        if not found and not any(match_pattern(pattern, name) for pattern in ignored):
            dropped.append(tensor)
    if head.end != BASE_MODEL:
        _check_dropped(dropped, source_type, twin, prefix)
    if twin.adds_mean:
        embeddings = _find_embeddings(model, origins)
        if head.end == CAUSAL_LM and twin.lm_head:
            # An LM head that the source ties to its embeddings is not stored. The twin cannot tie
            # it, since the mean position row is added to its embeddings.
            origins.setdefault(twin.lm_head, Origin(tensor=embeddings, how=COPIED))
    if model.checkpoint.config.get("tie_word_embeddings") is False:
        _add_decoder_bias(origins, twin)
    return origins, dropped


def _check_dropped(
    dropped: Sequence[str], source_type: SourceType, twin: Twin, prefix: str
) -> None:
    """Check that the tensors without a place in a twin with a head are not needed by most uses.

    Raises:
        UnsupportedModelError: A tensor is none of `DROPPED`.
    """
    for tensor in dropped:
        if not _current_name(tensor).removeprefix(prefix).startswith(DROPPED):
            message = (
                f"{tensor} is not a tensor of {source_type.class_name} models that "
                f"{twin.model_type} models have."
            )
            raise UnsupportedModelError(message, DROP_HEAD)


def _find_embeddings(model: OpenedModel, origins: Mapping[str, Origin]) -> str:
    """Return the first tensor of the source that the mean position row is added to.

    Raises:
        CheckpointError: The source has none, so that the twin would lack the mean row.
    """
    for origin in origins.values():
        if origin.how == PLUS_MEAN:
            return origin.tensor
    message = f"{model.ref.source} has no embeddings that the mean position row could be added to."
    raise CheckpointError(message, "Save the model again, with all its tensors.")


def _origin_rules(twin: Twin, head: TwinHead, prefix: str) -> list[TensorRule]:
    """Return the rules of the base model, with prefixes, and those of its head."""
    twin_prefix = "" if head.end == BASE_MODEL else twin.prefix
    rules = list[TensorRule]()
    for rule in (*twin.rules, *head.base_rules):
        rules.append(rule._replace(source=prefix + rule.source, name=twin_prefix + rule.name))
    for rule in head.rules_from_base:
        rules.append(rule._replace(source=prefix + rule.source))
    return [*rules, *head.rules]


def _find_missing(
    twin: Twin, head: TwinHead, config: Mapping[str, Any], origins: Mapping[str, Origin]
) -> tuple[str, ...]:
    """Return the tensors of a twin that the source has no values for."""
    prefix = "" if head.end == BASE_MODEL else twin.prefix
    needed = list[str]()
    for rule in (*twin.rules, *head.base_rules):
        if rule.is_needed:
            needed += [prefix + name for name in rule.twin_names(_layers_of(rule, twin, config))]
    for rule in (*head.rules_from_base, *head.rules):
        if rule.is_needed:
            needed += rule.twin_names(layers=0)
    return tuple(name for name in needed if name not in origins)


def _layers_of(rule: TensorRule, twin: Twin, config: Mapping[str, Any]) -> int:
    """Return how many layers a rule is about: those of the encoder come first, if there are two."""
    key = twin.layer_keys[-1] if rule.name.startswith("decoder.") else twin.layer_keys[0]
    return int(config[key])


def _current_name(tensor: str) -> str:
    """Return the name that transformers gives a tensor today."""
    module, dot, parameter = tensor.rpartition(".")
    return f"{module}{dot}{OLD_NAMES.get(parameter, parameter)}"


def _apply_rules(rules: Sequence[TensorRule], name: str) -> dict[str, str]:
    """Return how the tensors of a twin that come from one of the source are computed, by name."""
    found = dict[str, str]()
    for rule in rules:
        target = rule.twin_name(name)
        if target is not None:
            found[target] = rule.how
    return found


def _add_decoder_bias(origins: dict[str, Origin], twin: Twin) -> None:
    """Add the second name of a masked LM's bias, for a config that says that nothing is tied.

    Transformers then does not tie this bias either, and reads it under both names.
    """
    if not twin.lm_biases:
        return
    name, second = twin.lm_biases
    bias = origins.get(name)
    if bias is not None:
        origins.setdefault(second, bias)
