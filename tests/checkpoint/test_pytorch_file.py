import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ctxextend.checkpoint.pytorch_file import (
    NAMES_OF_DTYPES,
    PytorchFile,
    find_tensors,
)
from ctxextend.errors import CheckpointError
from tests.helpers import pico
from tests.helpers.pytorch_files import (
    change_records,
    open_pytorch_file,
    save,
    write_legacy,
    write_zip,
)

ONE = torch.ones(1)


def tensor_bytes(file: PytorchFile) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of all tensors, as `pico.tensor_bytes` does."""
    found = {}
    for name, entry in file.entries.items():
        data = file.read_bytes(name)
        found[name] = (entry.dtype, entry.shape, data.tobytes())
    return found


def kilobytes_in_memory() -> int:
    """Return how much memory of this process isn't a mapped file, or 0 if nothing states it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = status.read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1])


def test_open_pytorch_file_reads_no_tensor(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(1 << 24)}
    path = save(tensors, tmp_path / "a.bin")
    before = kilobytes_in_memory()
    file = open_pytorch_file(path)
    assert kilobytes_in_memory() - before < 8_000
    last = file.read_bytes("a")[-4:]
    assert last.tobytes() == np.float32(1).tobytes()


@pytest.mark.parametrize("name", NAMES_OF_DTYPES)
def test_read_bytes_equals_safetensors(name: str, tmp_path: Path) -> None:
    if name == "bool":
        values = torch.eye(3) > 0
    else:
        dtype = getattr(torch, name)
        values = torch.arange(24, dtype=torch.uint8).view(dtype)
    save_file({"a": values}, tmp_path / "a.safetensors")
    path = save({"a": values}, tmp_path / "a.bin")
    file = open_pytorch_file(path)
    assert tensor_bytes(file) == pico.tensor_bytes(tmp_path)


def test_read_bytes_of_any_strides(tmp_path: Path) -> None:
    values = torch.randn(4, 6)
    tensors = {
        "transposed": values.T,
        "steps": values[::2, 1::3],
        "expanded": values.expand(3, 4, 6),
        "one": values[1:2, 2:3].T,
        "number": values[1, 2],
        "empty": values[:0],
    }
    file = open_pytorch_file(save(tensors, tmp_path / "a.bin"))
    for name, tensor in tensors.items():
        assert file.entries[name].shape == tensor.shape
        assert file.read_bytes(name).tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"model": {"a": ONE}, "optimizer": {"state": {}, "groups": [1]}}, ["a"]),
        ({"module.a": ONE, "b": ONE}, ["module.a", "b"]),
        (
            {"x.LayerNorm.gamma": ONE, "x.LayerNorm.beta": ONE},
            ["x.LayerNorm.weight", "x.LayerNorm.bias"],
        ),
    ],
)
def test_find_tensors_returns_transformers_names(content: Any, names: list[str]) -> None:
    tensors, _ = find_tensors(content, Path("a.bin"))
    assert list(tensors) == names


# Created in the test, because torch warns about some of them.
REJECTED: dict[str, Callable[[], Any]] = {
    "number": lambda: {"a": ONE, "b": 3},
    "nested": lambda: {"a": torch.nested.nested_tensor([ONE, torch.ones(2)])},
    "quantised": lambda: {"a": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
    "expanded": lambda: {"a": ONE.expand(1 << 40)},
}


@pytest.mark.parametrize("name", REJECTED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_open_pytorch_file_rejects_what_safetensors_cannot_store(name: str, tmp_path: Path) -> None:
    path = save(REJECTED[name](), tmp_path / "a.bin")
    with pytest.raises(CheckpointError) as caught:
        open_pytorch_file(path)
    assert str(path) in caught.value.message
    assert "is not a valid PyTorch file" not in caught.value.message


@pytest.mark.parametrize(
    "content", [b"", b"<!DOCTYPE html><html></html>", b"PK\x03\x04" + bytes(100)]
)
def test_open_pytorch_file_rejects_broken_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    problem = f"{path} is not a valid PyTorch file with only tensors"
    with pytest.raises(CheckpointError, match=problem):
        open_pytorch_file(path)


@given(
    position=st.integers(0, 2000),
    value=st.integers(0, 255),
    cut=st.booleans(),
    is_zip=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_open_pytorch_file_of_mutated_bytes_succeeds_or_raises(
    position: int, value: int, cut: bool, is_zip: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tensors = {"x": torch.ones(3, 5), "y": torch.zeros(2)}
        write = write_zip if is_zip else write_legacy
        path = save(tensors, Path(folder) / "a", write)
        data = bytearray(path.read_bytes())
        position %= len(data)
        if cut:
            del data[position:]
        else:
            data[position] = value
        path.write_bytes(data)
        try:
            file = open_pytorch_file(path)
        except CheckpointError:
            return
        for name, entry in file.entries.items():
            assert file.read_bytes(name).nbytes == entry.size


def test_read_bytes_raises_for_a_file_that_was_truncated(tmp_path: Path) -> None:
    values = torch.randn(4, 2)
    tensors = {"plain": values, "transposed": values.T}
    path = save(tensors, tmp_path / "a.bin")
    file = open_pytorch_file(path)
    os.truncate(path, 8)  # reading from the mapping would kill the process
    for name in file.tensors:
        with pytest.raises(CheckpointError, match="became shorter while it was read"):
            file.read_bytes(name)


def test_read_bytes_of_another_byte_order(tmp_path: Path) -> None:
    values = torch.randn(3, dtype=torch.float32)
    path = save({"a": values}, tmp_path / "a.bin")
    swapped = values.numpy().byteswap()
    records = {"a/data/0": swapped.tobytes(), "a/byteorder": b"big"}
    change_records(path, lambda name, data: (name, records.get(name, data)))
    file = open_pytorch_file(path)
    data = file.read_bytes("a")
    assert data.tobytes() == values.numpy().tobytes()
    assert file.offset("a") is None


def test_open_pytorch_file_rejects_data_records_of_no_tensor(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3)}
    path = save(tensors, tmp_path / "a.bin")
    change_records(path, lambda name, data: (name, data))
    data = open_pytorch_file(path).read_bytes("a")
    expected = np.ones(3, np.float32)
    assert data.tobytes() == expected.tobytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/data/1", b"1234")
    with pytest.raises(CheckpointError, match="data records that belong to no tensor"):
        open_pytorch_file(path)
