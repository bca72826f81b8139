"""Train a longer model on text with long-range structure, and its base for as many tokens, and
compare them.

    python -m benchmarks.long_range [MODEL] [--to 4x] [--steps 200] [--lr 0.002] [--tokens 2048]
    [--seed 0] [--out DIR]

The later part of each document refers to the earlier. A document is a record of choices, each
between two words, and a note that is the same in all documents; both are repeated ten times. A
repetition is longer than MODEL can read, so that at its own length it can only guess the choices.
MODEL is trained at its own length, and resized and trained at the longer one, with all weights, the
same text and equally many tokens. Loss by context of both is measured on documents with other
choices. Writes the text, both checkpoints and the page long_range.md.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.machine import find_versions
from benchmarks.shown import perplexity_text, ratio_text
from ctxextend import Evaluation, evaluate, resize, train
from ctxextend.lab.python_text import python_documents
from ctxextend.lab.scores import select
from ctxextend.opening.opened_model import open_model
from ctxextend.plan import make_plan
from ctxextend.settings import CheckpointRef, Resize

__all__ = ["documents", "page", "pairs"]

SENTENCE = re.compile(r"(?<=[.!?] )[A-Z][a-z]+ [A-Za-z0-9,'() -]{20,70}\.(?= )")
WORD = re.compile(r"(?<= )[a-z]{3,9}(?=[ .,])")
REPEATED = 10  # repetitions in a document
TRAINED_ON = 1000  # documents
MEASURED = 64  # documents

Tokens = Callable[[str], int]  # the number of tokens of a text


def pairs(texts: Iterable[str], tokens: Tokens, count: int) -> list[tuple[str, str]]:
    """Return at most `count` pairs of words, the most frequent ones in texts that are single
    tokens.
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(WORD.findall(text))
    frequent = counts.most_common(8 * count)
    words = [word for word, _ in frequent if tokens(f" {word}") == 1][: 2 * count]
    return [*zip(words[::2], words[1::2], strict=False)]


def documents(
    texts: Iterable[str], tokens: Tokens, length: int, count: int, seed: int
) -> Iterator[str]:
    """Yield documents; each of their repetitions is more than `length` tokens, at most half of them
    choices.
    """
    texts = [*texts]
    choices = pairs(texts, tokens, length // 2)
    record = " ".join(first for first, _ in choices)
    note = ""
    text = " ".join(" ".join(texts).split())
    for sentence in SENTENCE.findall(text):
        if tokens(record + note) > length:
            break
        note += f"\n{sentence}"
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        record = " ".join(draw.choice(pair) for pair in choices)
        yield f"\n {record}\n{note}\n" * REPEATED


def write(path: Path, texts: Iterable[str]) -> Path:
    """Write documents as .jsonl."""
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    path.write_text("".join(lines), "utf-8")
    return path


def page(evaluation: Evaluation, length: int, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    command = f"python -m benchmarks.long_range {arguments.model}"
    own = [*select(evaluation.scores, model=evaluation.names[0])]
    (base,) = evaluation.main_references
    yield f"# Long-range text\n\n    {command}\n\n{versions}\n"
    yield (
        f"Each document repeats a record of choices, and a note, after more than {length} tokens. "
        "Perplexity (95 % interval) of the same target tokens, the last quarter of "
        f"{base.samples} windows, by context. Both models are trained for {arguments.steps} "
        f"steps of {arguments.tokens:,} tokens with a learning rate of {arguments.lr}: the base at "
        f"{length} tokens, the longer one at {evaluation.length}. The last column is paired by "
        "token.\n"
    )
    yield f"| context | longer model | base | longer model against the base at {length} |"
    yield "|---:|---:|---:|---:|"
    for score in reversed(own):
        of_base = select(evaluation.scores, model=base.model, length=score.length)
        cells = [str(score.length), perplexity_text(score.estimate)]
        cells.append("".join(perplexity_text(other.estimate) for other in of_base))
        cells.append(ratio_text(score.minus(base).change))
        yield f"| {' | '.join(cells)} |"


def fit(model: str | Path, data: Path, length: int, arguments: argparse.Namespace) -> Path:
    """Train on the same number of tokens per step at any length; return the checkpoint."""
    result = train(
        model,
        data,
        output=arguments.out / f"trained-{length}",
        force=True,
        steps=arguments.steps,
        lr=arguments.lr,
        seed=arguments.seed,
        save="last",
        batch_size=arguments.tokens // length,
        trainable="all",
    )
    return result.output


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_range",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="tiny-gpt2", metavar="MODEL")
    parser.add_argument("--to", default="4x", metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="K")
    parser.add_argument("--lr", type=float, default=0.002, metavar="LR")
    parser.add_argument("--tokens", type=int, default=2048, metavar="T", help="tokens per step")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--out", type=Path, default=Path("build/long_range"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Write the text, train both models, and write the page."""
    arguments = parse_arguments()
    model = arguments.model
    seed = arguments.seed
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    plan = make_plan(open_model(CheckpointRef(model)), Resize(arguments.to))
    short = plan.max_len_before
    long = plan.max_len_after
    resized = resize(model, long, output=out / "resized", force=True).output

    tokenizer = AutoTokenizer.from_pretrained(resized)

    def count_tokens(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    texts = python_documents()
    trained_on = documents(texts, count_tokens, short, TRAINED_ON, seed)
    data = write(out / "train.jsonl", trained_on)
    measured_on = documents(texts, count_tokens, short, MEASURED, seed + 1)
    measured = write(out / "measured.jsonl", measured_on)

    base = fit(model, data, short, arguments)
    longer = fit(resized, data, long, arguments)
    evaluation = evaluate(longer, measured, base=base, measure="context")
    text = "\n".join(page(evaluation, short, arguments)) + "\n"
    (out / "long_range.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
