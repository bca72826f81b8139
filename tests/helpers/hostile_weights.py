"""Hostile weights files, and how safetensors reads them."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open


def pack(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file: header length, header, tensor bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(start: int, end: int, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [end - start] if shape is None else shape,
        "data_offsets": [start, end],
    }


def open_with_safetensors(path: Path) -> None:
    """Open a file with the safetensors library."""
    with safe_open(path, "np") as file:
        list(file.keys())


def model(folder: Path, content: bytes, model_type: str = "gpt2") -> Path:
    """Write a checkpoint with this weights file and 4 positions."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "n_positions": 4}))
    (folder / "model.safetensors").write_bytes(content)
    return folder
