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
from ctxextend import evaluate, resize, train
from ctxextend.comparison.python_text import python_documents
from ctxextend.evaluation.evaluation_result import ContextLosses, Estimate
from ctxextend.plan.opened_model import open_model
from ctxextend.plan.plan import plan_model
from ctxextend.recipe import CheckpointRef, Resize
from ctxextend.report.numbers import NumberFormat

__all__ = ["documents", "page", "pairs"]

NUMBERS = NumberFormat()
SENTENCE = re.compile(r"(?<=[.!?] )[A-Z][a-z]+ [A-Za-z0-9,'() -]{20,70}\.(?= )")
WORD = re.compile(r"(?<= )[a-z]{3,9}(?=[ .,])")
REPEATED, TRAINED_ON, MEASURED = 10, 1000, 64  # repetitions in a document; documents

Tokens = Callable[[str], int]  # the number of tokens of a text


def pairs(texts: Iterable[str], tokens: Tokens, count: int) -> list[tuple[str, str]]:
    """Return at most `count` pairs of words, the most frequent ones in texts that are single
    tokens.
    """
    frequent = Counter(word for text in texts for word in WORD.findall(text)).most_common(8 * count)
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
    note = ""
    for sentence in SENTENCE.findall(" ".join(" ".join(texts).split())):
        if tokens(" ".join(first for first, _ in choices) + note) > length:
            break
        note += f"\n{sentence}"
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        record = " ".join(draw.choice(pair) for pair in choices)
        yield f"\n {record}\n{note}\n" * REPEATED


def write(path: Path, texts: Iterable[str]) -> Path:
    """Write documents as .jsonl."""
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts), "utf-8")
    return path


def page(contexts: ContextLosses, length: int, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield (
        "# Long-range text\n\n    python -m benchmarks.long_range "
        f"{arguments.model}\n\n{versions}\n"
    )
    yield (
        f"Each document repeats a record of choices, and a note, after more than {length} "
        "tokens. Perplexity ± 95 % of "
        f"the same target tokens, the last quarter of {contexts.windows} windows, by context. "
        "Both models are trained "
        f"for {arguments.steps} steps of {arguments.tokens:,} tokens with a learning rate of "
        f"{arguments.lr}: the base "
        f"at {length} tokens, the longer one at {contexts.points[-1].context}. The last column "
        "is paired by token.\n"
    )
    yield (
        f"| context | longer model | base | longer model against the base at {length} "
        "|\n|---:|---:|---:|---:|"
    )
    for point in contexts.points:
        against = f"x {_loss(point.against_base)}"
        yield f"| {point.context} | {_loss(point.loss)} | {_loss(point.base)} | {against} |"


def _loss(loss: Estimate | None) -> str:
    return NUMBERS.perplexity(loss) if loss else ""


def main() -> None:
    """Write the text, train both models, and write the page."""
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
    arguments = parser.parse_args()
    out, seed = arguments.out, arguments.seed
    out.mkdir(parents=True, exist_ok=True)
    plan = plan_model(open_model(CheckpointRef(arguments.model)), Resize(arguments.to))
    lengths = plan.max_len_before, plan.max_len_after
    resized = resize(arguments.model, lengths[1], output=out / "resized", force=True).output
    tokenizer = AutoTokenizer.from_pretrained(resized)
    source = python_documents(), lambda text: len(tokenizer(text)["input_ids"]), lengths[0]
    data = write(out / "train.jsonl", documents(*source, TRAINED_ON, seed))
    measured = write(out / "measured.jsonl", documents(*source, MEASURED, seed + 1))
    settings = {"steps": arguments.steps, "lr": arguments.lr, "seed": seed, "trainable": "all"}
    base, longer = (
        train(
            model,
            data,
            output=out / f"trained-{length}",
            batch_size=arguments.tokens // length,
            save="last",
            force=True,
            **settings,
        ).output
        for model, length in zip((arguments.model, resized), lengths, strict=True)
    )
    contexts = evaluate(longer, measured, base=str(base), measure="context").contexts
    assert contexts is not None
    text = "\n".join(page(contexts, lengths[0], arguments)) + "\n"
    (out / "long_range.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
