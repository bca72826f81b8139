"""The text of a training: its token ids, the windows held out of it, and what its output's recipe says of both.

A file is known by its content: another file with the same text, as another format of it, is not recognised.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.recipe_file import YAML_ERRORS
from ctxextend.text_data import Paths, TextSource, check_paths, read_chunks

Ids = NDArray[np.int64]

TextKey = tuple[Any, Any]  # the size and SHA-256 of a file, or the name of a Hub dataset
# How a text was trained on: what was held out of the whole text that it is a part of (None: nothing), the tokens before
# it there, and the key or column of its documents.
TrainedText = tuple["HeldOut | None", int, str]

HASHED = 64 << 20  # bytes of a file that its fingerprint reads, at most: later changes that keep the size are not seen
# Windows that a recipe may hold out, at most: a stranger's may say so many that no memory holds them.
MAX_WINDOWS = 1_000_000
# What follows where a text was trained on and what was held out of it, if anything, cannot be told.
NO_HELD_OUT = (
    ", and no held-out part of that is known that is long enough: it looks better here than on new text. Name other"
)


@dataclass(frozen=True)
class HeldOut:
    """Which windows of a text are held out of training.

    The text is the token ids of all documents of all files, in their order, with a separator after each document. It is
    cut into windows from its first token on; of each `every` windows, the middle one is held out.
    """

    window: int  # tokens of a held-out window
    every: int  # of so many windows one is held out
    tokens: int  # of the text that training read; what follows them is neither trained on nor held out

    def __post_init__(self) -> None:
        numbers = self.window, self.every, self.tokens
        is_sane = all(type(number) is int and 0 < number < 2**40 for number in numbers)
        if not is_sane or self.tokens // self.window // self.every > MAX_WINDOWS:
            raise ValueError(f"no text is held out by {numbers}")

    @classmethod
    def for_text(cls, tokens: int, window: int) -> "HeldOut":
        """Hold out one window in 20; of a text of fewer than 80 windows four, or one in 5, but at least one."""
        windows = tokens // window
        return cls(window, min(20, max(5, windows // 4), windows), tokens)

    @property
    def spans(self) -> Ids:
        """The first token of each held-out window and the one after its last, shape (windows, 2)."""
        starts = np.arange(self.every // 2, self.tokens // self.window, self.every) * self.window
        return np.stack([starts, starts + self.window], axis=1)

    @property
    def trained_spans(self) -> Ids:
        """The same of the text between them, which is trained on, shape (windows + 1, 2)."""
        return np.concatenate([[0], self.spans.ravel(), [self.tokens]]).reshape(-1, 2)


def held_out_windows(ids: NDArray[Any], held_out: HeldOut, first_token: int = 0) -> list[NDArray[Any]]:
    """Return the windows held out of a text, or of one of its files, in which they lie whole, each of shape (window,).

    `ids`, shape (tokens,), are from `read_ids`: of the whole text, or of the file with this ``first_token``.
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
    """Yield the token ids of a text in pieces, each of shape (tokens,), `most` tokens in all, with no more text read.

    The separator follows each document. `files` gets the `fingerprint` of each file that is read, and ``first_token``.
    """
    read = 0
    for source in check_paths(paths):
        if files is not None:
            files.append(fingerprint(source) | {"first_token": read})
        for text, is_end in read_chunks([str(source)], text_field):
            ids = encode(text)
            if is_end and separator is not None:
                ids = np.append(ids, separator)
            ids = ids[: maximum - read]
            read += len(ids)
            yield ids
            if read >= maximum:
                return


def fingerprint(source: TextSource) -> dict[str, Any]:
    """Return a text file's ``name``, ``bytes`` and ``sha256`` (of its first 64 MiB); of a Hub dataset the name."""
    if not isinstance(source, Path):
        return {"name": source}
    with source.open("rb") as file:
        content = file.read(HASHED)
    return {"name": source.name, "bytes": source.stat().st_size, "sha256": hashlib.sha256(content).hexdigest()}


def text_key(facts: Mapping[str, Any]) -> TextKey:
    """Return what tells a text from others, of its `fingerprint`."""
    return facts.get("bytes"), facts.get("sha256", facts["name"])


def shared_texts(paths: Paths, others: Paths) -> list[TextSource]:
    """Return the files and datasets of the first argument whose content the other names too."""
    named = {text_key(fingerprint(source)) for source in check_paths(others)}
    return [source for source in check_paths(paths) if text_key(fingerprint(source)) in named]


def trained_texts(trainings: Iterable[Mapping[str, Any]]) -> dict[TextKey, set[TrainedText]]:
    """Return how a checkpoint was trained on each text: ``data``, ``text_field`` and ``held_out`` of each training.

    Of trainings that held out the same windows, as far as both read, it is the one that read least.
    """
    found = defaultdict[TextKey, dict[Any, TrainedText]](dict)
    for training in trainings:
        with suppress(*YAML_ERRORS):  # a stranger wrote it
            held_out = HeldOut(**training["held_out"]) if "held_out" in training else None
            for file in training["data"]:
                run = held_out, int(np.int64(file["first_token"])), training["text_field"]
                runs, alike = found[text_key(file)], (held_out and (held_out.window, held_out.every), *run[1:])
                runs[alike] = min(run, runs.get(alike, run), key=lambda one: one[0].tokens if one[0] else 0)
    return {key: {*runs.values()} for key, runs in found.items()}


def trained_on_warnings(model: str, texts: Iterable[object], then: str) -> list[str]:
    """Return the warning that a model was trained on texts, and what follows from that, where there are any."""
    names = [*map(str, texts)]
    return [f"{model} was trained on {', '.join(names[:3])}{' and others' * (len(names) > 3)}{then}"] * bool(names)


def split_documents(windows: Sequence[NDArray[Any]], separator: int | None) -> list[Ids]:
    """Return the documents, and parts of documents, in windows, each of shape (tokens,)."""
    found = list[Ids]()
    for window in windows:
        pieces = np.split(window, np.flatnonzero(window == (-1 if separator is None else separator)))
        found += [piece[piece != separator].astype(np.int64) for piece in pieces if (piece != separator).any()]
    return found
