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
from typing import Any

import numpy as np

from benchmarks.held_out_rows import BEYOND, REFERENCE, SHORT, read_scores, read_texts
from benchmarks.machine import find_versions
from benchmarks.measure import CTXEXTEND, python
from benchmarks.shown import perplexity_text, ratio_point, ratio_text
from ctxextend import evaluate, resize
from ctxextend.lab.scores import Score, curves
from ctxextend.settings import Evaluate
from ctxextend.tables.method_facts import DEFAULT_METHOD

__all__ = [
    "BUDGET",
    "LONG_RANGE",
    "Minute",
    "Texts",
    "halves",
    "measure_minute",
    "minute_tables",
    "score_of",
    "tune",
]

BUDGET = 60  # seconds
LONG_RANGE = "long range"  # the text of `benchmarks.long_range`
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
    reference = read_scores(REFERENCE, source, texts)
    found: dict[str, Any] = {"reference": reference[BEYOND].estimate}
    for name, folder in zip(("before", "after"), tables, strict=True):
        scores = read_scores(name, folder, texts)
        found[name] = scores[BEYOND].minus(reference[BEYOND]).change
        found[f"short {name}"] = scores[SHORT].minus(reference[SHORT]).change
    return found


def against_sliding_windows(
    minute: Minute, source: str, tables: tuple[Path, Path], judges: Evaluate
) -> dict[str, Any]:
    """Return the loss of a model in sliding windows, and the changes before and after tuning."""
    evaluation = evaluate(
        tables,
        judges.data,
        base=source,
        measure="position",
        length=minute.to,
        tokens=judges.tokens,
        precision="fp32",
    )
    by_position = curves(evaluation.scores)
    sliding, separate = (by_position[score.label] for score in evaluation.references)
    reference = score_of(sliding, minute.before, minute.to)
    short_reference = score_of(separate, 0, minute.before)
    found: dict[str, Any] = {"reference": reference.estimate}
    for name, model in zip(("before", "after"), evaluation.names, strict=True):
        own = by_position[model]
        found[name] = score_of(own, minute.before, minute.to).minus(reference).change
        short = score_of(own, 0, minute.before)
        found[f"short {name}"] = short.minus(short_reference).change
    return found


def score_of(parts: Sequence[Score], first: int, stop: int) -> Score:
    """Return the score of the positions from `first` to `stop`, which are ends of parts."""
    chosen = list[Score]()
    for score in parts:
        assert score.part is not None
        if first <= score.part[0] < stop:
            chosen.append(score)
    of_texts = zip(*(score.values for score in chosen), strict=True)
    return chosen[0].of_part((first, stop), [np.concatenate(values) for values in of_texts])


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
        perplexity_text(result["reference"]),
        *(ratio_text(result[name]) for name in ("before", "after", "short before", "short after")),
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
        "untrained": ratio_point(result["before"]),
        "after a minute": ratio_point(result["after"]),
    }
