"""Find the position tables of a model class by building it with two lengths.

`plan.suggestions` reads names and shapes of tensors; a class of the installed transformers also
says where they come from. The model is built without memory for its weights, only for a hint.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

from ctxextend.families.transformers_source import installed_types

MAX_LAYERS = 300  # of models that are built, and of experts or other repeated modules
STEP = 8  # by which a length is raised, since some must be even


class DependentTensor(NamedTuple):
    """A parameter with a row for each unit of a config key."""

    name: str  # in the model class
    key: str  # with dots
    model_class: str
    rows: int


def dependent_tensors(config: Mapping[str, Any], keys: Iterable[str]) -> list[DependentTensor]:
    """Return the parameters of a model's class that have a row for each unit of a config key.

    Args:
        config: The content of config.json, with a model type.
        keys: Config keys to raise, with dots.

    Returns:
        The parameters; none if the installed transformers has no class for the config, or cannot
        build it.
    """
    if config.get("model_type") not in installed_types() or _has_many_layers(config):
        return []
    try:
        return _scan(config, keys)
    except Exception:  # a class may raise anything for a config
        return []


def _scan(config: Mapping[str, Any], keys: Iterable[str]) -> list[DependentTensor]:
    import transformers

    parsed = transformers.AutoConfig.for_model(**copy.deepcopy(dict(config)))
    model_class = _model_class(config, parsed)
    before = _shapes(model_class, parsed)
    found = list[DependentTensor]()
    for key in keys:
        raised = copy.deepcopy(parsed)
        *outer, last = key.split(".")
        part = reduce(getattr, outer, raised)
        setattr(part, last, getattr(part, last) + STEP)
        for name, shape in _shapes(model_class, raised).items():
            rows = before[name][0] if before.get(name) else 0
            if len(shape) == 2 and shape == (rows + STEP, *before[name][1:]):
                found.append(DependentTensor(name, key, model_class.__name__, rows))
    return found


def _model_class(config: Mapping[str, Any], parsed: Any) -> Any:
    """Return the class that a config states, or else the base class of its model type.

    Args:
        config: The content of config.json.
        parsed: It, as read by transformers.
    """
    import transformers

    for name in config.get("architectures") or ():
        stated = getattr(transformers, name, None)
        is_model = isinstance(stated, type) and issubclass(stated, transformers.PreTrainedModel)
        if is_model and getattr(stated, "config_class", None) is type(parsed):
            return stated
    return transformers.AutoModel._model_mapping[type(parsed)]


def _has_many_layers(config: Mapping[str, Any]) -> bool:
    """Whether a config would make lists of many modules or labels."""
    for key, value in config.items():
        if isinstance(value, Mapping) and _has_many_layers(value):
            return True
        numbers = value if isinstance(value, list) else [value]
        is_size = re.search("size|dim|len|position|_id|_ctx|embd|width", key)
        for number in numbers:
            if not is_size and type(number) is int and number > MAX_LAYERS:
                return True
    return False


def _shapes(model_class: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a model, by name."""
    import torch

    with torch.device("meta"):
        model = model_class(copy.deepcopy(config))
    return {name: tuple(value.shape) for name, value in model.named_parameters()}
