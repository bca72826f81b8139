"""Choose the parameters to train, and their default learning rate."""

import math
from typing import TYPE_CHECKING

from ctxextend.errors import CheckpointError, TrainingError
from ctxextend.lab.eval_model import CAUSAL, ENCODER
from ctxextend.models.load import match_parameters
from ctxextend.settings import FROZEN
from ctxextend.training.memory import disable_dropout
from ctxextend.training.trainable import Names, TrainableParameters

if TYPE_CHECKING:
    from ctxextend.training.run import TrainingRun

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
POOLER = "pooler."  # in the names of parameters that no objective uses


def choose_parameters(run: "TrainingRun") -> TrainableParameters:
    """Freeze all but the parameters to train, and disable dropout, in place.

    Raises:
        TrainingError: No sequence reaches a new row, or an adapter cannot contain the table.
        CheckpointError: Weights to train are not in the files of the checkpoint.
        MethodError: The rank of adapters is above the width of the model.
    """
    network = run.model.model
    settings = run.settings
    files = run.files
    # A causal model predicts nothing from its last position: if the first new row is at position
    # 128, it needs a --seq-len of 130, other models one of 129.
    unused = int(run.model.kind == CAUSAL)
    unusable = run.model.unusable_rows
    if run.rows is not None and not run.rows[unusable:][: run.span - unused].any():
        first_new = int(run.rows.argmax()) - unusable  # its position
        message = (
            f"--seq-len {run.span} does not reach any new row: the first is at position "
            f"{first_new}."
        )
        raise TrainingError(message, f"Use a --seq-len above {first_new + unused}, or remove it.")
    is_frozen = settings.trainable in FROZEN
    required = list[str]()
    if files.tables[0].rows and not is_frozen:
        required.append(files.table_name)
    names = match_parameters(network, files.checkpoint, required)
    table = names.get(files.table_name, "")
    adapters: Names = {}
    if settings.lora is not None:
        from ctxextend.training.adapters import add_adapters

        adapters = add_adapters(run.model, names, settings)
        # Adapters are in no file, so they have no tensor: their names stand for it.
        trained = {name: name for name, value in network.named_parameters() if value.requires_grad}
    elif settings.trains_weights:
        trained = _all_weights(run, names)
    else:
        trained = {}
    if is_frozen:
        trained = _without_tables(run, names, trained)
    elif settings.trainable != "all":
        trained[files.table_name] = table
    trainable = TrainableParameters(
        network,
        trained,
        files.checkpoint,
        table=table,
        rows=run.rows,
        adapters=adapters,
    )
    disable_dropout(network)
    return trainable


def _without_tables(run: "TrainingRun", names: Names, trained: Names) -> dict[str, str]:
    """Return the parameters that are not position tables.

    Parameters are compared, not their names, since a table may have several.
    """
    network = run.model.model
    tables = set()
    for table in run.files.tables:
        if table.name in names:
            tables.add(network.get_parameter(names[table.name]))
    others = {}
    for tensor, name in trained.items():
        if network.get_parameter(name) not in tables:
            others[tensor] = name
    return others


def _all_weights(run: "TrainingRun", names: Names) -> dict[str, str]:
    """Return all parameters by tensor, except a pooler, which no objective uses.

    Raises:
        CheckpointError: The files do not contain all parameters.
    """
    network = run.model.model
    names = {tensor: parameter for tensor, parameter in names.items() if POOLER not in parameter}
    known = {network.get_parameter(parameter) for parameter in names.values()}
    missing = []
    for name, value in network.named_parameters():
        if POOLER not in name and value not in known:
            missing.append(name)
    if missing:
        message = (
            f"{', '.join(missing[:3])} of {run.model.name} cannot be trained: its weights files do "
            "not contain them."
        )
        hint = None
        if run.settings.trainable == "all":
            hint = "Train only the table with --trainable positions."
        raise CheckpointError(message, hint)
    return names


def default_learning_rate(run: "TrainingRun") -> float:
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
    settings = run.settings
    network = run.model.model
    has_table = settings.trainable not in FROZEN and run.trainable.table != ""
    weight = network.get_input_embeddings().weight  # a frozen table may have the width of one head
    of_table = 0.0
    if has_table:
        weight = network.get_parameter(run.trainable.table)
        of_table = float(TABLE_RATE * weight.detach().float().square().mean().sqrt())
        if not math.isfinite(of_table):
            message = "The position table contains NaN or infinity."
            raise TrainingError(message, "Find the rows with ctxextend inspect.")
    if of_table and not settings.trains_weights:
        return of_table
    rate: float = ENCODER_RATE
    if run.model.kind != ENCODER:
        rate = DECODER_RATE * (DECODER_WIDTH / weight.shape[1]) ** 0.5
    elif settings.contrastive:
        rate = CONTRASTIVE_RATE
    if settings.lora is None:
        return rate
    return min(ADAPTER_FACTOR * rate, of_table or math.inf)
