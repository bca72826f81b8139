"""Randomly damaged weights files, in bytes or structure: read, or rejected with an error."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from safetensors import safe_open

from ctxextend.checkpoint.safetensors_file import open_safetensors
from ctxextend.errors import CheckpointError, CtxextendError
from ctxextend.planned import plan_resize
from tests.helpers.hostile_weights import entry, model, open_with_safetensors, pack
from tests.helpers.mutations import mutate_bytes, mutate_json
from tests.helpers.time_limit import examples

HEADER = {
    "__metadata__": {"format": "pt"},
    "wpe.weight": entry(0, 64, "F32", [4, 4]),
    "b": entry(64, 72, "F16", [2, 2]),
    "c": entry(72, 72, "I64", [0]),
}
VALID = pack(HEADER, bytes(72))


def flip_bit(random: Random) -> bytes:
    data = bytearray(VALID)
    position = random.randrange(len(data))
    bit = random.randrange(8)
    data[position] ^= 1 << bit
    return bytes(data)


def mutate_structure(random: Random) -> bytes:
    header = mutate_json(random, json.dumps(HEADER).encode())
    size = random.choice((72, 72, 72, 71, 80))
    return pack(header, bytes(size))


DAMAGES: dict[str, Callable[[Random], bytes]] = {
    "bits": flip_bit,
    "bytes": lambda random: mutate_bytes(random, VALID),
    "structure": mutate_structure,
}
pytestmark = [pytest.mark.usefixtures("sweep"), pytest.mark.parametrize("kind", DAMAGES)]


def test_open_safetensors_accepts_no_more_than_safetensors(kind: str, tmp_path: Path) -> None:
    """Every file that ctxextend reads must be readable by safetensors, with the same content."""
    random = Random(1)
    path = tmp_path / "model.safetensors"
    for _ in range(examples(100)):
        path.write_bytes(DAMAGES[kind](random))
        try:
            file = open_safetensors(path)
        except CheckpointError:
            continue
        size = path.stat().st_size
        assert file.tensor_bytes == size - file.data_start
        with safe_open(path, "np") as other:
            assert {*file.entries} == {*other.keys()}, path.read_bytes()
            metadata = file.header.get("__metadata__") or {}
            expected = other.metadata() or {}
            assert metadata == expected, path.read_bytes()


def test_resize_of_damaged_weights_succeeds_or_fails_cleanly(kind: str, tmp_path: Path) -> None:
    """Resizing succeeds with a valid output, or fails without one."""
    random = Random(2)
    folder = model(tmp_path / "model", VALID)
    output = Path("output")
    rejected = set()
    for _ in range(examples(60)):
        data = DAMAGES[kind](random)
        (folder / "model.safetensors").write_bytes(data)
        try:
            plan = plan_resize(folder, 8)
            plan.execute(output)
        except CtxextendError:
            assert not output.exists()
            rejected.add(True)
            continue
        open_with_safetensors(output / "model.safetensors")
        shutil.rmtree(output)
        rejected.add(False)
    assert rejected == {True, False} or kind == "bytes"  # which rarely keep a valid length
