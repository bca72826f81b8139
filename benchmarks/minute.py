"""What a minute on a text makes of a table, on text that it was not tuned on.

`benchmarks.real` measures and writes it. Tables are resized by `ctxextend resize --tune`, as a
user would; keep the machine idle.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ctxextend.lab.evaluation_result import MODEL, SLIDING, TRUNCATED, Estimate, estimate
from ctxextend.lab.windows import cut_windows
from numpy.typing import NDArray

from benchmarks.held_out_rows import BEYOND, SHORT, paired, read_scores, read_texts
from benchmarks.machine import find_versions
from benchmarks.measure import CTXEXTEND, python
from benchmarks.points import ratio_point
from ctxextend import resize
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import ResizableFiles, open_eval_model, open_files
from ctxextend.lab.losses import BY_POSITION, plan_losses
from ctxextend.lab.scorer import Scorer, open_scorer
from ctxextend.lab.unseen_text import read_unseen
from ctxextend.opening.opened_model import open_model
from ctxextend.report.numbers import NumberFormat
from ctxextend.settings import CheckpointRef, Evaluate
from ctxextend.tables.method_facts import DEFAULT_METHOD

__all__ = [
    "BUDGET",
    "LONG_RANGE",
    "Minute",
    "SlidingBase",
    "Texts",
    "halves",
    "measure_minute",
    "minute_tables",
    "tune",
]

BUDGET = 60  # seconds
LONG_RANGE = "long range"  # the text of `benchmarks.long_range`
NUMBERS = NumberFormat()
# A process counts the memory of the one that starts it, which here has loaded torch.
MEASURING = """
import json, sys
from benchmarks.measure import measure_json
cost, output = measure_json(sys.argv[1:])
print(json.dumps({"megabytes": cost.megabytes, "output": output}))
"""


@dataclass(frozen=True)
class Minute:
    """A table that is tuned for a minute, and compared with what would be right."""

    model: str
    text: str  # as in `benchmarks.real.Part`, or `LONG_RANGE`
    before: int
    to: int
    # Whether the model's own rows from `before` on are held out, and are the reference; else that
    # is the model as it is, in sliding windows.
    hold_out: bool
    method: str = DEFAULT_METHOD
    is_tuned_on: bool = False  # rates and objective were chosen on this model
    tokens: int = 16_384  # that judge

    @property
    def name(self) -> str:
        """The name of its file, and in --only."""
        model, _, _ = self.model.partition("'")
        name = f"minute-{model}-{self.before}-{self.to}".lower()
        if self.keeps_rows:
            name += "-kept"
        if self.text == LONG_RANGE:
            name += "-long-range"
        return name

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        labels = [f"{self.model} {self.before} → {self.to}"]
        if self.keeps_rows:
            labels.append("learned rows kept")
        if self.text == LONG_RANGE:
            labels.append("long-range text")
        return ", ".join(labels)

    @property
    def reference(self) -> str:
        """What its perplexities are ratios to."""
        if self.hold_out:
            return "reference rows"
        return "sliding windows"

    @property
    def keeps_rows(self) -> bool:
        """Whether learned rows stay."""
        return self.method != DEFAULT_METHOD


@dataclass(frozen=True)
class Texts:
    """Text to tune on, and other text that judges."""

    tuning: Path
    judging: Path


def halves(documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return documents to tune on, and those that judge: the same at each call."""
    shuffled = [*documents]
    random.Random(0).shuffle(shuffled)
    return shuffled[::2], shuffled[1::2]


