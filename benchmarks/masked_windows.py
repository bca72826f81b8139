"""What attention windows are worth to masked language models at four times their length.

    python -m benchmarks.masked_windows MODEL TEXT... [--cut N] [--budget 60] [--out DIR]

MODEL is the folder of a BERT or RoBERTa, TEXT a .jsonl file of documents, half of which tune a
table, and half of which judge. Loss by position at four times the length of MODEL, or of its first
N positions: with rows by `bands`, with rows by `bands` after `resize --tune`, and as a twin with
attention windows (`convert --scheme window`) of half the length and of all of it; each as a ratio
to the base in sliding windows, paired by text. Without training but that of the tuned table.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.minute import BUDGET, halves, score_of, tune
from benchmarks.shown import perplexity_text, ratio_text
from ctxextend import convert, evaluate, resize
from ctxextend.lab.scores import curves
from ctxextend.opening.opened_model import open_model
from ctxextend.settings import CheckpointRef

__all__ = ["page"]

TIMES = 4
METHOD = "bands"


def make_tables(source: str, cut: int | None, text: Path, budget: int, folder: Path) -> Any:
    """Write the base, and the models to judge; return the base and the others by name."""
    base = source
    if cut is not None:
        base = str(folder / "base")
        resize(source, cut, output=base, force=True)
    length = open_model(CheckpointRef(base)).tables[0].length()
    to = TIMES * length
    models = {METHOD: folder / METHOD}
    resize(base, to, METHOD, output=models[METHOD], force=True)
    tuned = f"{METHOD}, tuned for {budget} s"
    models[tuned] = folder / "tuned"
    tuning = tune(base, to, METHOD, text, budget, models[tuned])
    for window in (length // 2, length):
        name = f"attention windows of {window}"
        models[name] = folder / f"window-{window}"
        convert(base, "window", to, output=models[name], force=True, attention_window=window)
    if cut is not None:
        models["its learned rows"] = Path(source)
    return base, length, models, tuning


def judge(base: str, length: int, models: Mapping[str, Path], text: Path, tokens: int) -> Any:
    """Return the loss of the base in sliding windows, and each model's change, by position.

    Positions are in groups of `length`; the last value of a model is that of all but the first
    group.
    """
    evaluation = evaluate(
        [*models.values()],
        text,
        base=base,
        measure="position",
        length=TIMES * length,
        tokens=tokens,
        precision="fp32",
    )
    by_position = curves(evaluation.scores)
    sliding = by_position[evaluation.main_references[0].label]
    groups = [(group * length, (group + 1) * length) for group in range(TIMES)]
    groups.append((length, TIMES * length))
    references = [score_of(sliding, *group) for group in groups]
    found = {"sliding windows": [reference.estimate for reference in references]}
    for name, model in zip(models, evaluation.names, strict=True):
        own = [score_of(by_position[model], *group) for group in groups]
        pairs = zip(own, references, strict=True)
        found[name] = [score.minus(reference).change for score, reference in pairs]
    return found


def page(name: str, length: int, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of a model."""
    groups = [f"{group * length} to {(group + 1) * length - 1}" for group in range(TIMES)]
    yield f"\n| {name} at {TIMES * length} | {' | '.join(groups)} | from {length} on |"
    yield f"|---|{'---:|' * (TIMES + 1)}"
    for row, values in found.items():
        text = perplexity_text if row == "sliding windows" else ratio_text
        yield f"| {row} | {' | '.join(map(text, values))} |"


def read_documents(paths: Sequence[Path]) -> list[str]:
    """Return the texts of .jsonl files."""
    documents = list[str]()
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            documents.append(json.loads(line)["text"])
    return documents


def main() -> None:
    """Measure a model, and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--cut", type=int)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--out", type=Path, default=Path("build/masked-windows"))
    arguments = parser.parse_args()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    tuning, judging = halves(read_documents(arguments.text))
    tuning_text = write(folder / "tuning.jsonl", tuning)
    judging_text = write(folder / "judging.jsonl", judging)
    base, length, models, tuned = make_tables(
        arguments.model, arguments.cut, tuning_text, arguments.budget, folder
    )
    found = judge(base, length, models, judging_text, arguments.tokens)
    result = {"versions": find_versions(), "tuning": tuned, "length": length, "losses": found}
    (folder / "result.json").write_text(json.dumps(result, indent=1, default=vars), "utf-8")
    name = Path(arguments.model).name
    (folder / "masked-windows.md").write_text("\n".join(page(name, length, found)), "utf-8")
    print("\n".join(page(name, length, found)))


if __name__ == "__main__":
    main()
