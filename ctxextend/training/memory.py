"""Memory and devices of training: micro-batch sizes, chunked loss, recomputed activations."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ctxextend.errors import TrainingError, install_command
from ctxextend.evaluation.eval_model import ENCODER, MASKED, EvalModel, prepare_inputs
from ctxextend.models.devices import open_device
from ctxextend.recipe import Train
from ctxextend.training.train_data import IGNORE_INDEX, PREDICTED
from ctxextend.training.training_run import DeviceMemory

try:
    from accelerate import PartialState
except ImportError as error:
    message = "Training requires accelerate, which is not installed."
    raise TrainingError(message, install_command("accelerate")) from error

LAUNCHED = {
    "ACCELERATE_USE_FSDP": "accelerate's FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
}  # by their variables
CPU_TOKENS, ACCELERATOR_TOKENS = (
    4096,
    16_384,
)  # maximum tokens per micro-batch: larger ones are not faster
CHUNK_LOGITS = (
    2**24
)  # maximum logits per chunk of the loss: 64 MiB of float32, 333 tokens with GPT-2's vocabulary
PROCESS = 650_000_000  # bytes of a process on a CPU without tensors
MULTI_OP_ACTIVATIONS = (  # activation functions of transformers that consist of several operations
    *("NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "AccurateGELUActivation"),
    *("ClippedGELUActivation", "ReLUSquaredActivation", "LaplaceActivation"),
)


def open_devices(device: str | None = None, *, fsdp: bool = False) -> PartialState:
    """Return accelerate's state of this process, one of several under torchrun or `accelerate
    launch`.
    """
    for name, sharding in LAUNCHED.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            hint = (
                "Launch with torchrun, or with accelerate's MULTI_GPU or MULTI_CPU; shard the "
                "model with --fsdp."
            )
            raise TrainingError(f"{sharding} is not supported.", hint)
    requested = open_device(device)
    if requested.index:  # transformers' Trainer uses the first
        hint = f"Set CUDA_VISIBLE_DEVICES={requested.index} and use --device {requested.type}."
        raise TrainingError(
            f"--device {device} is not supported: training uses the first visible device.", hint
        )
    state = PartialState(cpu=requested.type == "cpu")
    if fsdp and state.num_processes == 1:
        hint = (
            "Start several: torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp, or remove "
            "--fsdp."
        )
        raise TrainingError("--fsdp shards a model across processes, but there is only one.", hint)
    return state


def shard(objective: Any, tables: Iterable[str], devices: PartialState) -> None:
    """Shard the parameters of an objective's model, in place: block by block, then all others
    except `tables`.

    Source: Zhao et al. 2023, arXiv:2304.11277, in the second version of torch,
    `torch.distributed.fsdp.fully_shard`.
    """
    mesh = init_device_mesh(devices.device.type, (devices.num_processes,))
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
    }
    options["ignored_params"] = {objective.model.get_parameter(name) for name in tables}
    for module in [*objective.modules()]:
        if isinstance(module, GradientCheckpointingLayer):
            fully_shard(module, **options)
    fully_shard(objective, **options)
    objective.to(devices.device)  # the tables; all others are there


def micro_batch_sizes(devices: PartialState, settings: Train, length: int) -> list[int]:
    """Return the micro-batch sizes to try, largest first, in sequences of `length` tokens per
    device.
    """
    count, size = devices.num_processes, settings.per_device_batch_size
    if settings.batch_size % (count * (size or 1)):
        micro_batches = f" in micro-batches of {size}" if size else ""
        message = (
            f"--batch-size {settings.batch_size} cannot be split across {count} "
            f"devices{micro_batches}."
        )
        remove = ", or remove --per-device-batch-size" if size else ""
        raise TrainingError(message, f"Use a multiple of {count * (size or 1)}{remove}.")
    if size:
        return [size]
    largest = settings.batch_size // count
    maximum = CPU_TOKENS if devices.device.type == "cpu" else ACCELERATOR_TOKENS
    return [
        size
        for size in range(largest, 0, -1)
        if largest % size == 0 and (size == 1 or size * length <= maximum)
    ]


def estimate_memory(
    model: EvalModel, tables: list[torch.Tensor], settings: Train, length: int, teacher: int
) -> Iterator[DeviceMemory]:
    """Yield the peak memory of each device by number of devices; no values are read, and `teacher`
    is in bytes.

    A trained parameter also takes its gradient and, in float32, AdamW's two moments, the best value
    (on a CPU, or sharded) and, in half precision, a copy and its gradient. Sharding divides all
    this, but not trained `tables`, and gathers what is in no block, and a block at a time.
    Activations are what autograd saves; with sharding, the inputs of blocks, and what one block
    saves.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 3; sharding is its stage 3.
    """
    network = model.model
    config = model.model.config.get_text_config()
    saved = list[dict[int, Any]]()
    device = network.device
    is_half = network.dtype != torch.float32
    values = [*network.parameters()]
    on_cpu = device.type == "cpu"
    is_mixed = settings.precision != "fp32" and not is_half

    def save(value: torch.Tensor) -> torch.Tensor:
        saved[-1][value.untyped_storage()._cdata] = value.untyped_storage()
        return value

    def size(values: Iterable[torch.Tensor], state: int | None = None) -> int:
        extra = [
            value.nbytes + state * value.numel() if state and value.requires_grad else 0
            for value in values
        ]
        return sum(value.nbytes for value in values) + sum(extra)

    for batch in (1, 2):  # weights are saved too, but do not grow with the batch
        saved.append({})
        ids = torch.zeros((batch, length), dtype=torch.int64, device=device)
        with (
            saved_tensors_hooks(save, lambda value: value),
            torch.autocast(device.type, torch.bfloat16, is_mixed),
        ):
            network.train().base_model(**prepare_inputs(network, ids))
    less, more = (sum(storage.nbytes() for storage in storages.values()) for storages in saved)
    blocks = [
        [*block.parameters()]
        for block in network.modules()
        if isinstance(block, GradientCheckpointingLayer)
    ]
    activations, inputs = (
        more - less,
        len(blocks) * length * config.hidden_size * network.dtype.itemsize,
    )
    whole, inside = ({id(value) for value in part} for part in (tables, chain(*blocks)))
    sharded = [value for value in values if id(value) not in whole]
    # Weights are gathered, and gradients reduced, through buffers; malloc hardly reuses the memory
    # of blocks.
    outer, *inner = map(size, ([value for value in sharded if id(value) not in inside], *blocks))
    gathered = 3 * outer + (2 * sum(inner) if on_cpu else 3 * max(inner, default=0))
    labels = length * {MASKED: PREDICTED, ENCODER: 0.0}.get(model.kind, 1.0)
    fixed, state, best = teacher + PROCESS * on_cpu, 8 + 8 * is_half, 4 * (settings.save == "best")
    for count in (1, 2, 4, 8):
        with suppress(TrainingError):
            devices: Any = SimpleNamespace(num_processes=count, device=device)
            batch = micro_batch_sizes(devices, settings, length)[0]
            loss = 8 * min(
                CHUNK_LOGITS, batch * labels * config.vocab_size
            )  # of two chunks of logits
            copied = sum(value.nbytes for value in values if value.requires_grad) * (
                count > 1
            )  # by DDP
            each = size(values, state + best * on_cpu) + copied + batch * activations + fixed + loss
            fsdp = (
                size(tables, state + best)
                + size(sharded, state + best) / count
                + gathered
                + fixed
                + loss
            )
            fsdp += batch * (inputs + activations / max(len(blocks), 1))
            yield DeviceMemory(count, batch, round(each), round(fsdp) if count > 1 else None)


def chunked_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of an LM head in nats, computing the logits in chunks.

    `states`, the inputs of the head, have shape (..., hidden_size), `labels` shape (...). In half
    precision torch's fused loss would round, so each chunk's loss is computed in float32, and its
    logits again in the backward pass.
    """
    is_label = labels != IGNORE_INDEX
    states, labels = states[is_label], labels[is_label]
    chunk = max(CHUNK_LOGITS // len(head.weight), 1)
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    is_float32 = {states.dtype, head.weight.dtype, dtype} == {torch.float32}
    if len(labels) and is_float32 and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return functional.linear_cross_entropy(
            states, head.weight, labels, linear_bias=head.bias, options=options
        )
    total = states.new_zeros((), dtype=torch.promote_types(states.dtype, torch.float32))
    for chunk_states, chunk_labels in zip(
        torch.split(states, chunk), torch.split(labels, chunk), strict=True
    ):
        total = total + checkpoint(
            _summed_loss, head, chunk_states, chunk_labels, use_reentrant=False
        )
    return total / max(len(labels), 1)


def _summed_loss(head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = head(states)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact, labels, reduction="sum")


def disable_dropout(model: torch.nn.Module) -> None:
    """Set all dropout rates of a model to 0; `model.eval()` would also disable gradient
    checkpointing.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):  # rates of functional dropout and layer drop
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def checkpoint_layers(model: Any) -> bool:
    """Enable gradient checkpointing; return False if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        return False
    prefix = (
        "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    )  # newer name
    getattr(model, f"{prefix}_checkpointing_enable")({"use_reentrant": False})
    return True


def checkpoint_activations(model: torch.nn.Module) -> None:
    """Recompute multi-op activations in the backward pass: GPT-2's GELU would store four tensors of
    input size.
    """
    for module in model.modules():
        if type(module).__name__ in MULTI_OP_ACTIVATIONS:
            module.forward = partial(checkpoint, type(module).forward, module, use_reentrant=False)
