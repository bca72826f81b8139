"""The rule that finds rotary positions of a model type in the source of the installed transformers.

A type is rotary if its config class has ``rope_parameters``, and its model computes its frequencies
from them as most types do. A multimodal type is rotary if its language model is.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from ctxextend.families.config_statements import (
    HEAD_DIM,
    LATENT_DIM,
    SETTINGS,
    Statements,
    read_statements,
)
from ctxextend.families.frequency_classes import FrequencyClass, find_frequency_class
from ctxextend.families.rows import THETA_METHOD, language_model, own_part
from ctxextend.families.schema import (
    LENGTH,
    SLIDING_LAYERS,
    Family,
    OldRotaryKeys,
    Part,
    RotaryFacts,
    RotaryPositions,
)
from ctxextend.families.transformers_source import ConfigClass, config_class, installed_types
from ctxextend.tables.method_facts import FOLLOWING_METHODS
from ctxextend.tables.rope_types import PARTIAL, THETA, TYPE

TEXT_SIZE = "vocab_size"  # a field of the config of models that read tokens
HEADS = ("hidden_size", "num_attention_heads")
SPACED = "proportional"  # a rope type of which each model has another form

# The language model of a multimodal model, and the tables of its parts, the newer one first.
TEXT_CONFIG = "text_config"
PARTS_ATTRIBUTES = ("sub_configs_defaults", "sub_configs")
ANY_CONFIG = "AutoConfig"


def rule_family(model_type: str, known: Mapping[str, Family]) -> Family | None:
    """Return the entry of a type of the installed transformers that the rule finds.

    None if it is not one.

    Args:
        model_type: As in config.json.
        known: The entries of all model types, for the language model of a multimodal one.

    Raises:
        UnclearSourceError: It has rotary settings, but its classes use them in another way.
    """
    config = config_class(model_type)
    if config is None:
        return None
    if SETTINGS not in config.fields:
        part = _text_part(config)
        if part is None or not _is_without_rows(part.model_type, known):
            return None
        return Family(model_type, parts=(part,))
    if TEXT_SIZE not in config.fields:
        return None
    return _rotary_family(config)


# Language models


def _rotary_family(config: ConfigClass) -> Family:
    """Return the entry of a type with rotary settings.

    Raises:
        UnclearSourceError: Its classes are of a form that the rule does not cover.
    """
    stated = read_statements(config)
    computed = find_frequency_class(config)
    facts = RotaryFacts(methods=()) if computed is None else _facts(stated, computed)
    positions = RotaryPositions(rope=facts, aliases=_length_aliases(stated))
    return Family(
        config.model_type, tables=(positions,), defaults=_default_sizes(stated, facts.dim_key)
    )


def _facts(stated: Statements, computed: FrequencyClass) -> RotaryFacts:
    """Return how the classes of a type read rotary settings.

    Raises:
        UnclearSourceError: They are of a form that the rule does not cover.
    """
    if stated.share != 1.0 and not computed.reads_share:
        raise stated.unclear(f"its model does not read {PARTIAL}")
    has_head = HEAD_DIM in stated.config.fields
    facts = RotaryFacts(
        partial=stated.share,
        dim_key=_dim_key(stated),
        # The size of a head stays None if the config does not state it.
        needs_dim=has_head and stated.default(HEAD_DIM) is None and not stated.sets_head,
    )
    if not stated.reads_old_keys:
        facts = facts._replace(old=OldRotaryKeys(reads_scaling=False))
    if not computed.scales:
        facts = facts._replace(methods=THETA_METHOD)
    elif not computed.follows_length:
        kept = tuple(name for name in facts.methods if name not in FOLLOWING_METHODS)
        facts = facts._replace(methods=kept)
    layers = _settings_by_layer(stated)
    if computed.by_layer_type != bool(layers):
        raise stated.unclear("no settings for each type of layers are written out")
    if layers:
        return _with_layers(facts, stated, layers)
    theta = stated.theta()
    if stated.settings is None:
        return facts._replace(theta={"": theta})
    defaults = _own_settings(stated, stated.settings)
    return facts._replace(theta={"": theta}, defaults={"": defaults})


def _dim_key(stated: Statements) -> str:
    """Return the key of the size of a rotated head; empty if no key states it."""
    if stated.rotates_latent_part:
        return LATENT_DIM
    return "" if stated.ignores_head else HEAD_DIM


def _settings_by_layer(stated: Statements) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each type of layers; none if all layers have the same."""
    settings = stated.settings or {}
    return {key: value for key, value in settings.items() if isinstance(value, dict)}


