"""Compare `evaluate` and `train` with plain transformers, and `evaluate --to` with its parts.

Tokens per second are timed inside each process, from the first window or the end of the first step,
so that start-up does not count. Both sides use torch's default number of threads. Memory is that of
the whole process. The baseline of `train` trains all parameters, which is the default without
ctxextend.
"""

import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.measure import CTXEXTEND, Cost, Row, alternate, measure, measure_json, python

__all__ = ["evaluate_rows", "methods_rows", "train_rows"]

# Random weights and text, which affect neither time nor memory. Arguments: folder, length, words of
# text, methods, and differences from GPT-2 small. Checkpoints are named after their method.
CREATE = """
import json, random, sys
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
import ctxextend
folder = Path(sys.argv[1])
length = int(sys.argv[2])
words = int(sys.argv[3])
methods = sys.argv[4].split(",")
shape = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **json.loads(sys.argv[5]))
GPT2LMHeadModel(shape).save_pretrained(folder / "source")
bundled = Path(ctxextend.__file__).parent / "bundled" / "tiny_gpt2"
for name in ("tokenizer.json", "tokenizer_config.json"):
    (folder / "source" / name).write_bytes((bundled / name).read_bytes())
for method in methods:
    ctxextend.resize(folder / "source", to=length, method=method, output=folder / method)
random.seed(0)
vocabulary = [
    "return", "the", "object", "of", "a", "new", "list", "is", "value", "file", "if", "name"
]
for name, count in (("text.txt", words), ("held-out.txt", length)):
    (folder / name).write_text(" ".join(random.choice(vocabulary) for _ in range(count)))
"""

FORWARD = """
import json, sys, time, torch
from pathlib import Path
from transformers import AutoTokenizer, GPT2LMHeadModel
folder = Path(sys.argv[1])
windows = int(sys.argv[2])
length = int(sys.argv[3])
model = GPT2LMHeadModel.from_pretrained(folder / "linear").eval()
tokenizer = AutoTokenizer.from_pretrained(folder / "linear")
ids = tokenizer((folder / "text.txt").read_text())["input_ids"]
losses = []
with torch.no_grad():
    model(input_ids=torch.tensor(ids[:4])[None])
    start = time.perf_counter()
    for number in range(windows):
        window = torch.tensor(ids[number * length : (number + 1) * length])[None]
        losses.append(model(input_ids=window, labels=window).loss.item())
print(json.dumps({"seconds": time.perf_counter() - start, "loss": sum(losses) / windows}))
"""

TRAINER = """
import json, resource, sys, time
from pathlib import Path
import torch
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
folder = Path(sys.argv[1])
output = Path(sys.argv[2])
steps = int(sys.argv[3])
length = int(sys.argv[4])

class Clock(TrainerCallback):
    times = []
    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())

tokenizer = AutoTokenizer.from_pretrained(folder / "linear")
tokenizer.pad_token = tokenizer.eos_token
ids = tokenizer((folder / "text.txt").read_text())["input_ids"]
starts = range(0, length * (len(ids) // length), length)
data = [{"input_ids": ids[start : start + length]} for start in starts]
has_gpu = torch.cuda.is_available()
arguments = TrainingArguments(
    str(output),
    max_steps=steps,
    per_device_train_batch_size=1,
    save_strategy="no",
    report_to="none",
    bf16=has_gpu,
)
Trainer(
    GPT2LMHeadModel.from_pretrained(folder / "linear"),
    arguments,
    DataCollatorForLanguageModeling(tokenizer, mlm=False),
    data,
    callbacks=[Clock()],
).train()
if has_gpu:
    peak = torch.cuda.max_memory_allocated()
else:
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output.mkdir(exist_ok=True)
(output / "clock.json").write_text(json.dumps({"times": Clock.times, "peak_bytes": peak}))
"""

WINDOWS = 2
STEPS = 3
LENGTH = 4096
METHODS = ("linear", "copy", "mean", "last")


def create(folder: Path, length: int, words: int, methods: str = "linear", **shape: int) -> None:
    """Create a checkpoint, its resized versions and their texts."""
    measure(python(CREATE, folder, length, words, methods, json.dumps(shape)))


def speed_and_memory(
    what: str, costs: list[Cost], baseline: str, baseline_costs: list[Cost], minimum: float
) -> Iterator[Row]:
    """Yield a row of speed and one of memory, which must be at most half of the baseline's."""
    own = [cost.reported["tokens/s"] for cost in costs]
    others = [cost.reported["tokens/s"] for cost in baseline_costs]
    yield Row(f"{what}: speed", "tokens/s", own, baseline, others, minimum=minimum)
    own = [cost.megabytes for cost in costs]
    others = [cost.megabytes for cost in baseline_costs]
    yield Row(f"{what}: peak memory", "MB", own, baseline, others, maximum=0.5)


