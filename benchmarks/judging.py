"""The models on which methods are chosen, and the others on which they are judged.

What a method's constants are, and by which rule it chooses what is not constant, is decided on TUNING alone: models
that read the code of Python's standard library or Wikipedia, on code and Wikipedia that they never read. JUDGING
decides nothing: other seeds, other text (the library's documentation) and other kinds of models.
"""

from dataclasses import dataclass

__all__ = ["JUDGING", "TUNING", "Judge"]


@dataclass(frozen=True)
class Judge:
    """A model, how it is made, and what it is read with.

    Attributes:
        name: What it is called.
        made_by: Arguments of a script in recipes/from_scratch; empty for what is not made here.
        text: What is read: the held-out documents of a corpus of recipes/from_scratch/corpus.py, or a file.
        is_byte_level: Whether its tokens are bytes.
    """

    name: str
    made_by: str
    text: str
    is_byte_level: bool = True


BYTES = "tiny_gpt2.py --vocabulary 257 --batch 8 --dropout 0 --steps 3000"
# So that they attend to near neighbours after so short a training, as larger ones do.
WAVES = f"{BYTES} --waves --layers 3"

TUNING = (
    # 4 layers, 192 wide, of WikiText-2; read on the part of its validation split that it was not trained on.
    Judge("gpt2-byte-128", "", "wikitext-2, the last 32 % of the validation split"),
    Judge("byte-waves-code", f"{WAVES} --corpus code --seed 1", "code"),
    Judge("byte-sink-code", f"{WAVES} --corpus code --seed 5 --sink", "code"),
    Judge(
        "words-code",
        "tiny_gpt2.py --batch 8 --dropout 0 --steps 3000 --corpus code --seed 3",
        "code",
        is_byte_level=False,
    ),
    Judge("mini-bert-code", "mini_bert.py --corpus code --seed 4", "code"),
)

JUDGING = (
    Judge("tiny-gpt2", "tiny_gpt2.py", "docs", is_byte_level=False),
    Judge("byte-noise", f"{BYTES} --seed 11", "docs"),
    Judge("byte-waves", f"{WAVES} --seed 12", "docs"),
    Judge("byte-sink", f"{WAVES} --seed 13 --sink", "docs"),
    Judge("byte-256", f"{WAVES} --seed 14 --context 256", "docs"),
    Judge("mini-bert", "mini_bert.py", "docs"),
    # By the documents that are found, 512 -> 1,024 and 2,048.
    Judge("all-MiniLM-L6-v2", "", "docs, long documents", is_byte_level=False),
)
