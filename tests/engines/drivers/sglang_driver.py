# mypy: disable-error-code="import-not-found, no-untyped-call"
"""Run SGLang's own code for lengths and rotary frequencies, on a CPU and without a server.

A standalone script, run by the Python of an environment that contains SGLang:

    python sglang_driver.py REQUESTS.json RESULTS.json

REQUESTS.json is a list of objects: `folder`, `tables` (a .npz file to write), and as an option
`context_length` (as --context-length). RESULTS.json is a list with an object for each:
`context_length` that SGLang serves, `model_class`, `rotary` (class and rows of each rotary table),
`error`, or `model_error` if a part of the model cannot be created here (then `rotary` has the
tables made before). The .npz file contains the cosines and sines of each rotary table, one row per
position; of longrope's two tables both.
Gemma 3's layers have tables that only Intel CPUs read: elsewhere, those of the model count.

The wheel on PyPI is built for CUDA. Two things make it run here: operators that are only looked up
are declared or replaced by nothing, and none is called. The model is created without weights.
"""

import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

OPERATORS: tuple[Any, ...] = ()


def main() -> None:
    """Answer each request."""
    _declare_operators()
    requests = json.loads(Path(sys.argv[1]).read_text())
    results = [_answer(request) for request in requests]
    Path(sys.argv[2]).write_text(json.dumps(results, indent=1, default=str))


def _declare_operators() -> None:
    """Declare compiled operators that are looked up, but not called, without their libraries."""
    from torch.library import Library

    global OPERATORS  # a declaration ends with its library object
    vision = Library("torchvision", "DEF")
    vision.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    vision.define("qnms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    OPERATORS = (vision,)

    import sglang.srt.utils  # before the modules below look installed

    assert sglang.srt.utils
    for name in ("vllm", "vllm._custom_ops"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
        module.__path__ = []
        sys.modules.setdefault(name, module)
    sys.modules["vllm._custom_ops"].rotary_embedding = None  # type: ignore[attr-defined]


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what SGLang makes of one folder."""
    result = dict(request)
    try:
        model_config = _model_config(request)
        result["context_length"] = model_config.context_len
        model_class = _model_class(model_config)
    except Exception as error:
        return result | {"error": _message(error)}
    result["model_class"] = model_class.__name__
    try:
        modules = _modules(model_config, model_class, request["folder"])
    except Exception as error:
        result["model_error"] = _message(error)
        modules = _cached_modules()
    result["rotary"] = _write_tables(modules, model_config.context_len, request["tables"])
    return result


def _model_config(request: Mapping[str, Any]) -> Any:
    """Return SGLang's configuration of a folder, as `sglang.launch_server` creates it."""
    from sglang.srt.configs.model_config import ModelConfig

    length = request.get("context_length")
    return ModelConfig(request["folder"], dtype="float32", context_length=length)


def _model_class(model_config: Any) -> Any:
    """Return the class of SGLang that runs a model."""
    from sglang.srt.models.registry import ModelRegistry

    model_class, _ = ModelRegistry.resolve_model_cls(model_config.hf_config.architectures)
    return model_class


def _modules(model_config: Any, model_class: Any, folder: str) -> list[tuple[str, Any]]:
    """Create the model without weights, and return its modules with their names."""
    from sglang.srt.layers.rotary_embedding import factory
    from sglang.srt.models import transformers as transformers_backend

    transformers_backend.get_device = lambda: "cpu"
    factory._ROPE_DICT.clear()
    _use_one_process(folder)
    model = model_class(config=model_config.hf_config, quant_config=None)
    return list(model.named_modules(remove_duplicate=False))


def _cached_modules() -> list[tuple[str, Any]]:
    """Return the rotary modules of a model whose later parts could not be created here."""
    from sglang.srt.layers.rotary_embedding import factory

    modules = factory._ROPE_DICT.values()
    return [(f"cached.{number}", module) for number, module in enumerate(modules)]


def _write_tables(modules: list[tuple[str, Any]], length: int, path: str) -> dict[str, Any]:
    """Write the rotary tables of modules, and return the class and rows of each."""
    import numpy as np

    tables = dict[str, Any]()
    facts = dict[str, Any]()
    for name, module in modules:
        for part, table in _rotary_tables(module, length):
            tables[f"{name}.{part}"] = table.float().numpy()
            facts[f"{name}.{part}"] = {"class": type(module).__name__, "rows": len(table)}
    np.savez(path, **tables)
    return facts


def _rotary_tables(module: Any, length: int) -> Iterator[tuple[str, Any]]:
    """Yield the rotary tables of a module: cosines and then sines, a row for each position."""
    import torch

    for part in ("cos_sin_cache", "short_cos_sin_cache", "long_cos_sin_cache"):
        table = getattr(module, part, None)
        if table is not None:
            yield part, table
    # A module of transformers, in SGLang's backend that runs transformers' model code.
    for name, frequencies in list(module.named_buffers(recurse=False)):
        if not name.endswith("inv_freq") or "original" in name:
            continue
        layer_type = name.removesuffix("inv_freq")
        scale = getattr(module, f"{layer_type}attention_scaling", 1)
        angles = torch.outer(torch.arange(length).float(), frequencies.float())
        yield name, torch.cat([angles.cos(), angles.sin()], dim=-1) * scale


def _use_one_process(folder: str) -> None:
    """Publish the arguments of a server, and set up one process as a group of one."""
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.distributed.parallel_state import model_parallel_is_initialized
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path=folder, device="cpu", skip_tokenizer_init=True)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    if model_parallel_is_initialized():
        return
    initialize_moe_config()
    init_distributed_environment(
        world_size=1,
        rank=0,
        distributed_init_method=f"file://{Path(sys.argv[2]).resolve()}.group",
        local_rank=0,
        backend="gloo",
    )
    initialize_model_parallel(backend="gloo")
    initialize_dp_attention(arguments)


def _message(error: Exception) -> str:
    """Return the class of an error with its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    main()
