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
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit, read_bytes
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layout, rewrite, write_rest
from ctxextend.checkpoints.safetensors_file import TensorFile, numpy_dtype, read_floats
from ctxextend.errors import RecipeError
from ctxextend.evaluation.eval_model import DTYPES as CONFIG_DTYPES
from ctxextend.evaluation.eval_model import ModelFiles
from ctxextend.plan.output_files import (
    CARD_FILE,
    RECIPE_POINTER,
    UNDECODED,
    UNTRAINED,
    model_card,
    printable,
)
from ctxextend.provenance import read_provenance
from ctxextend.recipe import RECIPE_FILE, Recipe
from ctxextend.recipe_file import recipe_text, recipe_values, yaml_text
from ctxextend.training.setup import Trainable
from ctxextend.training.training_result import TrainResult, counted
from ctxextend.version import __version__

# The dtypes of --dtype, as safetensors calls them.
DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
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


@dataclass(frozen=True, eq=False)
class TrainedWeights(Mapping[str, NDArray[Any]]):
    """The tensors of a trained checkpoint by name, each made when it is asked for, so that few are in memory.

    Frozen rows are the source's own, unless they get another dtype.
    """

    checkpoint: Checkpoint  # as it was before training
    trainable: Trainable
    dtype: str | None  # of all floats, as ``--dtype`` says it; None keeps each tensor's

    def __getitem__(self, name: str) -> NDArray[Any]:
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

    def __iter__(self) -> Iterator[str]:
        return iter(self.checkpoint.names)

    def __len__(self) -> int:
        return len(self.checkpoint.names)

    def _dtype(self, file: TensorFile, name: str) -> str:
        before = file.entries[name].dtype
        return DTYPES[self.dtype] if self.dtype is not None and before in DTYPES.values() else before

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file that changes or gets another name."""
        found = {}
        for file in self.checkpoint.weights:
            dtypes = {name: self._dtype(file, name) for name in file.entries}
            shapes = {
                name: entry.shape
                for name, entry in file.entries.items()
                if name in self.trainable.names or dtypes[name] != entry.dtype
            }
            name = self.checkpoint.output_name(file)
            if shapes or name != self.checkpoint.relative(file):
                found[name] = plan_layout(file, shapes, (), {name: dtypes[name] for name in shapes})
        return found

    def edited(self) -> dict[str, str]:
        """Return the config and the index of shards where ``--dtype`` changes them, by path."""
        checkpoint, found = self.checkpoint, {}
        if self.dtype is not None and checkpoint.has_config:
            keys = [key for key in CONFIG_KEYS if key in checkpoint.config] or CONFIG_KEYS[:1]
            changes: dict[tuple[str, ...], Any] = {(key,): CONFIG_DTYPES[self.dtype] for key in keys}
            found[checkpoint.config_file] = edit(checkpoint.text(checkpoint.config_file), changes)
        metadata = (checkpoint.index or {}).get("metadata")
        if self.dtype is not None and isinstance(metadata, Mapping) and "total_size" in metadata:
            sizes = {checkpoint.output_name(file): file.tensor_bytes for file in checkpoint.weights}
            sizes |= {name: layout.tensor_bytes for name, layout in self.layouts.items()}
            new: dict[tuple[str, ...], Any] = {("metadata", "total_size"): sum(sizes.values())}
            found[checkpoint.index_file] = edit(checkpoint.text(checkpoint.index_file), new)
        return found

    def write(self, others: Mapping[str, bytes], output: Path, *, force: bool) -> None:
        """Write the folder of the checkpoint, atomically; `others` are its recipe, card and log by path.

        Raises:
            OutputError: The output exists, cannot be written, does not fit, or must not be replaced.
            CheckpointError: The checkpoint changed since it was opened.
        """
        checkpoint = self.checkpoint
        edited = {**checkpoint.made, **self.edited()}
        data = {name: text.encode() for name, text in edited.items()} | dict(others)
        copied = checkpoint.files - set(data) - set(self.layouts)
        sizes = {name: len(text) for name, text in data.items()} | file_sizes(checkpoint, copied, self.layouts)
        checkpoint.check_unchanged()
        with atomic_folder(output, checkpoint.guarded, sizes, force=force) as staged:
            for file in checkpoint.weights:
                name = checkpoint.output_name(file)
                if name in self.layouts:
                    rewrite(file, self.layouts[name], self, staged / name)
            write_rest(checkpoint, staged, copied, data)


# ---- recipe, card and log


def output_texts(
    recipe: Recipe, files: ModelFiles, result: TrainResult, hashes: tuple[str, str], begun_for: int | None
) -> dict[str, bytes]:
    """Return the recipe, the card and the log of a trained checkpoint, by name.

    `recipe` has all that was left open filled in; `files` are those before training; `hashes` are the SHA-256 of the
    position table before and after; `begun_for` are the steps that a resumed run was first asked for, if others.
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
    try:
        found = read_provenance(files.checkpoint)
    except RecipeError:  # a file of that name that is not ours
        found = None
    before = {} if found is None else dict(found.values)
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
