"""`ctxextend train --trainable positions` beside transformers' plain Trainer, on a GPT-2-small shape at 4,096 tokens.

Each runs as a whole process, in turn with the other: one sequence a step of the same text, on as many threads as torch
takes by itself, in the precision that the device has, without dropout. The peer trains all parameters, which is what
there is without `ctxextend`. Tokens a second are those of a step, by the clock of the process from the end of one step
to that of the next, so that the first step, starting, loading and measuring the held-out loss are left out. Peak memory
is the process's, or the accelerator's where there is one.

    python -m benchmarks.train [--rounds 2] [--folder DIR]
"""

import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.measuring import PROGRAM, Cost, Row, alternate, at_least, at_most, measure
from benchmarks.reading import Readable, make, measure_telling
from benchmarks.table import run_alone

ROUNDS, STEPS, LENGTH = 2, 3, 4096
MODEL = Readable(LENGTH, words=LENGTH * (STEPS + 1))

# As a user would write it, but for the clock.
PLAIN = """
import json, resource, sys, time
from pathlib import Path
import torch
from transformers import (
    AutoTokenizer, DataCollatorForLanguageModeling, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
)
folder, output, steps, length = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

class Clock(TrainerCallback):
    times = []
    def on_step_end(self, args, state, control, **others):
        self.times.append(time.perf_counter())

tokenizer = AutoTokenizer.from_pretrained(folder / "linear")
tokenizer.pad_token = tokenizer.eos_token
ids = tokenizer((folder / "text.txt").read_text())["input_ids"]
data = [{"input_ids": ids[start : start + length]} for start in range(0, length * (len(ids) // length), length)]
has_gpu = torch.cuda.is_available()
arguments = TrainingArguments(
    str(output), max_steps=steps, per_device_train_batch_size=1, save_strategy="no", report_to="none", bf16=has_gpu
)
Trainer(
    GPT2LMHeadModel.from_pretrained(folder / "linear"), arguments,
    DataCollatorForLanguageModeling(tokenizer, mlm=False), data, callbacks=[Clock()],
).train()
peak = torch.cuda.max_memory_allocated() if has_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(output / "clock.json").write_text(json.dumps({"times": Clock.times, "peak_bytes": peak}))
"""

OURS, PEER = "ctxextend", "plain Trainer, all parameters"


def ours(folder: Path) -> Cost:
    """Train the table by `train`."""
    output = folder / "trained"
    command = [*PROGRAM, "train", str(folder / "linear"), "--data", str(folder / "text.txt"), "-o", str(output)]
    command += ["--eval-data", str(folder / "held-out.txt"), "--eval-every", str(STEPS), "--save-every", str(STEPS)]
    command += ["--steps", str(STEPS), "--batch-size", "1", "--trainable", "positions", "--json", "--quiet"]
    cost, told = measure_telling(command, folder)
    lines = map(json.loads, (output / "train_log.jsonl").read_text().splitlines())
    return _counted(cost, [line["seconds"] for line in lines if "loss" in line], told["peak_bytes"])


def plain(folder: Path) -> Cost:
    """Train all parameters by Trainer."""
    output = folder / "trained"
    output.mkdir()
    cost = measure([sys.executable, "-c", PLAIN, str(folder), str(output), str(STEPS), str(LENGTH)])
    told = json.loads((output / "clock.json").read_text())
    return _counted(cost, told["times"], told["peak_bytes"])


def _counted(cost: Cost, times: list[float], peak: int) -> Cost:
    step = statistics.median(later - earlier for earlier, later in pairwise(times))
    return replace(cost, megabytes=peak / 1e6, counted={"tokens/s": LENGTH / step})


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of speed and of memory."""
    make(folder, MODEL)
    routes = {OURS: lambda: ours(folder), PEER: lambda: plain(folder)}
    costs = alternate(routes, rounds, lambda: shutil.rmtree(folder / "trained", ignore_errors=True))
    speeds = [[cost.counted["tokens/s"] for cost in costs[name]] for name in (OURS, PEER)]
    peaks = [[cost.megabytes for cost in costs[name]] for name in (OURS, PEER)]
    what = f"`train --trainable positions`, GPT-2-small shape at {LENGTH:,}"
    yield Row(f"{what}: speed", "tokens/s", speeds[0], PEER, speeds[1], at_least(1.25))
    yield Row(f"{what}: peak memory", "MB", peaks[0], PEER, peaks[1], at_most(0.5))


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
