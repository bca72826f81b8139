"""The memory that a training run needs, estimated without the values of any tensor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from ctxextend.errors import TrainingError
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED, EvalModel, prepare_inputs
from ctxextend.recipe import Train
from ctxextend.training.memory import CHUNK_LOGITS
from ctxextend.training.parallel import is_block, micro_batch_sizes
from ctxextend.training.train_data import PREDICTED_SHARE
from ctxextend.training.train_result import DeviceMemory

DEVICE_COUNTS = (1, 2, 4, 8)
CPU_PROCESS = 650_000_000  # bytes of a process on a CPU without tensors
# Share of the tokens of a text whose logits an objective needs.
LABELLED_SHARE = {CAUSAL: 1.0, MASKED: PREDICTED_SHARE, ENCODER: 0.0}
# Bytes per trained value, besides the parameter and its gradient.
ADAM_BYTES = 8  # AdamW's two moments in float32
MASTER_BYTES = 8  # a float32 copy of a half-precision value, and its gradient
BEST_BYTES = 4  # its best value so far

Tensors = Iterable[torch.Tensor]


@dataclass(frozen=True)
class ParameterGroups:
    """The parameters of a model, as sharding divides them."""

    tables: list[torch.Tensor]  # trained, and not sharded
    blocks: Sequence[Sequence[torch.Tensor]]  # of each transformer block
    others: Sequence[torch.Tensor]  # in no block, and no table

    @classmethod
    def of_model(cls, model: torch.nn.Module, tables: list[torch.Tensor]) -> "ParameterGroups":
        """Return the parameters of a model with these trained tables."""
        blocks = [[*block.parameters()] for block in model.modules() if is_block(block)]
        apart = {id(value) for value in chain(tables, *blocks)}
        others = [value for value in model.parameters() if id(value) not in apart]
        return cls(tables=tables, blocks=blocks, others=others)

    @property
    def gathered_bytes_on_cpu(self) -> int:
        """Bytes of gathered weights and reduced gradients on CPUs.

        There, malloc hardly reuses the memory of a block for the next one.
        """
        inside = sum(tensor_bytes(block) for block in self.blocks)
        return 3 * tensor_bytes(self.others) + 2 * inside

    @property
    def gathered_bytes(self) -> int:
        """Bytes of gathered weights and reduced gradients on accelerators."""
        largest = max((tensor_bytes(block) for block in self.blocks), default=0)
        return 3 * (tensor_bytes(self.others) + largest)


def estimate_memory(
    model: EvalModel, tables: list[torch.Tensor], settings: Train, length: int, teacher: int
) -> Iterator[DeviceMemory]:
    """Yield the peak memory of each device by number of devices; no values are read.

    A trained parameter also takes its gradient and, in float32, AdamW's two moments, the best value
    (on a CPU, or sharded) and, in half precision, a copy and its gradient. Sharding divides all
    this, but not trained `tables`, and gathers what is in no block, and a block at a time.
    Activations are what autograd saves; with sharding, the inputs of blocks, and what one block
    saves. `teacher` is in bytes.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 3; sharding is its stage 3.
    """
    network = model.model
    config = network.config.get_text_config()
    on_cpu = network.device.type == "cpu"
    groups = ParameterGroups.of_model(network, tables)
    whole = {id(value) for value in tables}
    parameters = [*network.parameters()]
    sharded = [value for value in parameters if id(value) not in whole]

    per_value = ADAM_BYTES
    if network.dtype != torch.float32:
        per_value += MASTER_BYTES
    per_sharded_value = per_value
    if settings.save == "best":
        per_sharded_value += BEST_BYTES
    if on_cpu:
        per_value = per_sharded_value
    fixed = teacher
    if on_cpu:
        fixed += CPU_PROCESS
    gathered = groups.gathered_bytes_on_cpu if on_cpu else groups.gathered_bytes
    activations = activation_bytes(network, settings, length)
    inputs = len(groups.blocks) * length * config.hidden_size * network.dtype.itemsize
    of_a_block = activations / max(len(groups.blocks), 1)
    logits = length * LABELLED_SHARE[model.kind] * config.vocab_size

    for count in DEVICE_COUNTS:
        devices: Any = SimpleNamespace(num_processes=count, device=network.device)
        with suppress(TrainingError):  # the batch cannot be split across them
            batch = micro_batch_sizes(devices, settings, length)[0]
            loss = 8 * min(CHUNK_LOGITS, batch * logits)  # of two chunks of logits in float32
            each = trained_bytes(parameters, per_value) + batch * activations + fixed + loss
            if count == 1:
                yield DeviceMemory(count, batch, bytes=round(each), fsdp_bytes=None)
                continue
            each += tensor_bytes(trained_only(parameters))  # copied by DDP
            fsdp = (
                trained_bytes(tables, per_sharded_value)
                + trained_bytes(sharded, per_sharded_value) / count
                + gathered
                + batch * (inputs + of_a_block)
                + fixed
                + loss
            )
            yield DeviceMemory(count, batch, bytes=round(each), fsdp_bytes=round(fsdp))


def trained_only(values: Tensors) -> list[torch.Tensor]:
    """Return the tensors that are trained."""
    return [value for value in values if value.requires_grad]


def tensor_bytes(values: Tensors) -> int:
    """Return the bytes of tensors."""
    return sum(value.nbytes for value in values)


def trained_bytes(values: list[torch.Tensor], per_value: int) -> int:
    """Return the bytes of parameters with the gradients and the state of those that are trained."""
    trained = trained_only(values)
    state = per_value * sum(value.numel() for value in trained)
    return tensor_bytes(values) + tensor_bytes(trained) + state


def activation_bytes(network: Any, settings: Train, length: int) -> int:
    """Return what autograd saves for a sequence of `length` tokens, in bytes.

    Weights are saved too, but do not grow with the batch.
    """
    return saved_bytes(network, settings, 2, length) - saved_bytes(network, settings, 1, length)


class NoneIsMarked(TorchFunctionMode):
    """Answers whether a mask marks any token without reading it: none is marked.

    Longformer asks whether a token attends globally. None does in training.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return False for `item()` of a truth value; call everything else."""
        if func is torch.Tensor.item and args[0].dtype == torch.bool:
            return False
        return func(*args, **(kwargs or {}))


def saved_bytes(network: Any, settings: Train, batch: int, length: int) -> int:
    """Return what autograd saves in a forward pass, each storage once, in bytes."""
    saved = dict[int, Any]()

    def save(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        saved[storage._cdata] = storage
        return value

    device = network.device
    is_mixed = settings.precision != "fp32" and network.dtype == torch.float32
    ids = torch.zeros((batch, length), dtype=torch.int64, device=device)
    with (
        saved_tensors_hooks(save, lambda value: value),
        torch.autocast(device.type, torch.bfloat16, is_mixed),
        NoneIsMarked(),
    ):
        network.train().base_model(**prepare_inputs(network, ids))
    return sum(storage.nbytes() for storage in saved.values())
