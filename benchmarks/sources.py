"""Checkpoints of a given size that benchmarks resize, look at and prove."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TABLE", "XL", "Shape", "shape_of", "write"]

TABLE = "transformer.wpe.weight"
SHARD_BYTES = 500_000_000
# Bytes of a number, float32.
SIZE = 4
# Numbers that are drawn once, and repeated.
DRAWN = 1 << 22


@dataclass(frozen=True)
class Shape:
    """The shape of a GPT-2: its width, its layers, its words and the rows of its table."""

    width: int
    layers: int
    words: int
    positions: int = 1024

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, by name."""
        found: dict[str, tuple[int, ...]] = {"wte.weight": (self.words, self.width)}
        found["wpe.weight"] = (self.positions, self.width)
        for layer in range(self.layers):
            found |= {f"h.{layer}.{name}": shape for name, shape in _layer(self.width).items()}
        found |= {"ln_f.weight": (self.width,), "ln_f.bias": (self.width,)}
        return {f"transformer.{name}": shape for name, shape in found.items()}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each tensor, by name."""
        return {name: SIZE * math.prod(shape) for name, shape in self.tensors().items()}


# GPT-2 XL, 6.2 GB.
XL = Shape(1600, 48, 50257)


def shape_of(size: float, width: int = 768, positions: int = 1024) -> Shape:
    """Return a shape of so many bytes: as many layers as fit, the rest words."""
    layer = SIZE * sum(math.prod(shape) for shape in _layer(width).values())
    room = int(size) - SIZE * width * (positions + 2)
    layers = max(room - 1, 0) // layer
    return Shape(width, layers, max((room - layers * layer) // (SIZE * width), 1), positions)


def write(folder: Path, shape: Shape = XL) -> None:
    """Write a checkpoint in shards of real bytes: those of a hole would be read from no disk."""
    import numpy as np

    folder.mkdir()
    noise = (0.02 * np.random.default_rng(0).standard_normal(DRAWN)).astype(np.float32).tobytes()
    tensors, sizes = shape.tensors(), shape.sizes()
    every = list(_shards(sizes))
    files = {f"model-{number:05}-of-{len(every):05}.safetensors": names for number, names in enumerate(every, 1)}
    for file, names in files.items():
        _write_shard(folder / file, {name: tensors[name] for name in names}, noise)
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": {name: file for file, names in files.items() for name in names},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"n_positions": shape.positions, "n_embd": shape.width, "n_layer": shape.layers}
    config |= {"n_head": shape.width // 64, "vocab_size": shape.words}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}, indent=2))


def _layer(width: int) -> dict[str, tuple[int, ...]]:
    return {
        **{"ln_1.weight": (width,), "ln_1.bias": (width,), "ln_2.weight": (width,), "ln_2.bias": (width,)},
        **{"attn.c_attn.weight": (width, 3 * width), "attn.c_attn.bias": (3 * width,)},
        **{"attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,)},
        **{"mlp.c_fc.weight": (width, 4 * width), "mlp.c_fc.bias": (4 * width,)},
        **{"mlp.c_proj.weight": (4 * width, width), "mlp.c_proj.bias": (width,)},
    }


def _shards(sizes: dict[str, int]) -> Iterator[list[str]]:
    """Yield the names of each shard's tensors."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > SHARD_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def _write_shard(path: Path, tensors: dict[str, tuple[int, ...]], noise: bytes) -> None:
    header, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + SIZE * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for done in range(0, end, len(noise)):
            output.write(noise[: end - done])
