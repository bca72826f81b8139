"""Any model type of transformers: classes, small configs, and the parameters that depend on each
config key.
"""

import copy
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH = 16

# Small values by a pattern of the key; the first match applies.
SMALL: Mapping[str, int] = {
    r"(^|_)vocab_size$|^n_words$|input_vocab_size|output_vocab_size": 48,
    r"num_.*heads?$|_heads$|^n_heads?$": 2,
    r"layers$|^n_layer$|_layer$|num_blocks$|depth$": 2,
    r"^(intermediate_size|ffn_dim|hidden_dim|d_ff|n_inner|encoder_ffn_dim|decoder_ffn_dim|d_inner)$": 32,
    r"(hidden_size|d_model|n_embd|emb_dim|^dim|embedding_size|embed_dim|projection_dim|bottleneck_size|emb_size"
    r"|input_dim|d_latents|word_embed_proj_dim|encoder_width|_hidden_dim|coordinate_size|shape_size)$": WIDTH,
    r"image_size$": 32,
    r"patch_size$": 16,
}

# Keys that may set the length of a table: those of positions, lengths, contexts or tokens.
LENGTH_KEY = re.compile(
    r"pos|len|ctx|context|seq|block_size|max_.*tok|max_text|timestep|tokens", re.IGNORECASE
)
OTHER_KEY = re.compile(
    r"token_id|output|_bias|seconds|loss|prob|embedding_type|hidden|chunk_len|pool|silence|bottleneck|kernel|conv_|vocab"
    r"|channels|units|features|patch_length"
)

# For detectors that use a backbone from timm by default.
OWN_BACKBONE = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
}
DETECTORS = (
    "conditional_detr",
    "dab-detr",
    "deformable_detr",
    "detr",
    "omdet-turbo",
    "table-transformer",
)

# Config values that some types require.
NEEDED: Mapping[str, dict[str, Any]] = {
    **{
        series: {"prediction_length": 4}
        for series in ("autoformer", "informer", "time_series_transformer")
    },
    **{
        model_type: {"head_dim": 64}
        for model_type in ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "ministral")
    },
    **dict.fromkeys(DETECTORS, OWN_BACKBONE),
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "nemotron": {"num_key_value_heads": 2},
    "esm": {"vocab_size": 48, "mask_token_id": 3, "pad_token_id": 1},
}

# Sizes that must match others, by dotted key.
FITTING: Mapping[str, dict[str, Any]] = {
    "align": {"vision_config.depth_coefficient": 0.1},
    "perceiver": {"num_self_attends_per_block": 2},
    "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "bridgetower": {
        "hidden_size": 64,
        "text_config.hidden_size": 64,
        "vision_config.hidden_size": 64,
    },
    **{
        name: {
            "d_model": 32,
            "backbone_config.depths": [1, 1, 1, 1],
            "backbone_config.num_heads": [1, 1, 1, 1],
        }
        for name in ("grounding-dino", "mm-grounding-dino")
    },
    "clvp": {"text_config.bos_token_id": 1, "text_config.eos_token_id": 2},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "attention_layers": ["global", "local"],
        "window_size": 8,
    },
    "speech-encoder-decoder": {"encoder.num_feat_extract_layers": 7},
    "florence2": {
        "vision_config.embed_dim": [16, 16, 16, 16],
        "vision_config.num_heads": [2, 2, 2, 2],
        "vision_config.num_groups": [2, 2, 2, 2],
        "vision_config.depths": [1, 1, 1, 1],
    },
    "lilt": {"hidden_size": 24},
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4},
    "led": {"attention_window": [8, 8]},
    "marian": {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    "speecht5": {"num_feat_extract_layers": 7},
    "tipsv2": {"vision_config.num_hidden_layers": 12},  # the last of its stages
    "whisper": dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 3
    ),
}

