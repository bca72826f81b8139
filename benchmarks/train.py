"""`ctxextend train` beside transformers' plain Trainer, on a GPT-2-small shape and sequences of 4,096 tokens.

Each route runs as a whole process, in turn with the others: one sequence a step, on the same text, in the precision
that the device has. Weights are random and there is no dropout. Reported are the seconds of a step, those of the first
left out, and the peak memory of the process, or of the accelerator where there is one.

    python -m benchmarks.train [--rounds 3] [--steps 3] [--folder DIR]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.measuring import report

MAKE = """
import random, sys
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
import ctxextend
from ctxextend.checkpoints.source import bundled_source
folder, text, model = map(Path, sys.argv[1:])
GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).save_pretrained(folder)
for name in ("tokenizer.json", "tokenizer_config.json"):
    (folder / name).write_bytes((bundled_source("tiny-gpt2").folder / name).read_bytes())
ctxextend.resize(folder, to=4096, output=model)
random.seed(0)
words = ["return", "the", "object", "of", "a", "new", "list", "is", "value", "file", "if", "name"]
text.write_text(" ".join(random.choice(words) for _ in range(40_000)))
text.with_name("held-out.txt").write_text(" ".join(random.choice(words) for _ in range(5_000)))  # one sequence
"""

# As a user would write it.
PLAIN = """
import json, resource, sys, time
from pathlib import Path
import torch
from transformers import (
    AutoTokenizer, DataCollatorForLanguageModeling, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
)
folder, text, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

class Clock(TrainerCallback):
    times = []
    def on_step_end(self, args, state, control, **others):
        self.times.append(time.perf_counter())

tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.eos_token
ids = tokenizer(text.read_text())["input_ids"]
data = [{"input_ids": ids[start : start + 4096]} for start in range(0, 4096 * (len(ids) // 4096), 4096)]
has_gpu = torch.cuda.is_available()
arguments = TrainingArguments(
    sys.argv[4], max_steps=steps, per_device_train_batch_size=1, save_strategy="no", report_to="none", bf16=has_gpu
)
Trainer(
    GPT2LMHeadModel.from_pretrained(folder), arguments, DataCollatorForLanguageModeling(tokenizer, mlm=False),
    data, callbacks=[Clock()],
).train()
peak = torch.cuda.max_memory_allocated() if has_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Path(sys.argv[4], "clock.json").write_text(json.dumps([Clock.times, peak]))
"""


def plain(model: Path, text: Path, output: Path, steps: int) -> tuple[float, float]:
    """Train all parameters by Trainer; return the seconds of a step and the peak memory in MB."""
    output.mkdir(exist_ok=True)
    run([sys.executable, "-c", PLAIN, str(model), str(text), str(steps), str(output)])
    times, peak = json.loads((output / "clock.json").read_text())
    return between(times), peak / 2**20


def ours(trainable: str, model: Path, text: Path, output: Path, steps: int) -> tuple[float, float]:
    """Train by ctxextend; return the seconds of a step and the peak memory in MB."""
    held_out = text.with_name("held-out.txt")
    command = [
        sys.executable,
        "-m",
        "ctxextend",
        "train",
        str(model),
        "--data",
        str(text),
        "--eval-data",
        str(held_out),
    ]
    command += ["--steps", str(steps), "--save-every", str(steps), "--batch-size", "1", "--trainable", trainable]
    peak = json.loads(run([*command, "-o", str(output), "--json"]))["peak_bytes"]
    lines = map(json.loads, (output / "train_log.jsonl").read_text().splitlines())
    return between([line["seconds"] for line in lines if "loss" in line]), peak / 2**20


def run(command: list[str]) -> str:
    """Run a process; return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)[:200]}\n{done.stderr[-2000:]}")
    return done.stdout


def between(times: list[float]) -> float:
    """Return the median of what lies between moments."""
    return statistics.median(later - earlier for earlier, later in pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        source, text, model, output = (Path(temporary) / name for name in ("small", "text.txt", "small-4096", "out"))
        subprocess.run([sys.executable, "-c", MAKE, source, text, model], check=True, capture_output=True)
        routes: dict[str, Callable[[Path, Path, Path, int], tuple[float, float]]] = {
            "plain Trainer, everything": plain,
            **{f"ctxextend train, {name}": partial(ours, name) for name in ("positions", "all")},
        }
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in routes}
        for _ in range(arguments.rounds):
            for name, route in routes.items():
                results[name].append(route(model, text, output, arguments.steps))
                print(f"{name}: {results[name][-1][0]:.1f} s a step, {results[name][-1][1]:.0f} MB", flush=True)
                shutil.rmtree(output)
    report(results)


if __name__ == "__main__":
    main()
