"""A guided demo: the end of a text asks for a word from its start.

A line ``key: value`` is far before the question ``key:``. No window of the bundled checkpoint has
both, so it cannot answer; a longer one can. Training needs the extra `train`; without it, the demo
ends after the resize.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.folder import open_checkpoint
from ctxextend.checkpoint.source import bundled_source, resolve_source
from ctxextend.errors import TrainingError
from ctxextend.held_out import Ids
from ctxextend.lab.needle_text import NeedleText, NeedleTexts
from ctxextend.lab.needles import find_words
from ctxextend.lab.python_text import is_held_out, python_documents
from ctxextend.lab.text_tokenizer import TextTokenizer
from ctxextend.models.devices import torch_threads
from ctxextend.opening.opened_model import identify_model
from ctxextend.plan import make_plan
from ctxextend.planned import planned_resize
from ctxextend.progress import Progress
from ctxextend.settings import CheckpointRef, Resize
from ctxextend.training.training_source import check_libraries

DEMO_SOURCE = "tiny-lookup"
DEMO_LENGTH = 512
LINES = 12  # that a text states, and is asked about
ASKED_TEXTS = 8
TRAINING_LINES = 24
TRAINING_TEXTS = 400
SHORTEST_TRAINING_TEXT = 300  # tokens
DEMO_STEPS = 150  # a minute on a CPU
BATCH = 8  # texts
SHOWN = 1  # the index of the question that is shown


@dataclass(frozen=True)
class Answers:
    """What a checkpoint answers: its likeliest next token."""

    name: str  # of the checkpoint: base, resized or trained
    answer: str  # to the question that is shown
    beyond: float  # share of right answers to lines outside the window of the base
    within: float  # share of right answers to lines in it


@dataclass(frozen=True)
class Demo:
    """The result of the demo."""

    source: str
    method: str  # of the resize
    max_len_before: int
    max_len_after: int
    text: str  # one of the texts, without a question
    question: str  # about it, ``key:``
    expected: str  # the right answer
    beyond: int  # questions about lines outside the window of the base
    within: int  # questions about lines in it
    readers: tuple[Answers, ...]  # the base, the resized and, with the extra `train`, a trained one
    steps: int  # of training; 0 without the extra


def can_train() -> bool:
    """Return whether the extra `train` is installed."""
    try:
        check_libraries()
    except TrainingError:
        return False
    return True


def run_demo(progress: Progress) -> Demo:
    """Resize the bundled checkpoint, train it if possible, and ask each one about texts.

    Args:
        progress: Called with the tokens of training.

    Raises:
        CtxextendError: A library is missing, or training fails.
    """
    for library in ("torch", "transformers"):  # else each would fail in its own way
        import_module(library)
    # The bundled checkpoint, even if the current folder has a folder of the same name.
    base = open_checkpoint(bundled_source(DEMO_SOURCE), None)
    planned = planned_resize(
        make_plan(identify_model(base, CheckpointRef(DEMO_SOURCE)), Resize(DEMO_LENGTH))
    )
    window = planned.plan.max_len_before
    tokenizer = TextTokenizer.open(base.root)
    documents = python_documents()
    builder = _text_builder(tokenizer, filter(is_held_out, documents), LINES)
    texts = [builder.text(DEMO_LENGTH, index) for index in range(ASKED_TEXTS)]
    rows, expected, in_window = _questions(texts, window)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        resized = _open(planned.execute(folder / "resized").output)
        checkpoints = [("base", base, window), ("resized", resized, DEMO_LENGTH)]
        if can_train():
            from ctxextend.training.start import train

            others = (text for text in documents if not is_held_out(text))
            training = _text_builder(tokenizer, others, TRAINING_LINES)
            data = folder / "texts.jsonl"
            rows_of_texts = ({"text": text} for text in _training_texts(training, tokenizer))
            data.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of_texts), "utf-8")
            result = train(
                resized.root,
                str(data),
                DEMO_STEPS,
                output=folder / "trained",
                trainable="all",
                batch_size=4,
                seq_len=DEMO_LENGTH,
                save="last",
                progress=progress,
            )
            checkpoints.append(("trained", _open(result.output), DEMO_LENGTH))
        answers = {
            name: _answer(checkpoint, rows[:, -tokens:]) for name, checkpoint, tokens in checkpoints
        }

    def word(token: int) -> str:
        return str(tokenizer.tokenizer.decode([token])).strip()

    readers = []
    for name, given in answers.items():
        is_right = given == expected
        beyond = float(is_right[~in_window].mean())
        within = float(is_right[in_window].mean())
        readers.append(Answers(name, word(given[SHOWN]), beyond=beyond, within=within))
    return Demo(
        source=DEMO_SOURCE,
        method=planned.plan.main_choice.name,
        max_len_before=window,
        max_len_after=DEMO_LENGTH,
        text=tokenizer.tokenizer.decode(texts[0].ids),
        question=tokenizer.tokenizer.decode(texts[0].questions[SHOWN].ids).strip(),
        expected=word(expected[SHOWN]),
        beyond=int((~in_window).sum()),
        within=int(in_window.sum()),
        readers=tuple(readers),
        steps=DEMO_STEPS if "trained" in answers else 0,
    )


def _open(folder: Path) -> Checkpoint:
    return open_checkpoint(resolve_source(folder))


def _text_builder(tokenizer: TextTokenizer, documents: Iterable[str], lines: int) -> NeedleTexts:
    haystack = np.concatenate(tokenizer.encode_all([*documents]))
    words = find_words(tokenizer, DEMO_SOURCE, haystack, seed=0)
    return NeedleTexts(words, haystack, seed=0, needles=lines)


def _training_texts(builder: NeedleTexts, tokenizer: TextTokenizer) -> Iterator[str]:
    random = np.random.default_rng(0)
    for index in range(TRAINING_TEXTS):
        answers = builder.needles * builder.words.needle_tokens
        length = int(random.integers(SHORTEST_TRAINING_TEXT, DEMO_LENGTH + 1))
        text = builder.text(length - answers, index)
        parts = [text.ids]
        for question in random.permutation(np.arange(builder.needles)):
            asked = text.questions[question]
            parts += [asked.ids, np.array([asked.answer]), builder.words.after]
        yield tokenizer.tokenizer.decode(np.concatenate(parts))


def _questions(texts: Sequence[NeedleText], window: int) -> tuple[Ids, Ids, NDArray[np.bool_]]:
    """Return texts with a question each, the right answers, and whether the window has the line."""
    rows = []
    answers = []
    in_window = []
    for text in texts:
        for asked in text.questions[:-1]:  # the last line is next to its question
            row = np.concatenate([text.ids, asked.ids])
            rows.append(row)
            answers.append(asked.answer)
            # The key is two tokens before its value.
            in_window.append(asked.answer in row[2 - window :])
    return np.stack(rows), np.array(answers), np.array(in_window)


def _answer(checkpoint: Checkpoint, rows: Ids) -> Ids:
    import torch

    from ctxextend.models.load import load

    model, _ = load(checkpoint, checkpoint.model_class)
    tokens = []
    with torch.inference_mode(), torch_threads(model, None):
        for batch in torch.split(torch.from_numpy(rows), BATCH):
            tokens.append(model(input_ids=batch).logits[:, -1].argmax(dim=-1).numpy())
    return np.concatenate(tokens)