PRIMES = (
    11,
    17,
    29,
    43,
    61,
    83,
    107,
    137,
    173,
    211,
    257,
    307,
    359,
    419,
    479,
    547,
    617,
    691,
    769,
    853,
)
HEADS = (
    "PRETRAINING",
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "IMAGE_TEXT_TO_TEXT",
    "SPEECH_SEQ_2_SEQ",
)


def make_config(model_type: str) -> Any:
    """Create the default config of a type."""
    return CONFIG_MAPPING[model_type](**copy.deepcopy(NEEDED.get(model_type, {})))


def parts(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a config and those nested in it, each with its path of keys."""
    yield path, config
    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            yield from parts(value, (*path, key))


def shrink(config: Any, *, only_depth: bool = False) -> Any:
    """Set all sizes in a config and those nested in it to small values, in place."""
    for _, part in parts(config):
        for key, value in list(vars(part).items()):
            found = next(
                (small for pattern, small in SMALL.items() if re.search(pattern, key)), None
            )
            if (
                type(value) is int
                and found is not None
                and value > found
                and ("layer" in key or not only_depth)
            ):
                setattr(part, key, found)
    for key, value in {} if only_depth else FITTING.get(config.model_type, {}).items():
        set_value(config, tuple(key.split(".")), value)
    return config


def set_value(config: Any, path: tuple[str, ...], value: Any) -> None:
    """Set a value at a path of keys, in place."""
    for key in path[:-1]:
        config = getattr(config, key)
    setattr(config, path[-1], value)


def model_classes(model_type: str) -> tuple[Any, ...]:
    """Return the model classes of a type, the base class first."""
    config_class = CONFIG_MAPPING[model_type]
    mappings = ["MODEL_MAPPING", *(f"MODEL_FOR_{head}_MAPPING" for head in HEADS)]
    mappings += sorted(
        {name for name in dir(modeling_auto) if name.endswith("_MAPPING")} - set(mappings)
    )
    found: dict[Any, None] = {}
    for name in mappings:
        try:
            classes = getattr(modeling_auto, name)[config_class]
        except (KeyError, AttributeError, TypeError, ValueError):
            continue
        found |= dict.fromkeys(classes if isinstance(classes, tuple) else (classes,))
    return tuple(found) or _classes_of_module(config_class)


def _classes_of_module(config_class: Any, *, public: bool = False) -> tuple[Any, ...]:
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    names = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith("modeling_")
    ]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    values = [(module.__name__, value) for module in modules for value in vars(module).values()]
    classes = [
        value for name, value in values if isinstance(value, type) and value.__module__ == name
    ]
    models: list[Any] = [cls for cls in classes if issubclass(cls, PreTrainedModel)]
    models = [
        cls
        for cls in models
        if cls.config_class is config_class and not cls.__name__.endswith("PreTrainedModel")
    ]
    listed = {name for module in modules for name in module.__all__}
    return tuple(cls for cls in models if not public or cls.__name__ in listed)


def all_classes(model_type: str) -> tuple[Any, ...]:
    """Return the model classes of a type, including those without an auto class."""
    others = (
        cls
        for cls in _classes_of_module(CONFIG_MAPPING[model_type], public=True)
        if not cls.__name__.endswith("Wrapper")
    )
    return tuple(dict.fromkeys((*model_classes(model_type), *others)))


@dataclass(frozen=True)
class Built:
    """A model class, a config that it can be built from, and what the model contains."""

    model_class: Any
    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    others: Mapping[str, tuple[int, ...]]  # of buffers and of tensors that are plain attributes
    modules: frozenset[str]
    sines: frozenset[int]  # lengths of the tables of sines that the constructor computes

    @property
    def names(self) -> set[str]:
        """The names of everything that can be a position table."""
        return {*self.shapes, *self.others, *self.modules}

    @property
    def waves(self) -> list[str]:
        """The names of buffers and attributes that have the length of a table of sines."""
        return [name for name, shape in self.others.items() if self.sines & set(shape[:-1])]


def buildable_classes(
    model_type: str, classes: tuple[Any, ...], maximum: int | None = None
) -> Iterator[Built]:
    """Yield the classes that can be built."""
    found = 0
    for model_class in classes:
        for sizes in ("shallow", "default", "small"):
            try:
                config = make_config(model_type)
                if sizes != "default":
                    shrink(config, only_depth=sizes == "shallow")
                with recorded_sines() as sines:
                    model = meta_model(model_class, config)
            except Exception:
                continue
            found_shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
            others = {name: tuple(value.shape) for name, value in tensors(model)}
            modules = frozenset(name for name, _ in model.named_modules())
            yield Built(model_class, config, found_shapes, others, modules, frozenset(sines))
            found += 1
            break
        if found == maximum:
            break


def meta_model(model_class: Any, config: Any) -> Any:
    """Build a model without allocating memory."""
    with torch.device("meta"):
        return model_class(copy.deepcopy(config))  # some models change their config


def shapes(model_class: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return a model's parameter shapes by name, without allocating memory."""
    return {
        name: tuple(value.shape)
        for name, value in meta_model(model_class, config).named_parameters()
    }


def find_tensor(model: Any, name: str) -> torch.Tensor | None:
    """Return a parameter, buffer or attribute by its name; None if a module computes its rows in
    each forward pass.
    """
    module, _, attribute = name.rpartition(".")
    value = getattr(model.get_submodule(module), attribute)
    return value if isinstance(value, torch.Tensor) else None


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all buffers of a model, and all tensors that are plain attributes of its modules."""
    yield from model.named_buffers()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value


@contextmanager
def recorded_sines() -> Iterator[set[int]]:
    """Record the lengths of all tables of sines that torch and numpy compute."""
    lengths = set[int]()

    def recording(sin: Callable[..., Any]) -> Callable[..., Any]:
        def sin_of_table(*arguments: Any, **options: Any) -> Any:
            table = sin(*arguments, **options)
            lengths.update(length for length in np.shape(table)[:-1] if length > 1)
            return table

        return sin_of_table

    functions: dict[str, Callable[..., Any]]
    functions = {"torch.sin": torch.sin, "torch.Tensor.sin": torch.Tensor.sin, "numpy.sin": np.sin}
    with ExitStack() as stack:
        for name, sin in functions.items():
            stack.enter_context(patch(name, recording(sin)))
        yield lengths


def length_keys(config: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the config keys that may set a length, with their values."""
    for path, part in parts(config):
        for key, value in vars(part).items():
            if (
                type(value) is int
                and value > 1
                and LENGTH_KEY.search(key)
                and not OTHER_KEY.search(key)
            ):
                yield (*path, key), value


def dependent_parameters(built: Built, step: int = 8) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, parameter) for every parameter that gets `step` more rows if the key is
    raised by `step`.
    """
    before = built.shapes
    keys = list(length_keys(built.config))
    # Raise all keys at once first, each by another prime: usually no shape changes, and one model
    # is enough.
    if (
        1 < len(keys) <= len(PRIMES)
        and _raised(built, dict(zip((path for path, _ in keys), PRIMES, strict=False))) == before
    ):
        return
    for path, _ in keys:
        after = _raised(built, {path: step})
        for name, shape in before.items():
            if _has_more_rows(shape, after.get(name, shape), step):
                yield ".".join(path), name


def _raised(built: Built, steps: Mapping[tuple[str, ...], int]) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes with some keys raised; none if the model cannot be built with these
    values.
    """
    config = copy.deepcopy(built.config)
    try:
        for path, step in steps.items():
            set_value(config, path, reduce(getattr, path, config) + step)
        return shapes(built.model_class, config)
    except Exception:
        return {}


def _has_more_rows(before: tuple[int, ...], after: tuple[int, ...], step: int) -> bool:
    changed = [
        index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new
    ]
    return (
        len(changed) == 1
        and changed[0] < len(before) - 1
        and after[changed[0]] - before[changed[0]] == step
    )
