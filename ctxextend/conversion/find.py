"""Find the twin of a checkpoint: its type, class and config, and the origin of each tensor."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

from ctxextend.conversion.conversion import Conversion, Origin
from ctxextend.conversion.source_types import SOURCE_TYPES
from ctxextend.conversion.twins import (
    BASE_MODEL,
    MASKED_LM,
    POSITION_ROWS,
    RANDOM,
    REFUSED,
    SourceType,
    TensorRule,
    Twin,
    TwinHead,
)
from ctxextend.errors import CheckpointError, MethodError, UnsupportedModelError
from ctxextend.families.registry import find_architecture
from ctxextend.kinds import Factor
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.rotary_dialects import both_dialects
from ctxextend.settings import SCHEMES, Convert

FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # of weights that are not quantised
RESIZE = "Resize it instead, with ctxextend resize."
DROP_HEAD = "To drop the head and convert the base model, add --encoder-only."
# Tensors that are dropped with a warning: most uses of a base model do not need them.
DROPPED = ("*pooler.dense.*", "cls.seq_relationship.*")
# Buffers, which twins lack, and the version of fairseq.
IGNORED = (
    "*h.*.attn.bias",
    "*h.*.attn.masked_bias",
    "*embeddings.position_ids",
    "*embeddings.token_type_ids",
    "*coder.version",
)


def find_twin(model_type: str, scheme: str) -> Twin:
    """Return the twin of a model type with a scheme, as in `Convert.scheme`.

    Raises:
        UnsupportedModelError: It has none.
    """
    twins = dict[str, Twin]()
    for name, source_type in SOURCE_TYPES.items():
        for twin in source_type.twins:
            if twin.scheme == scheme:
                twins[name] = twin
    if model_type not in twins:
        message = f"{model_type} models have no twin with {SCHEMES[scheme]}."
        hint = f"Pass a model of type {', '.join(twins)}, or use ctxextend resize."
        raise UnsupportedModelError(message, hint)
    return twins[model_type]


class TwinMatch(NamedTuple):
    """A source, and the class of the twin that computes the same."""

    model: OpenedModel
    source: SourceType
    class_name: str  # of the source
    twin: Twin
    head: TwinHead  # of the twin's class
    given: Mapping[str, Any]  # the source's config, with the defaults that the twin needs

    def refuse(self, what: str = "", hint: str = RESIZE) -> NoReturn:
        """Refuse what the twin cannot compute: a setting, tensors or the class itself.

        Raises:
            UnsupportedModelError: Always.
        """
        message = f"{self.class_name} has no {self.twin.model_type} twin{what}."
        raise UnsupportedModelError(message, hint)

    def refuse_values(self, values: Mapping[str, Any], hint: str = RESIZE) -> NoReturn:
        """Refuse values of config keys, as `refuse` does."""
        stated = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        self.refuse(f" for {' with '.join(stated)}", hint)


def find_conversion(model: OpenedModel, settings: Convert) -> Conversion:
    """Return the conversion of an open checkpoint.

    Raises:
        CheckpointError: The config and the table disagree, or the source lacks a tensor.
        MethodError: A setting does not apply to the twin.
        UnsupportedModelError: No class of transformers computes the same.
    """
    twin = find_twin(model.architecture.family.model_type, settings.scheme)
    table = model.tables[0]
    settings = _complete_settings(settings, twin, table.length())
    match = _find_match(model, twin, encoder_only=settings.encoder_only)
    config = _twin_config(match)
    _check_numbers(match, config)
    config |= _position_values(match, config, settings)
    rules = list(_tensor_rules(match, config))
    origins = _find_origins(match, config, rules)
    return Conversion(
        model=model,
        settings=settings,
        max_len_before=table.length(),
        twin=twin,
        head=match.head,
        config=config,
        origins=origins,
        dropped=_find_dropped(match, rules),
        missing=[
            rule.name for rule in rules if rule.if_missing == RANDOM and rule.name not in origins
        ],
    )


def _complete_settings(settings: Convert, twin: Twin, max_len: int) -> Convert:
    """Return the settings that recipes state: with the length as a number, and with defaults.

    Raises:
        MethodError: Theta is requested of a twin whose angles are fixed.
    """
    length = settings.to
    if isinstance(length, Factor):
        length = length.times(max_len)
    if settings.theta is not None and twin.theta is None:
        message = (
            f"--theta cannot be used with {twin.model_type}, whose angles transformers "
            "computes with 10,000."
        )
        raise MethodError(message, "Remove --theta.")
    return replace(
        settings,
        to=length,
        theta=settings.theta or twin.theta,
        attention_window=settings.attention_window or twin.attention_window,
    )


def _find_match(model: OpenedModel, twin: Twin, *, encoder_only: bool) -> TwinMatch:
    """Return the twin's class for a source.

    Raises:
        UnsupportedModelError: No class has the same head, or it does not support a config value.
    """
    source = SOURCE_TYPES[model.architecture.family.model_type]
    class_name = model.checkpoint.model_class or "A model without architectures in config.json"
    given = {**source.defaults, **twin.defaults, **model.checkpoint.config}
    match = TwinMatch(model, source, class_name, twin, twin.heads[BASE_MODEL], given)
    if not encoder_only:
        type_names = "|".join(item.class_name for item in SOURCE_TYPES.values())
        head = twin.heads.get(re.sub(f"^(?:{type_names})", "", class_name))
        if head is None:
            match.refuse(hint=DROP_HEAD)
        match = match._replace(head=head)

    required = {**source.required, **match.head.required}
    if twin.same_width is not None:
        required[twin.same_width] = (given.get("hidden_size"),)
    for key, values in required.items():
        if given.get(key) not in values:
            hint = DROP_HEAD if key in match.head.required else RESIZE
            match.refuse_values({key: given.get(key)}, hint)
    return match


# ---- the twin's config


def _twin_config(match: TwinMatch) -> dict[str, Any]:
    """Return the config of a twin without its positions; later values replace earlier ones.

    1. The twin's class and model type.
    2. The source's values, under the twin's names, without keys that only the source has.
    3. What the configs of all twins of this type state.

    The source can state a value under several keys. For the width of a GPT-2, which is
    ``hidden_size`` in the twin, ``n_embd`` counts, or its default; then the alias that transformers
    accepts in the source too, ``hidden_size``. Any other key that already has the name of a renamed
    one has no effect in the source, such as ``hidden_act`` next to ``activation_function``.
    """
    twin = match.twin
    config: dict[str, Any] = {
        "architectures": [f"{twin.class_name}{match.head.end}"],
        "model_type": twin.model_type,
    }
    left_out = (
        *config,
        *match.source.required,
        *match.source.unused,
        *twin.unused,
        match.model.tables[0].config_key,
    )
    for key, value in match.given.items():
        if _is_one_of(key, left_out):
            continue
        if key in twin.keys:
            config[twin.keys[key]] = value
        elif key not in twin.keys.values():
            config[key] = value
    for alias in match.source.aliases:
        if alias in match.given:
            config[alias] = match.given[alias]
    return {**config, **twin.fixed}


def _position_values(
    match: TwinMatch, config: Mapping[str, Any], settings: Convert
) -> dict[str, Any]:
    """Return what the config of a twin states about its positions, and the width of its MLP.

    The length is the new one, or the old one if a resize of the twin's table follows.
    """
    values = dict[str, Any]()
    if match.twin.has_windows:
        lengths = {table.part: table.length() for table in match.model.tables}
        for location in find_architecture(config).locations:
            values[location.config_key] = location.key_value(lengths[location.part])
        values["attention_window"] = settings.attention_window
    else:
        values["max_position_embeddings"] = settings.length
    if config.get("intermediate_size", 0) is None:
        values["intermediate_size"] = 4 * config["hidden_size"]
    if settings.theta is not None:
        base = settings.theta
        if base == int(base):
            base = int(base)
        values["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": base,
            "partial_rotary_factor": 1.0,
        }
        locations = find_architecture({**config, **values}).locations
        for (key,), value in both_dialects(locations).items():
            values[key] = value
    return values


def _check_numbers(match: TwinMatch, config: Mapping[str, Any]) -> None:
    """Check the tokens and sizes that the config of a twin states.

    Raises:
        UnsupportedModelError: The twin cannot have one.
    """
    twin = match.twin
    for key in (*twin.tokens, *twin.layer_keys, twin.width_key, twin.heads_key):
        if not _is_count(config.get(key)):
            match.refuse_values({key: config.get(key)}, "State it in config.json.")
    width = config[twin.width_key]
    heads = config[twin.heads_key]
    divisor = 2 if twin.scheme == "rotary" else 1
    if heads == 0 or width % (heads * divisor):
        match.refuse_values({twin.heads_key: heads, twin.width_key: width})


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


# ---- the origins of its tensors


def _tensor_rules(match: TwinMatch, config: Mapping[str, Any]) -> Iterator[TensorRule]:
    """Yield the rule of each tensor of the twin."""
    table = match.model.tables[0]
    most = len(match.model.checkpoint.weights.entries)  # the config may state any number
    for rule in match.twin.rules_of(match.head, table.name.removesuffix(table.tensor)):
        key = match.twin.layer_keys[0]
        if "decoder.layers." in rule.name:
            key = match.twin.layer_keys[-1]
        yield from rule.expanded(min(config[key], most))


def _find_origins(
    match: TwinMatch, config: Mapping[str, Any], rules: Sequence[TensorRule]
) -> dict[str, Origin]:
    """Return how each tensor of a twin is computed, by name, in the order of the source.

    Raises:
        CheckpointError: The source lacks a tensor.
        UnsupportedModelError: A tensor is quantised, and its twin may be a sum.
    """
    model = match.model
    entries = model.checkpoint.weights.entries
    stored = {_current_name(name): name for name in entries}
    reserved = {place.part: place.reserved_rows for place in find_architecture(config).locations}
    rows = {table.name: reserved.get(table.part, 0) - table.reserved_rows for table in model.tables}
    origins = dict[str, Origin]()
    for rule in rules:
        tensor = stored.get(rule.source)
        if tensor is not None:
            added = rows[tensor] if rule.how == POSITION_ROWS else 0
            origins[rule.name] = Origin(tensor=tensor, how=rule.how, rows=added)
            if entries[tensor].dtype not in FLOAT_DTYPES:
                what = f" for quantised weights ({tensor} is {entries[tensor].dtype})"
                match.refuse(what, "Convert the checkpoint from before quantisation.")
        elif rule.if_missing == REFUSED:
            hint = "Save the model again, with all its tensors."
            if match.head.end != BASE_MODEL:
                hint = DROP_HEAD
            raise CheckpointError(f"{model.ref.source} lacks the tensor {rule.source}.", hint)
    order = {name: number for number, name in enumerate(entries)}
    origins = dict(sorted(origins.items(), key=lambda item: order[item[1].tensor]))
    if match.head.end == MASKED_LM and model.checkpoint.config.get("tie_word_embeddings") is False:
        # Transformers then does not tie this bias either, and reads it under both names.
        for name in ("cls.predictions", "lm_head"):
            if f"{name}.bias" in origins:
                origins.setdefault(f"{name}.decoder.bias", origins[f"{name}.bias"])
    return origins


def _find_dropped(match: TwinMatch, rules: Sequence[TensorRule]) -> list[str]:
    """Return the tensors of the source that the twin has no place for.

    Raises:
        UnsupportedModelError: It has a head, and one of them is none of `DROPPED`.
    """
    used = {rule.source for rule in rules} | {match.model.tables[0].name}
    dropped = list[str]()
    for tensor in match.model.checkpoint.weights.entries:
        if _current_name(tensor) in used or _is_one_of(tensor, IGNORED):
            continue
        if match.head.end != BASE_MODEL and not _is_one_of(tensor, DROPPED):
            match.refuse(f" with the tensor {tensor}", DROP_HEAD)
        dropped.append(tensor)
    return dropped


def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _current_name(tensor: str) -> str:
    """Return the name that transformers gives a tensor today, of old TensorFlow checkpoints too."""
    weight = tensor.replace("LayerNorm.gamma", "LayerNorm.weight")
    return weight.replace("LayerNorm.beta", "LayerNorm.bias")
