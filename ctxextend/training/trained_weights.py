"""The tensors of a trained checkpoint, and the layouts of its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import DTYPE_KEYS, Checkpoint
from ctxextend.checkpoint.json_edit import edit
from ctxextend.checkpoint.safetensors_file import numpy_dtype
from ctxextend.checkpoint.writing import Layout, plan_layouts
from ctxextend.lab import eval_model
from ctxextend.output import index_text
from ctxextend.training.trainable import TrainableParameters

# Names in safetensors files of the dtypes of --dtype.
FILE_DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


@dataclass(frozen=True)
class TrainedWeights:
    """The tensors of a trained checkpoint, each computed on access, so that few are in memory."""

    checkpoint: Checkpoint  # before training
    trainable: TrainableParameters
    dtype: str | None  # of all floats, as in ``--dtype``; None keeps each tensor's

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor; frozen rows are copied from the source unless the dtype changes."""
        dtype = numpy_dtype(self._dtype(name))
        if name in self.trainable.adapters:
            return self._merged(name).astype(dtype)
        if name not in self.trainable.names:
            return self._read(name).astype(dtype)
        parameter = self.trainable.names[name]
        values = self.trainable.value(parameter).numpy().astype(dtype)
        rows = self.trainable.rows
        if rows is not None and parameter == self.trainable.table and not self.dtype:
            values[~rows] = self._read(name)[~rows]
        return values

    def _merged(self, name: str) -> NDArray[np.float64]:
        path = self.trainable.adapters[name]
        layer: Any = self.trainable.model.get_submodule(path)
        a = self.trainable.value(f"{path}.lora_A.default.weight").double()
        b = self.trainable.value(f"{path}.lora_B.default.weight").double()
        product = b @ a
        if layer.fan_in_fan_out:  # the weight has shape (in, out)
            product = a.T @ b.T
        delta = layer.scaling["default"] * product
        return np.asarray(self._read(name).astype(np.float64) + delta.numpy())

    def _read(self, name: str) -> NDArray[Any]:
        return self.checkpoint.weights.read(name)

    def _dtype(self, name: str) -> str:
        before = self.checkpoint.weights.entries[name].dtype
        if self.dtype is None or before not in FILE_DTYPES.values():
            return before
        return FILE_DTYPES[self.dtype]

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file that changes or is renamed."""
        before = self.checkpoint.weights.entries
        dtypes = {name: self._dtype(name) for name in before}
        trained = self.trainable.names.keys() | self.trainable.adapters.keys()
        shapes = dict[str, tuple[int, ...]]()
        for name, entry in before.items():
            if name in trained or dtypes[name] != entry.dtype:
                shapes[name] = entry.shape
        return plan_layouts(self.checkpoint, shapes, dtypes=dtypes)

    @property
    def texts(self) -> dict[str, bytes]:
        """The config and the index of shards if the dtype changes, and generated files, by name."""
        checkpoint = self.checkpoint
        texts = dict(checkpoint.generated)
        if self.dtype is not None and checkpoint.has_config:
            config = checkpoint.text(checkpoint.config_file)
            stated = [key for key in DTYPE_KEYS if key in checkpoint.config]
            value = eval_model.DTYPE_OF_PRECISION[self.dtype]
            # All keys of the dtype, or the newer one if there is none.
            changes: dict[tuple[str, ...], str] = {
                (key,): value for key in stated or DTYPE_KEYS[:1]
            }
            texts[checkpoint.config_file] = edit(config, changes)
        if self.dtype is not None and checkpoint.weights.index is not None:
            texts[checkpoint.weights.index_file] = index_text(checkpoint, self.layouts)
        return {name: text.encode() for name, text in texts.items()}
