import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ctxextend.checkpoints.safetensors_file import numpy_dtype, open_safetensors, read_floats
from ctxextend.errors import CheckpointError
from tests.faults.weights import entry, pack

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def write(path: Path, header: Any, data: bytes) -> Path:
    path.write_bytes(pack(header, data))
    return path


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_read_floats_gives_what_safetensors_gives(name: str, tmp_path: Path) -> None:
    values = torch.randn(5, 3).to(TORCH_DTYPES[name])
    save_file({"other": torch.ones(7), "table": values}, tmp_path / "a.safetensors")
    table = read_floats(open_safetensors(tmp_path / "a.safetensors"), "table")
    assert (table.shape, table.dtype) == ((5, 3), numpy_dtype(name))
    theirs = load_file(tmp_path / "a.safetensors")["table"]
    assert table.tobytes() == theirs.view(torch.uint8).numpy().tobytes()


def test_open_safetensors_keeps_header_order_and_metadata(tmp_path: Path) -> None:
    header = {"b": entry(2, 3), "__metadata__": {"format": "pt"}, "a": entry(0, 2)}
    file = open_safetensors(write(tmp_path / "a", header, b"xyz"))
    assert list(file.header) == ["b", "__metadata__", "a"]
    assert list(file.entries) == ["b", "a"]
    assert (file.entries["b"].start, file.entries["b"].size) == (2, 1)


ONE = json.dumps(entry(0, 4))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[]", "not an object"),
        (b"{{", "not valid JSON"),
        (f'{{"a": {ONE}, "a": {ONE}}}'.encode(), "stands twice"),
        ({"a": entry(0, 2), "b": entry(3, 4)}, "leaves a hole"),
        ({"a": entry(0, 3), "b": entry(2, 4)}, "overlaps"),
        ({"a": entry(0, 9)}, "truncated"),
        ({"a": entry(0, 3)}, "too long: 3 bytes of tensors are described, not 4"),
        ({"a": entry(0, 4, "F32", [2])}, "does not fill"),
        ({"a": entry(0, 4, "Q4")}, "unknown dtype"),
        ({"a": {"dtype": "U8"}}, "cannot be read"),
        ({"a": entry(0, 4), "__metadata__": "x"}, "__metadata__"),
    ],
)
def test_open_safetensors_refuses_what_does_not_add_up(header: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(write(tmp_path / "a", header, b"1234"))
