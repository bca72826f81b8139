"""Low-rank adapters (LoRA) on the linear layers of transformer blocks, by peft."""

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save
from transformers.pytorch_utils import Conv1D

from ctxextend.errors import CheckpointError, MethodError
from ctxextend.lab.eval_model import EvalModel
from ctxextend.models.extend import to_tensor
from ctxextend.settings import CheckpointRef, Train
from ctxextend.training.trainable import TrainableParameters

SCALING = 2  # of an adapter's product: peft's lora_alpha divided by the rank
LINEAR_LAYERS = (torch.nn.Linear, Conv1D)
# Blocks are items of a list, so the names of their layers contain a number.
IN_BLOCK = re.compile(r"\.\d+\.")
PEFT_PREFIX = "base_model.model."  # of the names of tensors in an adapter's file


def add_adapters(model: EvalModel, names: Mapping[str, str], settings: Train) -> dict[str, str]:
    """Add adapters to the linear layers of a model's blocks, in place.

    A weight W of shape (out, in) becomes W + SCALING * B @ A: A, shape (rank, in), starts random;
    B, shape (out, rank), starts as 0. Afterwards, only adapters require gradients. `names` are from
    `match_parameters`. Return the names of the layers by tensor.

    Source: LoRA, Hu et al. 2021, arXiv:2106.09685, section 4.1; on all linear layers of the blocks
        as in QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 4. The implementation is
        peft's.

    Raises:
        MethodError: The rank is above the width of the model.
        CheckpointError: There are no linear layers in blocks, or the files lack their weights.
    """
    rank = settings.lora or 0
    width = getattr(model.model.config.get_text_config(), "hidden_size", rank)
    if rank > width:
        message = f"--lora must be at most the width of {model.name}, {width}, got {rank}."
        raise MethodError(message, "Use a lower rank, such as --lora 8.")
    layers = dict[str, type[torch.nn.Module]]()
    for name, module in model.model.named_modules():
        if type(module) in LINEAR_LAYERS and IN_BLOCK.search(name):
            layers[name] = type(module)
    weights = {f"{name}.weight" for name in layers}
    missing = weights - {*names.values()}
    if missing or not layers:
        absent = min(missing, default="linear layers in blocks")
        message = f"--lora cannot adapt {model.name}: its files have no {absent}."
        raise CheckpointError(message, "Remove --lora.")
    torch.manual_seed(settings.seed)
    number = re.compile(r"\\\.\d+(?=\\\.)")  # of a block
    patterns = {number.sub(r"\\.\\d+", re.escape(name)) for name in layers}
    config = LoraConfig(
        target_modules="|".join(sorted(patterns)),
        fan_in_fan_out=Conv1D in layers.values(),  # weights of shape (in, out)
    )
    config.r = rank
    config.lora_alpha = SCALING * rank
    inject_adapter_in_model(config, model.model)
    adapted = {}
    for tensor, parameter in names.items():
        if parameter in weights:
            adapted[tensor] = parameter.removesuffix(".weight")
    return adapted


def adapter_files(
    trained: TrainableParameters, tables: Mapping[str, NDArray[Any]], ref: CheckpointRef
) -> dict[str, bytes]:
    """Return the files of a PEFT adapter for a checkpoint, by name.

    `tables` are position tables by parameter name, which the adapter contains as a whole.
    """
    network: Any = trained.model
    values = {name: trained.value(name) for name in trained.parameters}
    tensors = get_peft_model_state_dict(network, values, save_embedding_layers=False)
    tensors |= {name: to_tensor(table) for name, table in tables.items()}
    tensors = {f"{PEFT_PREFIX}{name}": value.contiguous() for name, value in tensors.items()}
    files = {SAFETENSORS_WEIGHTS_NAME: save(tensors, {"format": "pt"})}
    config = network.peft_config["default"]
    config.base_model_name_or_path = ref.source
    config.revision = ref.revision
    config.inference_mode = True
    config.modules_to_save = [name.removesuffix(".weight") for name in tables] or None
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=list)
    files[CONFIG_NAME] = text.encode()
    return files