def evaluate_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `evaluate` of a GPT-2-small shape at 4,096 tokens with transformers' forward with
    loss.

    Raises:
        SystemExit: The two losses differ.
    """
    create(folder, LENGTH, LENGTH * (WINDOWS + 1))
    flags = (
        "--data",
        folder / "text.txt",
        "--base",
        "none",
        "--measure",
        "position",
        "--tokens",
        LENGTH * WINDOWS,
        "--json",
    )

    def evaluate() -> Cost:
        cost, result = measure_json([*CTXEXTEND, "evaluate", folder / "linear", *flags])
        speed = LENGTH * WINDOWS / result["seconds"]
        loss = result["scores"][0]["mean"]
        return replace(cost, reported={"tokens/s": speed, "loss": loss})

    def forward() -> Cost:
        cost, result = measure_json(python(FORWARD, folder, WINDOWS, LENGTH))
        speed = LENGTH * WINDOWS / result["seconds"]
        return replace(cost, reported={"tokens/s": speed, "loss": result["loss"]})

    baseline = "transformers: forward with loss"
    costs, baseline_costs = alternate({"ctxextend": evaluate, baseline: forward}, rounds)
    losses = costs[0].reported["loss"], baseline_costs[0].reported["loss"]
    if not math.isclose(*losses, rel_tol=1e-5):
        raise SystemExit(f"failed: the losses differ: {losses}")
    yield from speed_and_memory(
        "`evaluate`, GPT-2 small at 4,096", costs, baseline, baseline_costs, 0.95
    )


def train_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `train --trainable positions` of a GPT-2-small shape at 4,096 tokens with a plain
    Trainer.
    """
    create(folder, LENGTH, LENGTH * (STEPS + 1))
    output = folder / "trained"
    flags = [
        "--data",
        folder / "text.txt",
        "-o",
        output,
        "--json",
        "--quiet",
    ]
    flags += ["--steps", STEPS, "--eval-every", STEPS, "--batch-size", 1]

    def with_speed(cost: Cost, times: list[float], peak: int) -> Cost:
        step = statistics.median(later - earlier for earlier, later in pairwise(times))
        return replace(cost, megabytes=peak / 1e6, reported={"tokens/s": LENGTH / step})

    def train() -> Cost:
        cost, result = measure_json(
            [*CTXEXTEND, "train", folder / "linear", *flags, "--trainable", "positions"]
        )
        lines = map(json.loads, (output / "train_log.jsonl").read_text().splitlines())
        times = [line["seconds"] for line in lines if "loss" in line]
        return with_speed(cost, times, result["peak_bytes"])

    def trainer() -> Cost:
        cost = measure(python(TRAINER, folder, output, STEPS, LENGTH))
        clock = json.loads((output / "clock.json").read_text())
        return with_speed(cost, clock["times"], clock["peak_bytes"])

    baseline = "plain Trainer, all parameters"
    routes = {"ctxextend": train, baseline: trainer}

    def remove_output() -> None:
        shutil.rmtree(output, ignore_errors=True)

    costs, baseline_costs = alternate(routes, rounds, remove_output)
    yield from speed_and_memory(
        "`train --trainable positions`, GPT-2 small at 4,096", costs, baseline, baseline_costs, 1.2
    )


def methods_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare `evaluate` of four methods with its parts: four evaluations, the base once, one start
    and one load.

    For each evaluation, only the seconds that it reports count, from the first token to the last
    result.
    """
    length = 1024
    create(
        folder,
        length,
        2 * length * (WINDOWS + 1),
        ",".join(METHODS),
        n_positions=256,
        n_embd=256,
        n_layer=4,
        n_head=4,
    )
    flags = ["--data", folder / "text.txt", "--tokens", length * WINDOWS, "--quiet", "--json"]

    def evaluate(*more: str) -> Cost:
        cost, result = measure_json([*CTXEXTEND, "evaluate", folder / METHODS[0], *flags, *more])
        return replace(cost, reported={"seconds": result["seconds"]})

    methods: list[Any] = ["--to", length, *flags]
    for name in METHODS:
        methods += ["--method", name]
    routes: dict[str, Callable[[], Cost]] = {
        "methods": partial(measure, [*CTXEXTEND, "evaluate", folder / "source", *methods]),
        "evaluate": evaluate,
        "evaluate --base none": partial(evaluate, "--base", "none"),
    }
    costs, with_base, without_base = alternate(routes, rounds)
    parts = []
    for first, other in zip(with_base, without_base, strict=True):
        evaluation = other.reported["seconds"]
        start = other.seconds - evaluation
        parts.append(start + first.reported["seconds"] + (len(METHODS) - 1) * evaluation)
    yield Row(
        "`evaluate --to`, 4 methods: time",
        "s",
        [cost.seconds for cost in costs],
        "its parts",
        parts,
        maximum=1.1,
    )
