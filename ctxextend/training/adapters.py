"""Low-rank adapters (LoRA) on the linear layers of transformer blocks, by peft."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

from ctxextend.errors import CheckpointError, MethodError
from ctxextend.evaluation.eval_model import EvalModel
from ctxextend.models.extend import to_tensor
from ctxextend.recipe import CheckpointRef, Train

SCALING = 2  # of an adapter's product: peft's lora_alpha divided by the rank


def add_adapters(model: EvalModel, names: Mapping[str, str], settings: Train) -> dict[str, str]:
    """Add adapters to the linear layers of a model's blocks, in place; return the names of these
    layers by tensor.

    A weight W of shape (out, in) becomes W + SCALING * B @ A: A, shape (rank, in), starts random;
    B, shape (out, rank), starts as 0. Afterwards, only adapters require gradients. `names` are from
    `match_parameters`.

    Source: LoRA, Hu et al. 2021, arXiv:2106.09685, section 4.1; on all linear layers of the blocks
        as in QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 4. The implementation is
        peft's.
    """
    rank = settings.lora or 0
    width = getattr(model.model.config.get_text_config(), "hidden_size", rank)
    if rank > width:
        message = f"--lora must be at most the width of {model.name}, {width}, got {rank}."
        raise MethodError(message, "Use a lower rank, such as --lora 8.")
    kinds = {name: type(module) for name, module in model.model.named_modules()}
    # Blocks are items of a list, so the names of their layers contain a number.
    linear = {f"{name}.weight": name for name in kinds if re.search(r"\.\d+\.", name)}
    linear = {
        weight: name for weight, name in linear.items() if kinds[name] in (torch.nn.Linear, Conv1D)
    }
    if not linear or not linear.keys() <= {*names.values()}:
        missing = min(linear.keys() - {*names.values()}, default="linear layers in blocks")
        raise CheckpointError(
            f"--lora cannot adapt {model.name}: its files have no {missing}.", "Remove --lora."
        )
    targets = {re.sub(r"\\\.\d+(?=\\\.)", r"\\.\\d+", re.escape(name)) for name in linear.values()}
    is_conv1d = Conv1D in map(kinds.get, linear.values())  # weights of shape (in, out)
    torch.manual_seed(settings.seed)
    config = LoraConfig(target_modules="|".join(sorted(targets)), fan_in_fan_out=is_conv1d)
    config.r = rank
    config.lora_alpha = SCALING * rank
    inject_adapter_in_model(config, model.model)
    return {tensor: linear[name] for tensor, name in names.items() if name in linear}


def save_adapter(
    trained: Any, tables: Mapping[str, NDArray[Any]], ref: CheckpointRef, folder: Path
) -> None:
    """Save `TrainableParameters` as a PEFT adapter for the checkpoint `ref`, with position tables
    by parameter name.
    """
    values = {name: trained.value(name) for name in trained.parameters}
    tensors = get_peft_model_state_dict(trained.model, values, save_embedding_layers=False)
    tensors |= {name: to_tensor(table) for name, table in tables.items()}
    tensors = {f"base_model.model.{name}": value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / SAFETENSORS_WEIGHTS_NAME, {"format": "pt"})
    config = trained.model.peft_config["default"]
    config.base_model_name_or_path = ref.source
    config.revision = ref.revision
    config.inference_mode = True
    config.modules_to_save = [name.removesuffix(".weight") for name in tables] or None
    config.save_pretrained(str(folder))
