"""A guided demo: the end of a text asks for a word from its start.

A line ``key: value`` is far before the question ``key:``. No window of the bundled checkpoint has
both, so it cannot answer; a longer one can. Training needs the extra `train`; without it, the demo
ends after the resize.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import bundled_source, resolve_source
from ctxextend.comparison.python_text import is_held_out, python_documents, write_documents
from ctxextend.errors import TrainingError
from ctxextend.evaluation.needle_text import NEEDLES_FORM, NeedleText, NeedleTexts
from ctxextend.evaluation.needles import find_words
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.plan.opened_model import identify_model
from ctxextend.planned import prepare_resize
from ctxextend.progress import Progress
from ctxextend.recipe import CheckpointRef, Resize

DEMO_SOURCE = "tiny-lookup"
DEMO_LENGTH = 512
LINES = 12  # that a text states, and is asked about
ASKED_TEXTS = 8
TRAINING_LINES = 24
TRAINING_TEXTS = 400
SHORTEST_TRAINING_TEXT = 300  # tokens
DEMO_STEPS = 150  # a minute on a CPU
SHOWN = 1  # the index of the question that is shown


@dataclass(frozen=True)
class Answers:
    """What a checkpoint answers: its likeliest next token."""

    name: str
    tokens: int  # that it reads, of the end of a text
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
    readers: tuple[Answers, ...]  # the base, the resized and, with the extra `train`, a trained one
    steps: int  # of training; 0 without the extra


def can_train() -> bool:
    """Return whether the extra `train` is installed."""
    try:
        import_module("ctxextend.training.parallel")
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
    planned = prepare_resize(identify_model(base, CheckpointRef(DEMO_SOURCE)), Resize(DEMO_LENGTH))
    window = planned.plan.max_len_before
    tokenizer = TextTokenizer.open(base.root)
    documents = python_documents()
    builder = _text_builder(tokenizer, filter(is_held_out, documents), LINES)
    texts = [builder.text(DEMO_LENGTH, index) for index in range(ASKED_TEXTS)]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        resized = _open(planned.execute(folder / "resized").output)
        checkpoints = [("base", base, window), ("resized", resized, DEMO_LENGTH)]
        if can_train():
            from ctxextend.training.start import train

            others = (text for text in documents if not is_held_out(text))
            training = _text_builder(tokenizer, others, TRAINING_LINES)
            data = write_documents(folder / "texts.jsonl", _training_texts(training, tokenizer))
            result = train(
                resized.root,
                data,
                DEMO_STEPS,
                output=folder / "trained",
                trainable="all",
                batch_size=4,
                seq_len=DEMO_LENGTH,
                save="last",
                progress=progress,
            )
            checkpoints.append(("trained", _open(result.output), DEMO_LENGTH))
        readers = tuple(
            _ask(name, checkpoint, tokenizer, texts, tokens, window)
            for name, checkpoint, tokens in checkpoints
        )
    shown = texts[0].questions[SHOWN]
    return Demo(
        source=DEMO_SOURCE,
        method=planned.plan.choice_of(planned.plan.tables[0]).name,
        max_len_before=window,
        max_len_after=DEMO_LENGTH,
        text=tokenizer.tokenizer.decode(texts[0].ids),
        question=tokenizer.tokenizer.decode(shown.ids).strip(),
        expected=tokenizer.tokenizer.decode([shown.answer]).strip(),
        readers=readers,
        steps=DEMO_STEPS if len(readers) > 2 else 0,
    )


def _open(folder: Path) -> Checkpoint:
    return open_checkpoint(resolve_source(folder))


def _text_builder(tokenizer: TextTokenizer, documents: Iterable[str], lines: int) -> NeedleTexts:
    haystack = np.concatenate(tokenizer.encode_all(list(documents)))
    words = find_words(tokenizer, DEMO_SOURCE, haystack, seed=0)
    return NeedleTexts(words, haystack, needles=lines, seed=0, form=NEEDLES_FORM)


def _training_texts(builder: NeedleTexts, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yield texts that end with all of their questions and answers."""
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


def _ask(
    name: str,
    checkpoint: Checkpoint,
    tokenizer: TextTokenizer,
    texts: Sequence[NeedleText],
    tokens: int,
    window: int,
) -> Answers:
    """Ask a checkpoint all questions about the last tokens of texts."""
    import torch

    from ctxextend.models.load import load

    model, _ = load(checkpoint, checkpoint.model_class)
    first = ""
    right: dict[bool, list[bool]] = {True: [], False: []}  # by whether the line is in the window
    for text in texts:
        questions = text.questions[:-1]  # the last line is next to its question
        rows = np.stack([np.concatenate([text.ids, asked.ids]) for asked in questions])
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(rows[:, -tokens:])).logits[:, -1]
        answers = logits.argmax(dim=-1).tolist()
        for asked, row, answer in zip(questions, rows, answers, strict=True):
            # The key is two tokens before its value.
            right[asked.answer in row[2 - window :]].append(answer == asked.answer)
        if not first:
            first = tokenizer.tokenizer.decode([answers[SHOWN]]).strip()
    return Answers(
        name=name,
        tokens=tokens,
        answer=first,
        beyond=float(np.mean(right[False])),
        within=float(np.mean(right[True])),
    )
