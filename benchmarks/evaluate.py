"""`ctxextend evaluate` beside transformers' plain forward with loss, on a GPT-2-small shape that reads 4,096 tokens.

Each runs as a whole process, in turn with the other, over the same windows, in float32 on as many threads as torch
takes by itself. Tokens a second are counted from the first window to the last loss, by the clock of the process: ours
says so in its JSON, summing up included; the peer reads four tokens before its clock starts, as ours does. Starting and
loading, which no one does for two windows, are left out of it. Peak memory is the whole process's. Both must tell the
same mean loss.

    python -m benchmarks.evaluate [--rounds 3] [--folder DIR]
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.measuring import PROGRAM, Cost, Row, alternate, at_least, at_most
from benchmarks.reading import Readable, make, measure_telling
from benchmarks.table import run_alone

ROUNDS, WINDOWS, LENGTH = 3, 2, 4096
MODEL = Readable(LENGTH, words=LENGTH * (WINDOWS + 1))

# As a user would write it, but for the clock.
PLAIN = """
import json, sys, time, torch
from pathlib import Path
from transformers import AutoTokenizer, GPT2LMHeadModel
folder, windows, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model = GPT2LMHeadModel.from_pretrained(folder / "linear").eval()
ids = AutoTokenizer.from_pretrained(folder / "linear")((folder / "text.txt").read_text())["input_ids"]
losses = []
with torch.no_grad():
    model(input_ids=torch.tensor(ids[:4])[None])
    began = time.perf_counter()
    for number in range(windows):
        window = torch.tensor(ids[number * length : (number + 1) * length])[None]
        losses.append(model(input_ids=window, labels=window).loss.item())
print(json.dumps({"seconds": time.perf_counter() - began, "loss": sum(losses) / windows}))
"""

OURS, PEER = "ctxextend", "transformers, forward with loss"


def ours(folder: Path) -> Cost:
    """Read the windows by `evaluate`."""
    command = [*PROGRAM, "evaluate", str(folder / "linear"), "--data", str(folder / "text.txt"), "--alone", "--json"]
    command += ["--measure", "position", "--tokens", str(LENGTH * WINDOWS)]
    cost, told = measure_telling(command, folder)
    return _counted(cost, told["seconds"], told["positions"]["losses"]["model"]["mean"])


def plain(folder: Path) -> Cost:
    """Read them by transformers."""
    command = [sys.executable, "-c", PLAIN, str(folder), str(WINDOWS), str(LENGTH)]
    cost, told = measure_telling(command, folder)
    return _counted(cost, told["seconds"], told["loss"])


def _counted(cost: Cost, seconds: float, loss: float) -> Cost:
    return replace(cost, counted={"tokens/s": LENGTH * WINDOWS / seconds, "loss": loss})


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows of speed and of memory."""
    make(folder, MODEL)
    costs = alternate({OURS: lambda: ours(folder), PEER: lambda: plain(folder)}, rounds)
    check_same(costs)
    speeds = [[cost.counted["tokens/s"] for cost in costs[name]] for name in (OURS, PEER)]
    peaks = [[cost.megabytes for cost in costs[name]] for name in (OURS, PEER)]
    what = f"`evaluate`, GPT-2-small shape at {LENGTH:,}"
    yield Row(f"{what}: speed", "tokens/s", speeds[0], PEER, speeds[1], at_least(0.95))
    yield Row(f"{what}: peak memory", "MB", peaks[0], PEER, peaks[1], at_most(0.5))


def check_same(costs: dict[str, list[Cost]]) -> None:
    """Raise SystemExit where the two did not read the same."""
    mine, other = (costs[name][0].counted["loss"] for name in (OURS, PEER))
    if not math.isclose(mine, other, rel_tol=1e-5):
        raise SystemExit(f"the losses differ: {mine} and {other}")


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
