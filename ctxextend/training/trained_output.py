"""The folder of a trained checkpoint: weights, recipe, model card and log."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder
from ctxextend.checkpoints.copy import copy_file
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit, read_bytes
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layout, rewrite, write_rest
from ctxextend.checkpoints.safetensors_file import TensorFile, numpy_dtype, read_floats
from ctxextend.errors import RecipeError
from ctxextend.evaluation.eval_model import ModelFiles
from ctxextend.plan.output_files import CARD_FILE, RECIPE_POINTER, UNDECODED, UNTRAINED, model_card, printable
from ctxextend.provenance import read_provenance
from ctxextend.recipe import RECIPE_FILE, Recipe
from ctxextend.recipe_file import recipe_text, recipe_values, yaml_text
from ctxextend.training.trainable import Trainable
from ctxextend.training.training_result import TrainResult, counted
from ctxextend.version import __version__

# The dtypes of --dtype, as safetensors calls them, and as configs do.
DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
CONFIG_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# The config keys of the dtype; the second is that of older versions of transformers.
CONFIG_KEYS = ("dtype", "torch_dtype")

LOG_FILE = "train_log.jsonl"

# Fields of the result that the recipe's provenance has.
NOTED = ("objective", "parameters", "tokens", "devices", "loss_before", "loss_after")
LIBRARIES = ("torch", "transformers", "accelerate")
OBJECTIVES = {
    "causal": "to tell each next token",
    "masked": "to tell masked tokens",
    "distilled": "to give, on long texts, the states that the original gives on windows it can read",
}
TRAINED = {"new": "the new rows of its position table", "positions": "its position table", "all": "all of its weights"}
LOG_POINTER = f" `{LOG_FILE}` holds the losses on the way."
# Replaces what the card said about the resize.
BEFORE = "Before it was trained:"


# ---- weights


@dataclass(frozen=True)
class TrainedWeights:
    """The weights of a trained checkpoint, as they are written.

    Attributes:
        checkpoint: The checkpoint before training.
        trainable: What was trained.
        dtype: The dtype of all floats, as ``--dtype`` says it; None keeps each tensor's.
    """

    checkpoint: Checkpoint
    trainable: Trainable
    dtype: str | None

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file that changes or gets another name."""
        found = {}
        for file in self.checkpoint.weights:
            dtypes = {name: self._dtype(file, name) for name in file.entries}
            shapes = {
                name: file.entries[name].shape
                for name in file.entries
                if name in self.trainable.names or dtypes[name] != file.entries[name].dtype
            }
            name = self.checkpoint.output_name(file)
            if shapes or name != self.checkpoint.relative(file):
                found[name] = plan_layout(file, shapes, (), {name: dtypes[name] for name in shapes})
        return found

    def _dtype(self, file: TensorFile, name: str) -> str:
        before = file.entries[name].dtype
        return DTYPES[self.dtype] if self.dtype is not None and before in DTYPES.values() else before

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor as it is written; frozen rows are the source's own, unless they get another dtype."""
        file = self.checkpoint.holder(name)
        dtype = numpy_dtype(self._dtype(file, name))
        if name not in self.trainable.names:
            return read_floats(file, name).astype(dtype)
        parameter = self.trainable.names[name]
        values = self.trainable.model.get_parameter(parameter).detach().float().cpu().numpy().astype(dtype)
        if parameter == self.trainable.table and not self.dtype and not self.trainable.rows.all():
            frozen = ~self.trainable.rows
            values[frozen] = read_floats(file, name)[frozen]
        return values

    @property
    def edited(self) -> dict[str, bytes]:
        """The config and the index of shards where ``--dtype`` changes them, by path."""
        if self.dtype is None:
            return {}
        checkpoint, found = self.checkpoint, {}
        if checkpoint.has_config:
            keys = [key for key in CONFIG_KEYS if key in checkpoint.config] or [CONFIG_KEYS[0]]
            changes: dict[tuple[str, ...], Any] = {(key,): CONFIG_DTYPES[self.dtype] for key in keys}
            found[checkpoint.config_file] = edit(checkpoint.text(checkpoint.config_file), changes).encode()
        metadata = (checkpoint.index or {}).get("metadata")
        if isinstance(metadata, Mapping) and "total_size" in metadata:
            new = {name: layout.tensor_bytes for name, layout in self.layouts.items()}
            size = sum(new.get(checkpoint.output_name(file), file.tensor_bytes) for file in checkpoint.weights)
            text = edit(checkpoint.text(checkpoint.index_file), {("metadata", "total_size"): size})
            found[checkpoint.index_file] = text.encode()
        return found


class _Tensors(Mapping[str, NDArray[Any]]):
    """Tensors by name, each made when it is asked for, so that few are in memory."""

    def __init__(self, weights: TrainedWeights) -> None:
        self.weights = weights

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.weights.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights.checkpoint.names)

    def __len__(self) -> int:
        return len(self.weights.checkpoint.names)


