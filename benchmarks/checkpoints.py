"""Write GPT-2-shaped checkpoints of a given size, without torch or numpy."""

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
# Random floats are repeated after this many, so that no disk or cache finds equal blocks.
NOISE_FLOATS = 1 << 18


@dataclass(frozen=True)
class Shape:
    """The shape of a GPT-2."""

    width: int
    layers: int
    vocab_size: int = 50257
    positions: int = 1024

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by name."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocab_size, width),
            "wpe.weight": (self.positions, width),
        }
        for layer in range(self.layers):
            for norm in ("ln_1", "ln_2"):
                shapes |= {f"h.{layer}.{norm}.weight": (width,), f"h.{layer}.{norm}.bias": (width,)}
            for name, (rows, columns) in {
                "attn.c_attn": (width, 3 * width),
                "attn.c_proj": (width, width),
                "mlp.c_fc": (width, 4 * width),
                "mlp.c_proj": (4 * width, width),
            }.items():
                shapes |= {
                    f"h.{layer}.{name}.weight": (rows, columns),
                    f"h.{layer}.{name}.bias": (columns,),
                }
        shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
        return {f"transformer.{name}": shape for name, shape in shapes.items()}

    @property
    def bytes(self) -> int:
        """Total size of the float32 tensors in bytes."""
        return sum(FLOAT32 * math.prod(shape) for shape in self.tensors().values())


# GPT-2 small (498 MB) and GPT-2 XL (6.2 GB, in shards).
SMALL, LARGE = Shape(768, 12), Shape(1600, 48)


def write(folder: Path, shape: Shape) -> None:
    """Write a checkpoint, in shards if it is large, without holes: reading them would not access
    the disk.
    """
    folder.mkdir()
    generator = random.Random(0)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(NOISE_FLOATS))).tobytes()
    tensors = shape.tensors()
    shards = list(_shards(tensors))
    names = [
        f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)
    ]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        header = {}
        end = 0
        for tensor in shard:
            start = end
            end = end + FLOAT32 * math.prod(tensors[tensor])
            header[tensor] = {
                "dtype": "F32",
                "shape": list(tensors[tensor]),
                "data_offsets": [start, end],
            }
        text = json.dumps(header).encode()
        with (folder / name).open("wb") as output:
            output.write(len(text).to_bytes(8, "little") + text)
            for written in range(0, end, len(noise)):
                output.write(noise[: end - written])
    if len(shards) > 1:
        weight_map = {
            tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        index = {"metadata": {"total_size": shape.bytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "gpt2",
        "n_positions": shape.positions,
        "n_embd": shape.width,
        "n_layer": shape.layers,
    }
    config |= {"n_head": shape.width // 64, "vocab_size": shape.vocab_size}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _shards(tensors: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Yield the tensor names of each shard."""
    names: list[str] = []
    total = 0
    for name, shape in tensors.items():
        size = FLOAT32 * math.prod(shape)
        if names and total + size > SHARD_BYTES:
            yield names
            names = []
            total = 0
        names.append(name)
        total += size
    yield names
