"""Files changed at random, and read as `resize`, `inspect` and `run` read them: success or a known error, nothing else.

With atheris, where it is installed (pip install atheris; ctxextend does not need it), half of the time goes to bytes
that it chooses by the code that they reach, once it has taken a minute for each file to prepare; else all of it goes to
changes drawn from the seed: of bytes, and of the structure of JSON. Prints what became of the cases and the slowest;
ends with 1 where anything else was raised.

    python -m benchmarks.fuzz [--seconds 180] [--seed 0] [--target NAME]
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from ctxextend import inspect, plan_resize
from ctxextend.checkpoints.tensorfile import open_tensor_file
from ctxextend.errors import CtxextendError
from ctxextend.writtenrecipe import read_recipe
from ctxextend.writtenrun import read_run_file
from tests.faults.mutations import mutate_bytes, mutate_json, mutate_text

BUNDLED = Path(__file__).resolve().parents[1] / "ctxextend" / "bundled" / "tiny_gpt2"
INDEX = "model.safetensors.index.json"
TO = 256
# Longer than any case may take, in seconds.
SLOWEST = 2.0

RECIPE_TEXT = """\
source: tiny-gpt2
resize: {to: 256, method: bands, keep_first: 1, sigma: 2.5, repeat: [1, 64], gain: 1.2, mend_limits: true}
train: {data: [book.txt, more/], steps: 10, lr: 1.0e-3, eval_data: other.txt, trainable: new}
evaluate: {data: book.txt, length: [64, 128], measure: [position], tokens: 1000}
provenance: {family: gpt2, method: bands, tables: [{name: transformer.wpe.weight, rows_before: 128, rows_after: 256}]}
"""


@dataclass(frozen=True)
class Target:
    """A file, and what reads it.

    Attributes:
        path: The file, in a folder of its own.
        read: Reads it, by its path.
        mutate: Changes its bytes.
        data: Its bytes as they should be.
    """

    path: Path
    read: Callable[[Path], object]
    mutate: Callable[[Random, bytes], bytes]
    data: bytes


@dataclass
class Tally:
    """What became of the cases of a target."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def mutate_header(random: Random, data: bytes) -> bytes:
    """Change a safetensors file where it is read: the length of its header, and the header."""
    end = 8 + int.from_bytes(data[:8], "little")
    change = random.choice((mutate_text, mutate_text, mutate_bytes))
    header = change(random, data[8:end])
    length = len(header) if random.random() < 0.9 else random.choice((0, 1, end, len(data), 2**31, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + header + data[end : end + random.choice((0, len(data), len(data)))]


def look(path: Path) -> None:
    """Plan a resize of the folder of a file, and inspect it, as `--json` shows both."""
    try:
        json.dumps(plan_resize(path.parent, to=TO).as_dict(), indent=2)
    finally:
        json.dumps(inspect(path.parent).as_dict(), indent=2)


def mutate_recipe(random: Random, data: bytes) -> bytes:
    """Change a recipe's bytes, or the structure of the JSON that it is too."""
    if random.random() < 0.5:
        return mutate_bytes(random, data)
    return mutate_json(random, json.dumps(yaml.safe_load(data)).encode())


def read_recipes(path: Path) -> None:
    """Read a recipe as `run` does, and as the one that lies beside a checkpoint."""
    try:
        str(read_recipe(path.read_bytes().decode("utf-8", "replace"), str(path)).recipe)
    finally:
        str(read_run_file(path).run)


def targets(root: Path) -> dict[str, Target]:
    """Copies of the bundled checkpoint, one for each file that is changed in it."""
    made = {}
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX):
        path = root / name.partition(".")[0] / name
        shutil.copytree(BUNDLED, path.parent)
        made[name] = Target(path, look, mutate_text, json.dumps(content_of(path)).encode())
    header, recipe = root / "header.safetensors", root / "ctxextend.yaml"
    save_file({name: np.ones((rows, 3), np.float32) for rows, name in enumerate(("a", "b.weight", "c"))}, header)
    made["header"] = Target(header, open_tensor_file, mutate_header, header.read_bytes())
    return made | {"recipe": Target(recipe, read_recipes, mutate_recipe, RECIPE_TEXT.encode())}


def content_of(path: Path) -> Any:
    """What a file holds: the index of shards is made, and the tokenizer's words, which nothing reads, are left out."""
    if path.name == INDEX:
        shard = path.with_name("model-00001-of-00001.safetensors")
        path.with_name("model.safetensors").rename(shard)
        weight_map = dict.fromkeys(open_tensor_file(shard).entries, shard.name)
        return {"metadata": {"total_size": 1, "total_parameters": 2}, "weight_map": weight_map}
    content = json.loads(path.read_text())
    if path.name == "tokenizer.json":
        content |= {"model": {"vocab": {"a": 0}, "merges": []}, "truncation": {"max_length": 128, "strategy": "x"}}
        content |= {"padding": {"strategy": {"Fixed": 128}, "pad_id": 0}}
    return content


def attempt(target: Target, data: bytes, tally: Tally) -> None:
    """Let a target read some bytes, and note what becomes of it."""
    target.path.write_bytes(data)
    began = time.perf_counter()
    try:
        target.read(target.path)
        outcome = "success"
    except CtxextendError as error:
        outcome = type(error).__name__
    except Exception as error:  # what this is run to find
        outcome = f"FAULT {type(error).__name__}"
        tally.faults.append(f"{traceback.format_exc(limit=-3)}\nread from {data[:300]!r}")
    took = time.perf_counter() - began
    if took > SLOWEST:
        tally.faults.append(f"it took {took:.1f} s to read {data[:300]!r} and so on, {len(data):,} bytes")
    tally.outcomes[outcome] += 1
    tally.seconds, tally.slowest = tally.seconds + took, max(tally.slowest, took)


def run_random(target: Target, seconds: float, random: Random) -> Tally:
    """Change a file at random for some seconds."""
    tally, end = Tally(), time.monotonic() + seconds
    while time.monotonic() < end:
        attempt(target, target.mutate(random, target.data), tally)
    return tally


def run_guided(name: str, seconds: float, seed: int) -> Tally:
    """Let atheris, in a process of its own, choose bytes for some seconds."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.fuzz",
        "--guided",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return Tally(faults=[f"atheris ended with {done.returncode}: {done.stderr[-2000:]}"])
    told = json.loads(lines[-1])
    return Tally(Counter(told["outcomes"]), told["seconds"], told["slowest"], told["faults"])


def guide(target: Target, seconds: float, seed: int) -> None:
    """Run atheris in this process, which it ends, and print what became of the cases as JSON."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    tally = Tally()

    def case(data: bytes) -> None:
        attempt(target, data, tally)
        if tally.seconds > seconds:
            print("\n" + json.dumps(vars(tally)), flush=True)
            os._exit(0)

    corpus = Path(tempfile.mkdtemp())
    (corpus / "first").write_bytes(target.data)
    atheris.instrument_all()
    flags = [f"-seed={seed + 1}", "-timeout=10", "-max_len=100000", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], case)
    atheris.Fuzz()