def write_trained(
    weights: TrainedWeights, texts: Mapping[str, bytes], others: Mapping[str, Path], output: Path, *, force: bool
) -> None:
    """Write the folder of a trained checkpoint, atomically.

    Args:
        weights: Its weights.
        texts: Its recipe, card and log, by path.
        others: Other files to copy, by their path in the output.
        output: The folder.
        force: Replace an existing checkpoint.

    Raises:
        OutputError: The output exists, cannot be written, does not fit, or must not be replaced.
        CheckpointError: The checkpoint changed since it was opened.
    """
    checkpoint = weights.checkpoint
    texts = {name: text.encode() for name, text in checkpoint.made.items()} | weights.edited | dict(texts)
    copied = checkpoint.files - set(texts) - set(weights.layouts)
    sizes = {name: path.stat().st_size for name, path in others.items()}
    sizes |= {name: len(text) for name, text in texts.items()}
    sizes |= file_sizes(checkpoint, copied, weights.layouts)
    checkpoint.check_unchanged()
    with atomic_folder(output, checkpoint.guarded, sizes, force=force) as staged:
        for file in checkpoint.weights:
            name = checkpoint.output_name(file)
            if name in weights.layouts:
                rewrite(file, weights.layouts[name], _Tensors(weights), staged / name)
        for name, path in others.items():
            copy_file(path, staged / name)
        write_rest(checkpoint, staged, copied, texts)


# ---- recipe, card and log


def output_texts(
    recipe: Recipe, files: ModelFiles, result: TrainResult, hashes: tuple[str, str], begun_for: int | None
) -> dict[str, bytes]:
    """Return the recipe, the card and the log of a trained checkpoint, by name.

    Args:
        recipe: What was asked for, all that was left open filled in.
        files: The checkpoint before training.
        result: The training.
        hashes: SHA-256 of the position table before and after.
        begun_for: Steps that a resumed run was first asked for, if not as many as it took.
    """
    log = "".join(f"{json.dumps(line)}\n" for line in result.log)
    written = _recipe(recipe, files, result, hashes, begun_for)
    texts = {RECIPE_FILE: written, CARD_FILE: _card(recipe, files, result), LOG_FILE: log}
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def _recipe(
    recipe: Recipe, files: ModelFiles, result: TrainResult, hashes: tuple[str, str], begun_for: int | None
) -> str:
    """Return the recipe; that of the resize is kept as the resize wrote it."""
    trained = {name: getattr(result, name) for name in NOTED}
    if begun_for is not None:
        trained["begun_for"] = begun_for
    trained["versions"] = {name: version(name) for name in LIBRARIES}
    before = _source_recipe(files.checkpoint)
    if recipe.resize is not None:
        provenance = before.pop("provenance")
        for table in provenance["tables"]:
            table["sha256_after"] = hashes[1] if table["name"] == files.table else table["sha256_after"]
        values = recipe_values(recipe)
        steps = {name: values[name] for name in ("train", "evaluate") if name in values}
        return yaml_text(before | steps | {"provenance": provenance | {"trained": trained}})
    table = {"name": files.table, "rows_before": files.rows, "rows_after": files.rows}
    provenance = {
        "family": files.tables[0].location.family.model_type,
        "max_len": files.max_len,
        "revision": files.checkpoint.source.revision,
        "tables": [table | {"sha256_before": hashes[0], "sha256_after": hashes[1]}],
        "versions": {"ctxextend": __version__},
        **({"source_recipe": before} if before else {}),
    }
    return recipe_text(recipe, provenance | {"trained": trained})


def _source_recipe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the recipe beside a checkpoint as plain values; empty if there is none of ours."""
    try:
        found = read_provenance(checkpoint)
    except RecipeError:
        return {}
    return {} if found is None else dict(found.values)


def _card(recipe: Recipe, files: ModelFiles, result: TrainResult) -> str:
    """Return the model card, without what the old one says of files that changed."""
    checkpoint, card = files.checkpoint, None
    if CARD_FILE in checkpoint.copied:
        card = read_bytes(checkpoint.root / CARD_FILE).decode("utf-8", UNDECODED)
        card = card.replace(RECIPE_POINTER, "").replace(LOG_POINTER, "")
        card = card.replace(UNTRAINED.format(files.max_len), BEFORE)
    data = ", ".join(f"`{printable(path)}`" for path in recipe.train.data) if recipe.train else ""
    at_places = f", each at a place of its own among {result.seq_len:,} positions" * (result.window < result.seq_len)
    section = (
        f"## Trained at {result.seq_len}\n\n"
        f"Trained by ctxextend {__version__} {OBJECTIVES[result.objective]}: {TRAINED[result.trainable]} "
        f"({result.parameters:,} numbers), {counted(result.steps, 'step')} of "
        f"{counted(result.batch_size, 'sequence')} of {result.window:,} tokens{at_places}, on {data}; learning rate up "
        f"to {result.lr:.3g}. Held-out loss: {result.loss_before:.4f} before, {result.loss_after:.4f} after."
        f"{LOG_POINTER}{RECIPE_POINTER}\n"
    )
    is_hub_id, title = checkpoint.source.hub_id is not None, printable(result.output.name)
    return model_card(card, printable(result.source), is_hub_id=is_hub_id, title=title, section=section)
