"""The facts of a rotary model type without an entry, from its classes in transformers.

Transformers adds model types every week. Most have one class that computes frequencies from the
usual keys of the config: it is built with several settings, and must compute what ctxextend does.
"""

import copy
import json
import re
import sys
from functools import cache
from typing import Any

import numpy as np

from ctxextend.errors import one_line
from ctxextend.positions.facts import LENGTH, Family, Part, RotaryFacts
from ctxextend.positions.rotary import Rotary
from ctxextend.tables.frequencies import frequencies
from ctxextend.tables.method_facts import FOLLOWING_METHODS, SCALING_METHODS
from ctxextend.tables.rope_types import FACTOR, NEW, OLD, PARTIAL, THETA, TRAINED, TYPE

HEAD_DIM = "head_dim"
LATENT_DIM = "qk_rope_head_dim"  # of latent attention, which rotates a part of each head
# Keys with these in their names change frequencies, or choose positions, unless they are listed.
ABOUT_ROPE = re.compile("rope|rotary|alibi")
USUAL_KEYS = (NEW, LATENT_DIM, "rope_interleave", "no_rope_layers", "no_rope_layer_interval")
# Those whose frequencies do not follow the length of inputs, which a class may ignore.
FIXED_METHODS = tuple(name for name in SCALING_METHODS if name not in FOLLOWING_METHODS)


class UnclearClassError(Exception):
    """What is missing in the classes of a model type, as a clause."""


@cache
def class_family(model_type: str, language_model: Part) -> Family:
    """Return the entry of a type of the installed transformers, found by building its classes.

    Args:
        model_type: The type.
        language_model: The part that a multimodal type has, with the type in its text config.

    Raises:
        UnclearClassError: A class or a key is missing, or frequencies differ.
    """
    try:
        return _class_family(model_type, language_model)
    except UnclearClassError:
        raise
    except Exception as error:  # a class may raise anything
        raise UnclearClassError(f"they fail with {one_line(repr(error))}") from error


def _class_family(model_type: str, language_model: Part) -> Family:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    config = config_class()
    text = getattr(config, "text_config", None)
    if text is not None:
        return Family(model_type, parts=(language_model._replace(model_type=text.model_type),))
    _check_keys(config)
    settings = config.rope_parameters
    dim_key = LATENT_DIM if hasattr(config, LATENT_DIM) else HEAD_DIM
    facts = RotaryFacts(
        theta={"": settings[THETA]},
        partial=settings.get(PARTIAL, 1.0),
        dim_key=dim_key,
        needs_dim=getattr(config, dim_key, 0) is None,
        methods=FIXED_METHODS,
    )
    defaults = {LENGTH: config.max_position_embeddings}
    dim = getattr(config_class, dim_key, None)  # not what the constructor computes
    if isinstance(dim, int):
        defaults[dim_key] = dim
    else:
        defaults["hidden_size"] = config.hidden_size
        defaults["num_attention_heads"] = config.num_attention_heads
        dim = config.hidden_size // config.num_attention_heads
    _check_frequencies(facts, config, dim)
    return Family(
        model_type,
        tables=(Rotary(rope=facts),),
        defaults=defaults,
        note="it has no entry: its rotary class in transformers was built, and computes the same "
        "frequencies",
    )


def _check_keys(config: Any) -> None:
    for key in ("vocab_size", LENGTH):
        if not isinstance(getattr(config, key, None), int):
            raise UnclearClassError(f"its config has no {key}")
    settings = getattr(config, NEW, None) or {}
    if settings.get(TYPE) != "default" or THETA not in settings:
        raise UnclearClassError(f"its config has no {NEW} of type default")
    for key in config.to_dict():
        if ABOUT_ROPE.search(key) and key not in USUAL_KEYS:
            raise UnclearClassError(f"its config has the key {key}")


def _check_frequencies(facts: RotaryFacts, config: Any, dim: int) -> None:
    """Check that the rotary class of a type computes the frequencies that ctxextend does.

    Args:
        facts: Of the type.
        config: Its default config.
        dim: The default size of a head.

    Raises:
        UnclearClassError: The class is missing, or computes others.
    """
    rotary_class = _rotary_class(type(config))
    length = config.max_position_embeddings
    base = {THETA: 20_000.0}
    scaled = {TYPE: "yarn", FACTOR: 4.0, TRAINED: length // 4}
    size = {facts.dim_key: 32}
    for stated, settings, head_dim in (
        ({}, {}, dim),
        (base, base, dim),
        (size | {NEW: scaled | base}, scaled | base, 32),
        (size | {OLD: scaled} | base, scaled | base, 32),
    ):
        module = rotary_class(type(config).from_dict(copy.deepcopy(stated)))
        if not hasattr(module, "inv_freq"):
            raise UnclearClassError(f"{rotary_class.__name__} has no inv_freq")
        rope = {TYPE: "default", THETA: facts.theta[""], PARTIAL: facts.partial} | settings
        expected = frequencies(rope, int(head_dim * facts.partial), length).inverse
        found = module.inv_freq.double().numpy()
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-5, atol=0):
            raise UnclearClassError(
                f"{rotary_class.__name__} computes other frequencies for {json.dumps(stated)}"
            )


def _rotary_class(config_class: Any) -> Any:
    from transformers import AutoModel

    mapping = AutoModel._model_mapping
    if config_class not in mapping:
        raise UnclearClassError("transformers has no model class for it")
    module = sys.modules[mapping[config_class].__module__]
    classes = [value for name, value in vars(module).items() if name.endswith("RotaryEmbedding")]
    accepted = [found.__init__.__annotations__.get("config") for found in classes]
    if config_class in accepted:  # others are those of images or audio
        classes = [classes[accepted.index(config_class)]]
    if len(classes) != 1:
        raise UnclearClassError(f"{module.__name__} has {len(classes)} rotary classes")
    return classes[0]
