"""A trained checkpoint written as a folder: complete, and with nothing changed but what was trained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder
from ctxextend.checkpoints.copy import copy_file
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layout, rewrite, write_rest
from ctxextend.checkpoints.safetensors_file import TensorFile, numpy_dtype, read_floats
from ctxextend.errors import TrainingError
from ctxextend.training.parameters import Trained

__all__ = ["TrainedOutput"]

# What the flags of a training and safetensors call the same.
DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
# What configs call them, and the keys that say it: the second is that of older versions of transformers.
CONFIG_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CONFIG_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True)
class TrainedOutput:
    """What a trained checkpoint's folder holds.

    Attributes:
        checkpoint: What was trained, its headers read.
        trained: What of it was trained.
        table: The tensor of the position table.
        dtype: The dtype that all floats are to have, as a training's flag says it; None is what each has.
        texts: Files that are new or changed, by their path below the output.
        others: Folders that are copied beside them, each with its place below the output.
    """

    checkpoint: Checkpoint
    trained: Trained
    table: str
    dtype: str | None
    texts: Mapping[str, bytes]
    others: Mapping[str, Path]

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file that changes or gets another name."""
        found = {}
        for file in self.checkpoint.weights:
            names = [name for name in file.entries if self._is_new(file, name)]
            wanted = {name: DTYPES[self.dtype] for name in names if self.dtype and self._is_float(file, name)}
            if names or self.checkpoint.output_name(file) != self.checkpoint.relative(file):
                shapes = {name: file.entries[name].shape for name in names}
                found[self.checkpoint.output_name(file)] = plan_layout(file, shapes, (), wanted)
        return found

    def _is_new(self, file: TensorFile, name: str) -> bool:
        is_other = self.dtype is not None and self._is_float(file, name)
        return name in self.trained.names or (is_other and file.entries[name].dtype != DTYPES[self.dtype or ""])

    @staticmethod
    def _is_float(file: TensorFile, name: str) -> bool:
        return file.entries[name].dtype in DTYPES.values()

    @property
    def copied(self) -> frozenset[str]:
        """Files that are copied byte for byte."""
        return self.checkpoint.files - set(self._all_texts) - set(self.layouts)

    @property
    def beside(self) -> Mapping[str, Path]:
        """The files of `others`, each under its path below the output."""
        return {
            f"{name}/{path.relative_to(folder).as_posix()}": path
            for name, folder in self.others.items()
            for path in folder.rglob("*")
            if path.is_file()
        }

    @property
    def file_sizes(self) -> Mapping[str, int]:
        """The size in bytes of each file of the output."""
        beside = {name: path.stat().st_size for name, path in self.beside.items()}
        texts = {name: len(text) for name, text in self._all_texts.items()}
        return file_sizes(self.checkpoint, self.copied, self.layouts) | beside | texts

    @cached_property
    def _all_texts(self) -> Mapping[str, bytes]:
        made = {name: text.encode() for name, text in self.checkpoint.made.items()}
        texts = made | dict(self.texts)
        if self.dtype is not None and self.checkpoint.has_config:
            config = self.checkpoint.config
            keys = [key for key in CONFIG_KEYS if key in config] or [CONFIG_KEYS[0]]
            text = self.checkpoint.text(self.checkpoint.config_file)
            texts[self.checkpoint.config_file] = edit(
                text, {(key,): CONFIG_DTYPES[self.dtype] for key in keys}
            ).encode()
        return texts | self._index

    @property
    def _index(self) -> dict[str, bytes]:
        """The index of shards, by its path, where it says how many bytes there are and that is another count now."""
        checkpoint = self.checkpoint
        metadata = (checkpoint.index or {}).get("metadata")
        if self.dtype is None or not isinstance(metadata, Mapping) or "total_size" not in metadata:
            return {}
        new = {name: layout.tensor_bytes for name, layout in self.layouts.items()}
        size = sum(new.get(checkpoint.output_name(file), file.tensor_bytes) for file in checkpoint.weights)
        text = edit(checkpoint.text(checkpoint.index_file), {("metadata", "total_size"): size})
        return {checkpoint.index_file: text.encode()}

    def write(self, output: Path, *, force: bool) -> None:
        """Write the folder: complete under its name in one rename, or not at all.

        Raises:
            OutputError: As `atomic_folder`.
            CheckpointError: What was trained changed on the disk since it was opened.
            TrainingError: A row that was not to be trained would not be what it was.
        """
        self.checkpoint.check_unchanged()
        with atomic_folder(output, self.checkpoint.guarded, self.file_sizes, force=force) as staged:
            for file in self.checkpoint.weights:
                name = self.checkpoint.output_name(file)
                if name in self.layouts:
                    rewrite(file, self.layouts[name], Tensors(self, file), staged / name)
            for name, path in self.beside.items():
                copy_file(path, staged / name)
            write_rest(self.checkpoint, staged, self.copied, lambda: self._all_texts)
            self._check_rows(staged)

    def tensor(self, file: TensorFile, name: str) -> NDArray[Any]:
        """Return a tensor as it is to be written."""
        wanted = numpy_dtype(DTYPES[self.dtype] if self.dtype else file.entries[name].dtype)
        if name not in self.trained.names:
            return read_floats(file, name).astype(wanted)
        value = self.trained.model.get_parameter(self.trained.names[name]).detach().float().cpu().numpy()
        cast = value.astype(wanted)
        if self.trained.names[name] == self.trained.table and not self.dtype:
            still = ~self.trained.rows
            cast[still] = read_floats(file, name)[still]
        return cast

    def _check_rows(self, staged: Path) -> None:
        """See on the disk that what was not to be trained is what it was."""
        if self.dtype is not None or self.trained.rows.all():
            return
        from ctxextend.checkpoints.safetensors_file import open_safetensors

        file = self.checkpoint.holder(self.table)
        before = read_floats(file, self.table)
        after = read_floats(open_safetensors(staged / self.checkpoint.output_name(file)), self.table)
        still = ~self.trained.rows
        if before[still].tobytes() != after[still].tobytes():
            raise TrainingError("Rows changed that were not to be trained; nothing was written.", "Please report this.")


@dataclass(frozen=True)
class Tensors(Mapping[str, NDArray[Any]]):
    """The new tensors of a file, each made when it is asked for, so that few of them are in memory."""

    output: TrainedOutput
    file: TensorFile

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.output.tensor(self.file, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.entries)

    def __len__(self) -> int:
        return len(self.file.entries)
