"""`ctxextend inspect` and `verify` on a sharded GPT-2-XL-shaped checkpoint of 6.2 GB.

Each runs as a whole process, in turn with its peers: `inspect` beside an interpreter that imports what it needs, and
`verify` beside `cmp` on the same files. Reported are medians of wall time and of peak resident memory, and ratios.

    python -m benchmarks.inspect [--rounds 5] [--folder DIR]
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import measure, report

WIDTH, LAYERS, WORDS, POSITIONS = 1600, 48, 50257, 1024
SHARD_BYTES = 500_000_000
LAYER = {
    **{"ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,)},
    **{"attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,)},
    **{"attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,)},
    **{"mlp.c_fc.weight": (WIDTH, 4 * WIDTH), "mlp.c_fc.bias": (4 * WIDTH,)},
    **{"mlp.c_proj.weight": (4 * WIDTH, WIDTH), "mlp.c_proj.bias": (WIDTH,)},
}


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of GPT-2 XL."""
    found: dict[str, tuple[int, ...]] = {"wte.weight": (WORDS, WIDTH), "wpe.weight": (POSITIONS, WIDTH)}
    for layer in range(LAYERS):
        found |= {f"h.{layer}.{name}": shape for name, shape in LAYER.items()}
    found |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    return {f"transformer.{name}": shape for name, shape in found.items()}


def shards(sizes: dict[str, int]) -> Iterator[list[str]]:
    """The names of each shard's tensors."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > SHARD_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def write(folder: Path) -> None:
    """Write the checkpoint: real bytes, since empty ones would be read from no disk."""
    import numpy as np

    folder.mkdir()
    sizes = {name: 4 * math.prod(shape) for name, shape in shapes().items()}
    every = list(shards(sizes))
    weight_map: dict[str, str] = {}
    noise = (0.02 * np.random.default_rng(0).standard_normal(1 << 22)).astype(np.float32).tobytes()
    for number, names in enumerate(every, 1):
        file = f"model-{number:05}-of-{len(every):05}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        header, start = {}, 0
        for name in names:
            offsets = [start, start + sizes[name]]
            header[name] = {"dtype": "F32", "shape": list(shapes()[name]), "data_offsets": offsets}
            start += sizes[name]
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as output:
            output.write(len(text).to_bytes(8, "little") + text)
            for done in range(0, start, len(noise)):
                output.write(noise[: start - done])
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 25, "vocab_size": WORDS}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    ctxextend = [sys.executable, "-m", "ctxextend"]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        base, out = Path(temporary) / "xl", Path(temporary) / "xl-2048"
        # In a process of its own: what a parent has held counts as its children's peak.
        maker = f"from pathlib import Path; from benchmarks.inspect import write; write(Path({str(base)!r}))"
        subprocess.run([sys.executable, "-c", maker], check=True)
        subprocess.run([*ctxextend, "resize", str(base), "--to", "2048", "-o", str(out), "--quiet"], check=True)
        # The shard with the table differs, so that cmp stops in it, and says so by its exit code.
        compare = f"cd '{base}' && for file in *.safetensors; do cmp \"$file\" '{out}'/\"$file\"; done; true"
        imports = "import typer, numpy, ml_dtypes, yaml"
        tables: list[dict[str, list[str]]] = [
            {
                "inspect": [*ctxextend, "inspect", str(base)],
                "inspect --json": [*ctxextend, "inspect", str(base), "--json"],
                f"python -c '{imports}'": [sys.executable, "-c", imports],
            },
            {"verify": [*ctxextend, "verify", str(base), str(out)], "cmp": ["sh", "-c", compare]},
        ]
        for commands in tables:
            results: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
            for _ in range(arguments.rounds):
                for name, command in commands.items():
                    results[name].append(measure(command))
            report(results)
            print()


if __name__ == "__main__":
    main()
