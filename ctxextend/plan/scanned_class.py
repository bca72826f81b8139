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

MAX_LAYERS = 300  # of models that are built
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
    names = config.get("architectures") or ()
    model_class: Any = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        model_class = transformers.AutoModel._model_mapping[type(parsed)]
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


def _has_many_layers(config: Mapping[str, Any]) -> bool:
    """Whether a config would make lists of many layers or labels."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if _has_many_layers(value):
                return True
        elif re.search("layer|label|block", key) and isinstance(value, int) and value > MAX_LAYERS:
            return True
    return False


def _shapes(model_class: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a model, by name."""
    import torch

    with torch.device("meta"):
        model = model_class(copy.deepcopy(config))
    return {name: tuple(value.shape) for name, value in model.named_parameters()}
