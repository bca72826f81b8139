# mypy: disable-error-code="import-not-found, no-untyped-call"
"""Run vLLM's own code for lengths and rotary frequencies, on a CPU and without a server.

A standalone script, run by the Python of an environment that contains vLLM:

    python vllm_driver.py REQUESTS.json RESULTS.json

REQUESTS.json is a list of objects: `folder`, `tables` (a .npz file to write), and as an option
`max_model_len` (as --max-model-len). RESULTS.json is a list with an object for each:
`max_model_len` that vLLM serves, `model_class` (Transformers… for the backend that runs
transformers' model code), `rotary` (class and rows of each rotary table), `error`, or
`model_error` if a part of the model cannot be created here (then `rotary` has the tables made
before). The .npz file contains the cosines and sines of each rotary table, one row per position.

The wheel on PyPI is built for CUDA. Three things make it run here: the platform is vLLM's own CPU
platform, models are inspected in this process, and no compiled operator is called. The model is
created without weights.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

OPERATORS: tuple[Any, ...] = ()


def main() -> None:
    """Answer each request."""
    _use_cpu()
    requests = json.loads(Path(sys.argv[1]).read_text())
    results = [_answer(request) for request in requests]
    Path(sys.argv[2]).write_text(json.dumps(results, indent=1, default=str))


def _use_cpu() -> None:
    """Select vLLM's CPU platform, and set up one process as a group of one."""
    _declare_operators()

    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()

    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import registry

    # In a subprocess, the platform would be unknown again.
    registry._run_in_subprocess = lambda function: function()
    address = f"file://{Path(sys.argv[2]).resolve()}.group"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, address, 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


def _declare_operators() -> None:
    """Declare compiled operators that are looked up, but not called, without their libraries."""
    from torch.library import Library

    global OPERATORS  # a declaration ends with its library object
    vision = Library("torchvision", "DEF")
    vision.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    vision.define("qnms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    activations = Library("_C", "FRAGMENT")
    for name in ("gelu_new", "gelu_fast", "gelu_quick", "relu_squared", "fatrelu_and_mul"):
        activations.define(f"{name}(Tensor! out, Tensor input) -> ()")
    OPERATORS = (vision, activations)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what vLLM makes of one folder."""
    result = dict(request)
    try:
        model_config = _model_config(request)
    except Exception as error:
        return result | {"error": _message(error)}
    result["max_model_len"] = model_config.max_model_len
    model_class, _ = model_config.registry.resolve_model_cls(
        model_config.architectures, model_config=model_config
    )
    result["model_class"] = model_class.__name__
    try:
        modules = _modules(model_config)
    except Exception as error:
        result["model_error"] = _message(error)
        modules = _cached_modules()
    result["rotary"] = _write_tables(modules, model_config.max_model_len, request["tables"])
    return result


def _model_config(request: Mapping[str, Any]) -> Any:
    """Return vLLM's configuration of a folder, as `vllm serve` creates it."""
    from vllm.config import ModelConfig

    length = request.get("max_model_len")
    return ModelConfig(model=request["folder"], dtype="float32", max_model_len=length)


def _modules(model_config: Any) -> list[tuple[str, Any]]:
    """Create the model without weights, and return its modules with their names."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import rotary_embedding
    from vllm.model_executor.model_loader.utils import initialize_model

    rotary_embedding._ROPE_DICT.clear()  # a table may depend on the length that is served
    vllm_config = VllmConfig(model_config=model_config, device_config=DeviceConfig("cpu"))
    with set_current_vllm_config(vllm_config):
        model = initialize_model(vllm_config)
    return list(model.named_modules(remove_duplicate=False))


def _cached_modules() -> list[tuple[str, Any]]:
    """Return the rotary modules of a model whose later parts could not be created here."""
    from vllm.model_executor.layers import rotary_embedding

    modules = rotary_embedding._ROPE_DICT.values()
    return [(f"cached.{number}", module) for number, module in enumerate(modules)]


def _write_tables(modules: list[tuple[str, Any]], length: int, path: str) -> dict[str, Any]:
    """Write the rotary tables of modules, and return the class and rows of each."""
    import numpy as np

    tables = dict[str, Any]()
    facts = dict[str, Any]()
    for name, module in modules:
        for part, table in _rotary_tables(module, length):
            tables[name + part] = table.float().numpy()
            facts[name + part] = {"class": type(module).__name__, "rows": len(table)}
    np.savez(path, **tables)
    return facts


def _rotary_tables(module: Any, length: int) -> Iterator[tuple[str, Any]]:
    """Yield the rotary tables of a module: cosines and then sines, a row for each position."""
    import torch

    both = getattr(module, "long_short_cos_sin_cache", None)
    if both is not None:
        first_length = len(both) - module.max_position_embeddings
        if module.use_long_rope:
            yield "", both[first_length:]
        else:
            yield "", both[:first_length]
        return
    table = getattr(module, "cos_sin_cache", None)
    if table is not None:
        yield "", table
        return
    # A module of transformers, in vLLM's backend that runs transformers' model code.
    for name, frequencies in list(module.named_buffers(recurse=False)):
        if not name.endswith("inv_freq") or "original" in name:
            continue
        layer_type = name.removesuffix("inv_freq")
        scale = getattr(module, f"{layer_type}attention_scaling", 1)
        angles = torch.outer(torch.arange(length).float(), frequencies.float())
        yield f".{name}", torch.cat([angles.cos(), angles.sin()], dim=-1) * scale


def _message(error: Exception) -> str:
    """Return the class of an error with its message, without pydantic's input."""
    text = str(error).partition("[type=")[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"


if __name__ == "__main__":
    main()
