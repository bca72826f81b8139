"""Choose the parameters to train, and their default learning rate."""

import math

import torch

from ctxextend.errors import CheckpointError, TrainingError
from ctxextend.lab.eval_model import CAUSAL, ENCODER, EvalModel
from ctxextend.settings import FROZEN, Train
from ctxextend.training.memory import checkpoint_activations, disable_dropout
from ctxextend.training.trainable import Names, TrainableParameters
from ctxextend.training.training_task import LoadedTask, TrainingTask

# Peak learning rate of a position table, relative to the root mean square of its values. After 100
# steps at four times the length, it has the lowest held-out loss on a byte-level GPT-2 of 0.01 to
# 0.2; 0.2 is worse there than no training. On `tiny-lookup`, 0.2 destroys what the model finds in
# its old length. On tiny-gpt2, with text unlike its own, 0.2 is better.
TABLE_RATE = 0.05
# Peak learning rate of all weights at GPT-2 small's width; narrower models tolerate more.
DECODER_RATE = 3e-4
DECODER_WIDTH = 768
# The same of an encoder, whose embeddings should change little; in contrastive training, measured
# on MiniLM.
ENCODER_RATE = 2e-5
CONTRASTIVE_RATE = 5e-5
# Adapters learn best at so many times that rate (Schulman et al. 2025, "LoRA Without Regret").
ADAPTER_FACTOR = 10
LONG_SEQUENCE = 1024  # tokens above which activations are recomputed to save memory
POOLER = "pooler."  # in the names of parameters that no objective uses


def choose_parameters(loaded: LoadedTask) -> TrainableParameters:
    """Freeze all but the parameters to train, and disable dropout, in place.

    Raises:
        TrainingError: No sequence reaches a new row, or an adapter cannot contain the table.
        CheckpointError: Weights to train are not in the files of the checkpoint.
        MethodError: The rank of adapters is above the width of the model.
    """
    task = loaded.task
    network = loaded.model.model
    # A causal model predicts nothing from its last position: if the first new row is at position
    # 128, it needs a --seq-len of 130, other models one of 129.
    unused = 1 if loaded.model.kind == CAUSAL else 0
    unusable = loaded.model.unusable_rows
    if task.rows is not None and not task.rows[unusable:][: task.span - unused].any():
        first_new = int(task.rows.argmax()) - unusable  # its position
        message = (
            f"--seq-len {task.span} does not reach any new row: the first is at position "
            f"{first_new}."
        )
        raise TrainingError(message, f"Use a --seq-len above {first_new + unused}, or remove it.")
    adapters = dict[str, str]()
    table_name = task.files.table_name
    if task.settings.lora is None and task.settings.trains_weights:
        trained = _all_weights(loaded.model, loaded.names, task.settings)
    elif task.settings.lora is None:
        trained = {table_name: loaded.names[table_name]}
    else:
        from ctxextend.training.adapters import add_adapters

        adapters = add_adapters(loaded.model, loaded.names, task.settings)
        trained = _adapters_to_train(loaded)
    if task.settings.trainable in FROZEN:
        trained = _without_tables(loaded, trained)
    table = loaded.names.get(table_name, "")
    trainable = TrainableParameters(network, trained, table, task.rows, adapters)
    disable_dropout(network)
    if task.length > LONG_SEQUENCE:
        checkpoint_activations(network)
    return trainable


def _all_weights(model: EvalModel, names: Names, settings: Train) -> Names:
    """Return all parameters by tensor, except a pooler, which no objective uses.

    Raises:
        CheckpointError: The files do not contain all parameters.
    """
    names = {tensor: parameter for tensor, parameter in names.items() if POOLER not in parameter}
    known = {id(model.model.get_parameter(parameter)) for parameter in names.values()}
    missing = []
    for name, value in model.model.named_parameters():
        if POOLER not in name and id(value) not in known:
            missing.append(name)
    if missing:
        message = (
            f"{', '.join(missing[:3])} of {model.name} cannot be trained: its weights files do "
            "not contain them."
        )
        hint = None
        if settings.trainable == "all":
            hint = "Train only the table with --trainable positions."
        raise CheckpointError(message, hint)
    return names


def _adapters_to_train(loaded: LoadedTask) -> Names:
    """Return the parameters of adapters, and the table unless it is frozen.

    Adapters are in no file, so they have no tensor: their names stand for it.

    Raises:
        TrainingError: The table is not the weight of a module, which an adapter could contain.
    """
    settings = loaded.task.settings
    table = loaded.task.files.table_name
    trained = {}
    for name, value in loaded.model.model.named_parameters():
        if value.requires_grad:  # `add_adapters` has frozen all others
            trained[name] = name
    if settings.trainable in FROZEN:
        return trained
    if settings.save_adapter and not loaded.names[table].endswith(".weight"):
        message = f"{table} is not the weight of a module, so a PEFT adapter cannot contain it."
        raise TrainingError(message, "Save merged weights: remove --save-adapter.")
    trained[table] = loaded.names[table]
    return trained


def _without_tables(loaded: LoadedTask, trained: Names) -> Names:
    """Return the parameters that are not position tables.

    Parameters are compared, not their names, since a table may have several.
    """
    network = loaded.model.model
    tables = []
    for table in loaded.task.files.tables:
        if table.name in loaded.names:
            tables.append(network.get_parameter(loaded.names[table.name]))
    others = {}
    for tensor, name in trained.items():
        parameter = network.get_parameter(name)
        if not any(parameter is other for other in tables):
            others[tensor] = name
    return others


def default_learning_rate(
    trainable: TrainableParameters, task: TrainingTask, model: EvalModel
) -> float:
    """Return the default peak learning rate.

    Adam changes a value by about the rate per step, so a table's scales with its values.

    - Without a table, or with a frozen one: the rate of weights.
    - With a table of zeros, which has no rate: the rate of weights too.
    - Only the table, or its new rows: the rate of the table.
    - All weights: the rate of weights.
    - Adapters and the table: the lower one of both.

    Raises:
        TrainingError: The table contains NaN or infinity.
    """
    settings = task.settings
    # A frozen table may have no parameter, or the width of one head.
    if settings.trainable in FROZEN or not trainable.table:
        return _rate_of_weights(settings, model, model.model.get_input_embeddings().weight)
    table = model.model.get_parameter(trainable.table)
    rate = float(TABLE_RATE * table.detach().float().square().mean().sqrt())
    if not math.isfinite(rate):
        message = "The position table contains NaN or infinity."
        raise TrainingError(message, "Find the rows with ctxextend inspect.")
    if rate == 0:  # all of its values are
        return _rate_of_weights(settings, model, table)
    if not settings.trains_weights:
        return rate
    of_weights = _rate_of_weights(settings, model, table)
    if settings.lora is None:
        return of_weights
    return min(of_weights, rate)


def _rate_of_weights(settings: Train, model: EvalModel, weight: torch.Tensor) -> float:
    """Return the rate of all weights, or of adapters; `weight` has the width of the model."""
    rate: float
    if model.kind != ENCODER:
        rate = DECODER_RATE * (DECODER_WIDTH / weight.shape[1]) ** 0.5
    elif settings.contrastive:
        rate = CONTRASTIVE_RATE
    else:
        rate = ENCODER_RATE
    return rate if settings.lora is None else ADAPTER_FACTOR * rate
