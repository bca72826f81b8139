"""`ctxextend resize` beside what a user would run instead, on a GPT-2-small-sized checkpoint of 498 MB.

Each route runs as a whole process, in turn with the others, and what it wrote is deleted before the next begins.
Reported are medians of wall time and of peak resident memory, and ratios to ctxextend.

    python benchmarks/resize.py [--rounds 5] [--folder DIR]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRANSFORMERS_ROUTE = """
import sys, torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(sys.argv[1])
old, rows = model.transformer.wpe.weight.data, 4096
new = torch.nn.Embedding(rows, old.shape[1])
new.weight.data[:] = torch.nn.functional.interpolate(
    old.T.unsqueeze(0), size=rows, mode="linear", align_corners=True)[0].T
model.transformer.wpe = new
model.config.n_positions = rows
model.save_pretrained(sys.argv[2])
"""

MAKE = """
import sys
from transformers import GPT2Config, GPT2LMHeadModel
GPT2LMHeadModel(GPT2Config()).save_pretrained(sys.argv[1])
"""


def routes(source: Path, output: Path) -> dict[str, list[str]]:
    """The commands to compare, the first being ours."""
    ctxextend = [sys.executable, "-m", "ctxextend", "resize", str(source), "--to", "4096", "--quiet"]
    return {
        "ctxextend, linear": [*ctxextend, "--method", "linear", "-o", str(output)],
        "ctxextend, copy": [*ctxextend, "-o", str(output)],
        "transformers": [sys.executable, "-c", TRANSFORMERS_ROUTE, str(source), str(output)],
        "cp -r": ["cp", "-r", str(source), str(output)],
        "cp -r && sync": ["sh", "-c", f"cp -r '{source}' '{output}' && sync -f '{output}'"],
    }


def measure(command: list[str]) -> tuple[float, float]:
    """Run a process to its end; return its seconds and its peak resident memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"failed: {' '.join(command)[:200]}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        source, output = Path(temporary) / "gpt2-small", Path(temporary) / "out"
        subprocess.run([sys.executable, "-c", MAKE, str(source)], check=True, capture_output=True)
        commands = routes(source, output)
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                os.sync()
                results[name].append(measure(command))
                shutil.rmtree(output)
    report(results)


def report(results: dict[str, list[tuple[float, float]]]) -> None:
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in results.items()
    }
    base_seconds, base_memory = next(iter(medians.values()))
    print("| route | seconds, median (min - max) | x | peak memory, MB | x |")
    print("|---|---:|---:|---:|---:|")
    for name, (seconds, memory) in medians.items():
        times = [run[0] for run in results[name]]
        spread = f"{seconds:.2f} ({min(times):.2f} - {max(times):.2f})"
        print(f"| {name} | {spread} | {seconds / base_seconds:.2f} | {memory:.0f} | {memory / base_memory:.1f} |")


if __name__ == "__main__":
    main()
