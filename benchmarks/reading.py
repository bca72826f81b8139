"""What benchmarks of models that read share: a checkpoint and a text for them, and what a process tells of itself."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import ENVIRONMENT, Cost, measure

__all__ = ["Readable", "make", "measure_telling"]

# Weights and words are random: they change neither time nor memory. The resized checkpoints bear their methods' names.
MAKE = """
import json, random, sys
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
import ctxextend
from ctxextend.checkpoints.source import bundled_source
folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
shape = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **asked["shape"])
GPT2LMHeadModel(shape).save_pretrained(folder / "source")
for name in ("tokenizer.json", "tokenizer_config.json"):
    (folder / "source" / name).write_bytes((bundled_source("tiny-gpt2").folder / name).read_bytes())
for method in asked["methods"]:
    ctxextend.resize(folder / "source", to=asked["length"], method=method, output=folder / method)
random.seed(0)
known = ["return", "the", "object", "of", "a", "new", "list", "is", "value", "file", "if", "name"]
for name, words in (("text.txt", asked["words"]), ("held-out.txt", asked["length"])):
    (folder / name).write_text(" ".join(random.choice(known) for _ in range(words)))
"""


@dataclass(frozen=True)
class Readable:
    """What is made to be read, and to read it.

    Attributes:
        length: Tokens that it reads at once.
        words: Of text.txt; a word is a token, or a little more. held-out.txt is as long as what is read at once.
        methods: How it is resized, each into a folder of its name.
        shape: What differs from GPT-2 small, by the keys of its config.
    """

    length: int
    words: int
    methods: Sequence[str] = ("linear",)
    shape: Mapping[str, int] = field(default_factory=dict)


def make(folder: Path, asked: Readable) -> None:
    """Make it, in a process of its own: what this one holds would count as the peak of all that it starts later."""
    subprocess.run(
        [sys.executable, "-c", MAKE, str(folder), json.dumps(vars(asked))],
        check=True,
        capture_output=True,
        env=ENVIRONMENT,
    )


def measure_telling(command: Sequence[str], folder: Path) -> tuple[Cost, Any]:
    """Run a process to its end; return what it took, and the JSON that it printed.

    Args:
        command: The process.
        folder: Where what it prints may stand.
    """
    told = folder / "told.json"
    cost = measure(["sh", "-c", f'exec "$@" > {shlex.quote(str(told))}', "sh", *command])
    return cost, json.loads(told.read_text())
