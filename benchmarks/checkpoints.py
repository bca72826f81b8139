"""GPT-2-shaped checkpoints of a given size, written without torch or numpy."""

import array
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LARGE", "SMALL", "TABLE", "Shape", "write"]

TABLE = "transformer.wpe.weight"
SHARD_BYTES = 500_000_000
FLOAT32 = 4
# Numbers that are drawn once and repeated: enough that no disk or cache finds equal blocks.
DRAWN = 1 << 18


@dataclass(frozen=True)
class Shape:
    """The shape of a GPT-2: its width, its layers, its vocabulary size and its positions."""

    width: int
    layers: int
    words: int = 50257
    positions: int = 1024

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, by name."""
        width = self.width
        found: dict[str, tuple[int, ...]] = {"wte.weight": (self.words, width), "wpe.weight": (self.positions, width)}
        for layer in range(self.layers):
            for norm in ("ln_1", "ln_2"):
                found |= {f"h.{layer}.{norm}.weight": (width,), f"h.{layer}.{norm}.bias": (width,)}
            for name, (rows, columns) in {
                "attn.c_attn": (width, 3 * width),
                "attn.c_proj": (width, width),
                "mlp.c_fc": (width, 4 * width),
                "mlp.c_proj": (4 * width, width),
            }.items():
                found |= {f"h.{layer}.{name}.weight": (rows, columns), f"h.{layer}.{name}.bias": (columns,)}
        found |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
        return {f"transformer.{name}": shape for name, shape in found.items()}

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, float32."""
        return sum(FLOAT32 * math.prod(shape) for shape in self.tensors().values())


# GPT-2 small, 498 MB, and GPT-2 XL, 6.2 GB in shards.
SMALL, LARGE = Shape(768, 12), Shape(1600, 48)


def write(folder: Path, shape: Shape) -> None:
    """Write a checkpoint, in shards where it is large; every byte is real, since a hole would be read from no disk."""
    folder.mkdir()
    drawn = random.Random(0)
    noise = array.array("f", (drawn.gauss(0, 0.02) for _ in range(DRAWN))).tobytes()
    tensors = shape.tensors()
    shards = list(_shards(tensors))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        header, end = {}, 0
        for tensor in shard:
            start, end = end, end + FLOAT32 * math.prod(tensors[tensor])
            header[tensor] = {"dtype": "F32", "shape": list(tensors[tensor]), "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as output:
            output.write(len(text).to_bytes(8, "little") + text)
            for done in range(0, end, len(noise)):
                output.write(noise[: end - done])
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": shape.bytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"model_type": "gpt2", "n_positions": shape.positions, "n_embd": shape.width, "n_layer": shape.layers}
    config |= {"n_head": shape.width // 64, "vocab_size": shape.words}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _shards(tensors: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Yield the names of each shard's tensors."""
    names: list[str] = []
    total = 0
    for name, shape in tensors.items():
        size = FLOAT32 * math.prod(shape)
        if names and total + size > SHARD_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names