def show(results: Mapping[str, Tally]) -> int:
    """Print what became of every target as a table, and every fault; return how many there are."""
    print("| file | cases | seconds | slowest, s | outcomes |")
    print("|---|---:|---:|---:|---|")
    for name, tally in results.items():
        outcomes = ", ".join(f"{outcome} {count:,}" for outcome, count in tally.outcomes.most_common())
        print(f"| {name} | {tally.outcomes.total():,} | {tally.seconds:.1f} | {tally.slowest:.2f} | {outcomes} |")
    faults = [f"{name}: {fault}" for name, tally in results.items() for fault in tally.faults]
    print("\n".join(faults[:20]), file=sys.stderr)
    return len(faults)


def main() -> None:
    """Share the time among the files, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target")
    parser.add_argument("--guided", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = targets(Path(folder))
        if asked.guided:
            guide(known[asked.guided], asked.seconds, asked.seed)
        chosen = {asked.target: known[asked.target]} if asked.target else known
        has_atheris = importlib.util.find_spec("atheris") is not None
        if not has_atheris:
            print("Without atheris (pip install atheris), changes are drawn from the seed alone.", file=sys.stderr)
        share = asked.seconds / len(chosen) / (1 + has_atheris)
        results = {name: run_random(target, share, Random(asked.seed)) for name, target in chosen.items()}
        if has_atheris:
            results |= {f"{name}, by atheris": run_guided(name, share, asked.seed) for name in chosen}
    raise SystemExit(min(show(results), 1))


if __name__ == "__main__":
    main()