def _with_layers(
    facts: RotaryFacts, stated: Statements, layers: Mapping[str, Mapping[str, Any]]
) -> RotaryFacts:
    """Return facts with separate settings for each type of layers, the main layers first."""
    names = sorted(layers, key=lambda name: name == SLIDING_LAYERS)
    defaults = {name: _own_settings(stated, layers[name]) for name in names}
    theta = {name: float(layers[name].get(THETA, 10_000.0)) for name in names}
    local = tuple(name for name in names if name == SLIDING_LAYERS)
    return facts._replace(theta=theta, defaults=defaults, local=local)


def _own_settings(stated: Statements, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config without any, except a share of each head that is all of it.

    Raises:
        UnclearSourceError: They are of a type that has another form in each model.
    """
    if settings.get(TYPE) == SPACED:
        raise stated.unclear(f"its settings are {SPACED}")
    if not isinstance(settings.get(THETA, 0.0), int | float):
        raise stated.unclear(f"its {THETA} is not a number")
    return {key: value for key, value in settings.items() if (key, value) != (PARTIAL, 1.0)}


def _length_aliases(stated: Statements) -> tuple[str, ...]:
    """Return other names of the length.

    Raises:
        UnclearSourceError: The size of a head has other names.
    """
    aliases = stated.aliases()
    for name, key in aliases.items():
        if key in (*HEADS, HEAD_DIM):
            raise stated.unclear(f"{name} is another name of {key}")
    return tuple(name for name, key in aliases.items() if key == LENGTH)


def _default_sizes(stated: Statements, dim_key: str) -> dict[str, int]:
    """Return the defaults of the length and of the size of a head.

    Raises:
        UnclearSourceError: A default is missing.
    """
    sizes = {LENGTH: stated.size(LENGTH)}
    if dim_key == LATENT_DIM or (dim_key and stated.default(HEAD_DIM) is not None):
        sizes[dim_key] = stated.size(dim_key)
        return sizes
    for key in HEADS:
        sizes[key] = stated.size(key)
    return sizes


# Multimodal models


def _text_part(config: ConfigClass) -> Part | None:
    """Return the language model of a multimodal model; None if it has another form.

    Of its parts, only the one in ``text_config`` reads tokens.
    """
    for attribute in PARTS_ATTRIBUTES:
        table = config.attributes.get(attribute)
        if not isinstance(table, ast.Dict):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == TEXT_CONFIG:
                return _language_model(config, ast.unparse(value))
    return None


def _language_model(config: ConfigClass, entry: str) -> Part | None:
    """Return the part of a language model, by its entry in the table of parts."""
    if ANY_CONFIG in entry:
        default = re.search(r"model_type='([^']+)'", entry)
        if default is None:  # the constructor has it, before 5.13
            source = ast.unparse(config.node)
            default = re.search(rf"{TEXT_CONFIG} = CONFIG_MAPPING\['([^']+)'\]\(", source)
        return None if default is None else language_model(default.group(1))
    for model_type, name in installed_types().items():
        if name == entry:
            return own_part("text", TEXT_CONFIG, model_type)
    return None


def _is_without_rows(model_type: str, known: Mapping[str, Family]) -> bool:
    """Whether a type has positions, and none of them is a table of rows.

    Names of tables have a prefix in a multimodal model, which no config states.
    """
    family = known.get(model_type)
    if family is None or not family.tables:
        return False
    return not any(table.has_rows for table in family.tables)
