"""Results of `verify`, and damage that it must find."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ctxextend import Verification
from tests.helpers import pico

Change = Callable[[torch.Tensor], torch.Tensor]
Damage = Callable[[Path], object]  # changes a checkpoint
INDEX = "model.safetensors.index.json"


def failed_checks(verification: Verification) -> dict[str, str]:
    """Return the evidence of failed checks by name."""
    return {
        check.name: " | ".join(check.evidence) for check in verification.checks if not check.passed
    }


def passed_checks(verification: Verification) -> dict[str, str]:
    """Assert that verification passed; return the evidence of its checks by name."""
    assert verification.passed, failed_checks(verification)
    return {check.name: " | ".join(check.evidence) for check in verification.checks}


def file_of(folder: Path, name: str) -> Path:
    """Return the file that contains a tensor."""
    index = folder / INDEX
    return folder / (
        json.loads(index.read_text())["weight_map"][name] if index.exists() else "model.safetensors"
    )


def rewrite(folder: Path, name: str, change: Change) -> None:
    """Change one tensor with the safetensors library."""
    path = file_of(folder, name)
    tensors = load_file(path)
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def edit(name: str, **values: Any) -> Damage:
    """Set keys of a JSON file."""
    return lambda folder: pico.edit_json(folder / name, **values)


def modify(name: str, change: Change) -> Damage:
    """Change one tensor."""
    return lambda folder: rewrite(folder, name, change)


def flip_bit_in(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)
