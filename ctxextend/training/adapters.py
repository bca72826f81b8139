"""Low-rank adapters (LoRA) on the linear layers of transformer blocks, by peft."""

import re
from collections.abc import Mapping

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers.pytorch_utils import Conv1D

from ctxextend.errors import CheckpointError, MethodError
from ctxextend.lab.eval_model import EvalModel
from ctxextend.settings import Train

SCALING = 2  # of an adapter's product: peft's lora_alpha divided by the rank
LINEAR_LAYERS = (torch.nn.Linear, Conv1D)
# Blocks are items of a list, so the names of their layers contain a number.
IN_BLOCK = re.compile(r"\.\d+\.")


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
    config = LoraConfig(
        target_modules=[*layers],
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
