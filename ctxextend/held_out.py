"""Training text: its token ids, its held-out windows, and what recipes record about both."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.copy import reading
from ctxextend.recipe import YAML_ERRORS
from ctxextend.text_data import Paths, TextSource, check_paths, read_chunks

Ids = NDArray[np.int64]
# The size and SHA-256 of a file (so not its text in another format), or a dataset's name.
TextKey = tuple[Any, Any]
# Maximum bytes of a file to hash: later changes that keep the size go unnoticed.
HASHED_BYTES = 64 << 20
# Maximum held-out windows of a recipe: an untrusted one may state more than fit in memory.
MAX_HELD_OUT = 1_000_000
# Ends the warning about a text that was trained on if no held-out part of it can be used.
NO_HELD_OUT = (
    ", and no known held-out part of it is long enough: results look better than on new text. "
    "Pass other"
)


@dataclass(frozen=True)
class HeldOut:
    """Which windows of a text are held out of training.

    The text is the token ids of all documents of all files in order, with a separator after each
    document. It is split into windows from its first token; of every `every` windows, the middle
    one is held out.

    Raises:
        ValueError: A number is out of range.
    """

    window: int  # tokens per window
    every: int  # one of this many windows is held out
    tokens: int  # of the text that training read; later text is neither trained on nor held out

    def __post_init__(self) -> None:
        values = (self.window, self.every, self.tokens)
        is_valid = all(type(value) is int and 0 < value < 2**40 for value in values)
        if not is_valid or self.tokens // self.window // self.every > MAX_HELD_OUT:
            raise ValueError(f"invalid held-out windows: {values}")

    @classmethod
    def for_text(cls, tokens: int, window: int, at_least: int | None = None) -> "HeldOut":
        """Hold out one window in 20, but about four of fewer than 80.

        It is one in 5 of fewer than 20 windows, and at least one.

        Args:
            tokens: Tokens of the text.
            window: Tokens of a window.
            at_least: Windows to hold out of a text with twice as many or more, instead of four.
        """
        windows = tokens // window
        if at_least is not None:
            return cls(window, min(20, max(2, windows // at_least)), tokens)
        return cls(window, min(20, max(5, windows // 4), windows), tokens)

    @property
    def spans(self) -> Ids:
        """The first token and the end of each held-out window, shape (windows, 2)."""
        starts = np.arange(self.every // 2, self.tokens // self.window, self.every) * self.window
        return np.stack([starts, starts + self.window], axis=1)

    @property
    def trained_spans(self) -> Ids:
        """The first token and the end of each part between them, shape (windows + 1, 2).

        These parts are trained on.
        """
        return np.concatenate([[0], self.spans.ravel(), [self.tokens]]).reshape(-1, 2)


class TrainedText(NamedTuple):
    """How a checkpoint was trained on a file or dataset, which may be a part of a whole text."""

    held_out: HeldOut | None  # what was held out of the whole text; None: nothing
    first_token: int  # the number of tokens of the whole text before it
    text_field: str


def held_out_windows(
    ids: NDArray[Any], held_out: HeldOut, first_token: int = 0
) -> list[NDArray[Any]]:
    """Return the held-out windows of token ids, shape (window,) each.

    Args:
        ids: The ids of the text, or of one of its files, shape (tokens,).
        held_out: Which windows of the text are held out.
        first_token: The number of tokens of the text before `ids`.
    """
    spans = held_out.spans - first_token
    return [ids[start:stop] for start, stop in spans.tolist() if start >= 0 and stop <= len(ids)]


def read_ids(
    paths: Paths,
    text_field: str,
    encode: Callable[[str], Ids],
    separator: int | None,
    maximum: int,
    files: list[dict[str, Any]] | None = None,
) -> Iterator[Ids]:
    """Yield a text's token ids in chunks of shape (tokens,).

    Args:
        paths: Files, folders and Hub datasets.
        text_field: The key or column of the text.
        encode: Returns the ids of a text.
        separator: The id that follows each document, if any.
        maximum: The total number of tokens; nothing further is read.
        files: Receives the `fingerprint` and ``first_token`` of each file that is read.
    """
    count = 0
    for source in check_paths(paths):
        if files is not None:
            files.append(fingerprint(source) | {"first_token": count})
        for text, is_end in read_chunks([str(source)], text_field):
            ids = encode(text)
            if is_end and separator is not None:
                ids = np.append(ids, separator)
            ids = ids[: maximum - count]
            count += len(ids)
            yield ids
            if count >= maximum:
                return


def fingerprint(source: TextSource) -> dict[str, Any]:
    """Return the ``name``, ``bytes`` and ``sha256`` (of the first 64 MiB) of a text file.

    Of a Hub dataset, it is the name.
    """
    if not isinstance(source, Path):
        return {"name": source}
    with reading(source), source.open("rb") as file:
        content = file.read(HASHED_BYTES)
    return {
        "name": source.name,
        "bytes": source.stat().st_size,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def text_key(facts: Mapping[str, Any]) -> TextKey:
    """Return the part of a text's `fingerprint` that identifies it."""
    return facts.get("bytes"), facts.get("sha256", facts["name"])


def trained_texts(trainings: Iterable[Mapping[str, Any]]) -> dict[TextKey, set[TrainedText]]:
    """Return how a checkpoint was trained on each text.

    Of runs that held out the same windows of the text that all of them read, only the one that read
    least is returned.

    Args:
        trainings: The ``data``, ``text_field`` and ``held_out`` of each run. They come from
            recipes, which are untrusted: what is invalid is left out.
    """
    runs_of = defaultdict[TextKey, dict[Any, TrainedText]](dict)
    for training in trainings:
        with suppress(*YAML_ERRORS):
            held_out = HeldOut(**training["held_out"]) if "held_out" in training else None
            text_field = training["text_field"]
            windows = held_out and (held_out.window, held_out.every)
            for file in training["data"]:
                first_token = int(np.int64(file["first_token"]))
                run = TrainedText(held_out, first_token, text_field)
                runs = runs_of[text_key(file)]
                key = (windows, first_token, text_field)
                runs[key] = min(run, runs.get(key, run), key=_tokens_read)
    return {key: {*runs.values()} for key, runs in runs_of.items()}


def _tokens_read(run: TrainedText) -> int:
    return run.held_out.tokens if run.held_out else 0


def trained_on_warnings(model: str, texts: Iterable[object], consequence: str) -> list[str]:
    """Return a warning that a model was trained on texts, which ends with the consequence.

    Without texts, there is none.
    """
    names = [str(text) for text in texts]
    if not names:
        return []
    listed = ", ".join(names[:3])
    if len(names) > 3:
        listed += " and others"
    return [f"{model} was trained on {listed}{consequence}"]


def split_documents(windows: Sequence[NDArray[Any]], separator: int | None) -> list[Ids]:
    """Return the documents, or parts of documents, in windows, each of shape (tokens,)."""
    if separator is None:
        return [window.astype(np.int64) for window in windows if len(window)]
    documents = []
    for window in windows:
        for part in np.split(window, np.flatnonzero(window == separator)):
            document = part[part != separator]
            if len(document):
                documents.append(document.astype(np.int64))
    return documents