def measure_minute(minute: Minute, source: str, texts: Texts, folder: Path) -> dict[str, Any]:
    """Tune a table, and pair its losses, and those before it, with the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    base = source
    if minute.hold_out:
        base = str(folder / f"{minute.name}-cut")
        resize(source, minute.before, output=base, force=True)
    untrained = folder / f"{minute.name}-untrained"
    resize(base, minute.to, minute.method, output=untrained, force=True)
    tuned = folder / f"{minute.name}-tuned"
    run = tune(base, minute.to, minute.method, texts.tuning, BUDGET, tuned)
    found: dict[str, Any] = {"measured": measured_on(), **run}
    judges = Evaluate(data=(str(texts.judging),), tokens=minute.tokens)
    if minute.hold_out:
        found |= against_reference_rows(minute, source, (untrained, tuned), judges)
    else:
        found |= against_sliding_windows(minute, source, (untrained, tuned), judges)
    return found


def tune(
    source: str, to: int, method: str, text: Path, budget: int, output: Path
) -> dict[str, Any]:
    """Run `resize --tune`; return its kept steps and seconds, and its peak ``megabytes``."""
    shutil.rmtree(output, ignore_errors=True)
    command = [*CTXEXTEND, "resize", source, "--to", str(to), "--method", method]
    command += ["--tune", str(text), "--budget", str(budget)]
    command += ["--output", str(output), "--json"]
    done = subprocess.run(python(MEASURING, *command), check=True, stdout=subprocess.PIPE)
    result = json.loads(done.stdout)
    tuning = result["output"]["tuning"]
    training = tuning["training"]
    steps = 0
    if training is not None and training["is_kept"]:
        steps = training["steps"]
    return {
        "tuning": {"steps": steps, "seconds": tuning["seconds"]},
        "megabytes": result["megabytes"],
    }


def measured_on() -> str:
    """Return the date, and the versions that matter to training."""
    versions = find_versions()
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    return f"{date.today()} with {libraries}"


def against_reference_rows(
    minute: Minute, source: str, tables: tuple[Path, Path], judges: Evaluate
) -> dict[str, Any]:
    """Return the loss of the reference rows, and the changes before and after tuning."""
    texts = read_texts(source, judges, minute.before, minute.to)
    reference = read_scores(source, texts)
    changes = {}
    for name, folder in zip(("before", "after"), tables, strict=True):
        scores = read_scores(str(folder), texts)
        changes[name] = paired(scores[BEYOND], reference[BEYOND])
        changes[f"short {name}"] = paired(scores[SHORT], reference[SHORT])
    return {"reference": estimate(reference[BEYOND]), **changes}


def against_sliding_windows(
    minute: Minute, source: str, tables: tuple[Path, Path], judges: Evaluate
) -> dict[str, Any]:
    """Return the loss of a model in sliding windows, and the changes before and after tuning."""
    sliding = SlidingBase.open(source, judges, minute.to)
    found: dict[str, Any] = {}
    for name, folder in zip(("before", "after"), tables, strict=True):
        read = sliding.read(str(folder))
        long = [positions >= minute.before for positions in read.positions]
        short = [positions < minute.before for positions in read.positions]
        beyond = {mode: select(values, long) for mode, values in read.losses.items()}
        found["reference"] = estimate(beyond[SLIDING])
        found[name] = paired(beyond[MODEL], beyond[SLIDING])
        found[f"short {name}"] = paired(
            select(read.losses[MODEL], short), select(read.losses[TRUNCATED], short)
        )
    return found


class ReadWindows(NamedTuple):
    """The losses of windows, read by a model and by its base."""

    losses: Mapping[str, Sequence[NDArray[np.float64]]]  # of each window, by mode
    positions: Sequence[NDArray[np.int64]]  # of the scored tokens of each window


@dataclass(frozen=True)
class SlidingBase:
    """A model that reads windows of a text as it is: in sliding windows, and truncated."""

    scorer: Scorer
    windows: Sequence[Ids]
    length: int  # of the windows, in tokens
    special: int  # tokens before a text

    @classmethod
    def open(cls, source: str, judges: Evaluate, length: int) -> "SlidingBase":
        """Open a model, and read windows of the text that judges."""
        files = open_files(open_model(CheckpointRef(source)))
        return cls(
            scorer=open_scorer(open_eval_model(CheckpointRef(source), "fp32")),
            windows=read_windows(files, judges, length),
            length=length,
            special=len(files.tokenizer.before),
        )

    def read(self, folder: str) -> ReadWindows:
        """Return the losses of a model, and those of the base, on the same tokens."""
        model = open_scorer(open_eval_model(CheckpointRef(folder), "fp32"))
        task = plan_losses(
            model, self.scorer, self.windows, [self.length], seed=0, measures=[BY_POSITION]
        )
        task.measure(lambda tokens: None)
        losses = {mode: values for (mode, _), values in task.losses(BY_POSITION).items()}
        positions = [
            task.windows.targets(number)[BY_POSITION] + self.special
            for number in range(len(self.windows))
        ]
        return ReadWindows(losses=losses, positions=positions)


def read_windows(files: ResizableFiles, judges: Evaluate, length: int) -> Sequence[Ids]:
    """Return windows of a text that a model was not trained on, without special tokens."""
    tokenizer = files.tokenizer
    size = length - tokenizer.num_special
    documents, _ = read_unseen([files], judges, size)
    return cut_windows(documents, size, judges.tokens // length, tokenizer.separator).windows


def select(
    losses: Sequence[NDArray[np.float64]], masks: Sequence[NDArray[np.bool_]]
) -> list[NDArray[np.float64]]:
    """Return the losses of each text under its mask."""
    return [values[mask] for values, mask in zip(losses, masks, strict=True)]


def minute_tables(
    minutes: Sequence[Minute], results: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the tables of all parts that were measured."""
    dates = dict.fromkeys(result["measured"] for result in results.values() if "measured" in result)
    yield f"\nMeasured on {'; '.join(dates)}."
    kinds: dict[str, list[Minute]] = {}
    for minute in minutes:
        kinds.setdefault(minute.reference, []).append(minute)
    for reference, parts in kinds.items():
        yield (
            f"\n| model | {reference} | untrained | after a minute | short inputs, untrained | "
            "after a minute | steps | seconds | memory |"
            "\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
        )
        for minute in parts:
            if minute.name in results:
                yield minute_row(minute, results[minute.name])


def minute_row(minute: Minute, result: Mapping[str, Any]) -> str:
    """Return the row of a part."""
    tuning = result["tuning"]
    label = minute.label
    if minute.is_tuned_on:
        label += " *tuned*"
    cells = [
        label,
        NUMBERS.perplexity(Estimate(**result["reference"])),
        *(ratio_text(result, name) for name in ("before", "after")),
        *(ratio_text(result, f"short {name}") for name in ("before", "after")),
        str(tuning["steps"]),
        f"{tuning['seconds']:.0f}",
        f"{result['megabytes']:.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def minute_points(minute: Minute, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a figure shows of a part: the ratios to the reference."""
    return {
        "label": minute.label,
        "reference": minute.reference,
        "untrained": ratio_point(Estimate(**result["before"])),
        "after a minute": ratio_point(Estimate(**result["after"])),
    }


def ratio_text(result: Mapping[str, Any], name: str) -> str:
    """Return the ratio of a perplexity to that of the reference, ± 95 %."""
    return f"x {NUMBERS.perplexity(Estimate(**result[name]))}"
