"""Embed texts with an encoder, pooled as its sentence-transformers config says, for cosines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import MODULES
from ctxextend.checkpoint.filenames import stays_inside
from ctxextend.checkpoint.folder import load_modules
from ctxextend.checkpoint.json_edit import load_object
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import (
    EvalModel,
    batches,
    errors_as_unsupported,
    ignore,
    prepare_inputs,
)

if TYPE_CHECKING:
    import torch

DEFAULT_POOLING = "mean"  # of folders without a pooling config
USE_SENTENCE_TRANSFORMERS = "Evaluate this model with sentence-transformers."

# Flags of configs before version 5.4, in the order in which sentence-transformers concatenates
# poolings.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Modules of sentence-transformers that leave the direction of the pooled embedding unchanged.
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")


def _weighted_mean(states: "torch.Tensor") -> "torch.Tensor":
    weights = states.new_ones(states.shape[1]).cumsum(0)
    return weights @ states / weights.sum()


# From the hidden states of unpadded texts, (texts, tokens, d), to their embeddings, (texts, d).
POOLINGS: Mapping[str, "Callable[[torch.Tensor], torch.Tensor]"] = {
    "cls": lambda states: states[:, 0],
    "max": lambda states: states.amax(dim=1),
    "mean": lambda states: states.mean(dim=1),
    "mean_sqrt_len_tokens": lambda states: states.sum(dim=1) / states.shape[1] ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda states: states[:, -1],
}


@dataclass(frozen=True)
class Embedder:
    """An encoder with its pooling; embeddings have length 1."""

    model: EvalModel
    poolings: tuple[str, ...]  # names of `POOLINGS`; several are concatenated
    batch_size: int | None = None  # texts per batch; None: as many as fit 4,096 tokens

    def embed(
        self, texts: Sequence[Ids], advance: Callable[[int], None] = ignore
    ) -> NDArray[np.float32]:
        """Return the embeddings of texts, shape (texts, d).

        Texts are token ids without special tokens, each of shape (k,), 1 ≤ k ≤ `model.max_text`, or
        k = 0 if there are special tokens. `advance` is called with the tokens of each batch.
        """
        import torch

        inputs = [self.model.tokenizer.add_special_tokens(text) for text in texts]
        embeddings = dict[int, NDArray[np.float32]]()
        for batch in batches([len(text) for text in inputs], self.batch_size):
            ids = torch.from_numpy(np.stack([inputs[i] for i in batch])).to(self.model.model.device)
            with torch.inference_mode():
                states = last_states(self.model, ids)
                pooled = torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)
            embeddings |= zip(batch, normalize(pooled.cpu().numpy()), strict=True)
            advance(ids.numel())
        return np.stack([embeddings[i] for i in range(len(texts))])


def embed_chunks(
    embed: Callable[[Sequence[Ids]], NDArray[np.float32]], texts: Sequence[Ids], size: int
) -> list[NDArray[np.float32]]:
    """Return the embeddings of consecutive chunks of each text, each of shape (chunks, d).

    Args:
        embed: Returns the embeddings of texts.
        texts: Token ids without special tokens.
        size: Tokens of a chunk.
    """
    chunks = list[Ids]()
    ends = []
    for text in texts:
        chunks += [text[start : start + size] for start in range(0, max(len(text), 1), size)]
        ends.append(len(chunks))
    return np.split(embed(chunks), ends[:-1])


def mean_embeddings(
    chunks: Sequence[NDArray[np.float32]], texts: Sequence[Ids], size: int
) -> NDArray[np.float32]:
    """Return the normalized means of the embeddings of chunks, shape (texts, d).

    Chunks count by their tokens: a last chunk of a few tokens would distort a mean in which all
    count alike.
    """
    means = []
    for vectors, text in zip(chunks, texts, strict=True):
        starts = np.arange(0, max(len(text), 1), size)
        tokens = np.minimum(max(len(text), 1) - starts, size)
        means.append((vectors * tokens[:, None]).sum(axis=0))
    return normalize(np.stack(means))


def open_embedder(model: EvalModel, batch_size: int | None = None) -> Embedder:
    """Return an encoder's embedder, pooled as its folder states, after embedding a short text.

    Raises:
        CheckpointError: A file of its folder cannot be read.
        UnsupportedModelError: The pooling is unknown, or the model needs more than text.
    """
    poolings = read_pooling(model.root)
    embedder = Embedder(model=model, poolings=poolings, batch_size=batch_size)
    with errors_as_unsupported(model, "embeddings"):
        embedder.embed([model.tokenizer.encode("a")])
    return embedder


def last_states(
    model: EvalModel, ids: "torch.Tensor", position_ids: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Return a model's last hidden states, (b, w, d), float32, of inputs (b, w), int64."""
    # Of the base model, because a language model's output has logits instead of the last hidden
    # states.
    output = model.model.base_model(**prepare_inputs(model.model, ids, position_ids))
    states: torch.Tensor = output.last_hidden_state.float()
    return states


def normalize(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Scale vectors, shape (…, d), to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def read_pooling(root: Path) -> tuple[str, ...]:
    """Return the poolings of a sentence-transformers folder; other folders use the mean.

    Returns:
        Names of `POOLINGS`.

    Raises:
        CheckpointError: A file cannot be read, or one outside the folder is named.
        UnsupportedModelError: A module or a pooling is unknown.
    """
    path = root / MODULES
    if not path.is_file():
        return (DEFAULT_POOLING,)
    folder = _pooling_folder(path)
    is_inside = stays_inside(folder) and (root / folder).resolve().is_relative_to(root.resolve())
    if not is_inside:
        message = f"{path} points outside the folder: Pooling is at {folder}."
        raise CheckpointError(message, "Download it again.")
    path = root / folder / "config.json"
    config: Mapping[str, Any] = load_object(path)
    flags = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag) is True]
    stated = config.get("pooling_mode") or flags or DEFAULT_POOLING
    if not isinstance(stated, list):
        stated = [stated]
    poolings = tuple(map(str, stated))
    for mode in poolings:
        if mode not in POOLINGS:
            known = ", ".join(POOLINGS)
            message = f"{path} has the unknown pooling mode {mode!r}; known are {known}."
            raise UnsupportedModelError(message, USE_SENTENCE_TRANSFORMERS)
    return poolings


def _pooling_folder(path: Path) -> str:
    folders = []
    problems = []
    for module in load_modules(path):
        name = str(module.get("type"))
        if name.startswith("sentence_transformers."):  # the module of a class depends on versions
            name = name.rpartition(".")[2]
        if name == "Pooling":
            folders.append(str(module.get("path", "")))
        elif name not in KNOWN_MODULES:
            problems.append(f"the module {name}")
    if len(folders) != 1:
        problems.append(f"{len(folders)} Pooling modules")
    if problems:
        message = (
            f"{path} lists {problems[0]}; only Transformer, one Pooling, Normalize and Dropout are "
            "supported."
        )
        raise UnsupportedModelError(message, USE_SENTENCE_TRANSFORMERS)
    return folders[0]


def cosines(
    queries: NDArray[np.float32], documents: NDArray[np.float32]
) -> Iterator[NDArray[np.float64]]:
    """Yield the cosines of each query with all documents, shape (n,).

    Args:
        queries: Embeddings of length 1, shape (q, d).
        documents: Embeddings of length 1, shape (n, d).
    """
    exact = documents.astype(np.float64)
    # Row by row, because a matrix product can give two equal documents cosines that differ in the
    # last bit.
    for query in queries:
        yield (exact * query).sum(axis=1)


def read_prompts(root: Path) -> tuple[str, str]:
    """Return what a sentence-transformers folder states before queries and before documents.

    Source: `encode_query` and `encode_document` of sentence-transformers 6.2, which use no prompts
    of other names.

    Raises:
        CheckpointError: Its config cannot be read.
    """
    path = root / "config_sentence_transformers.json"
    if not path.is_file():
        return "", ""
    prompts = load_object(path).get("prompts") or {}
    return str(prompts.get("query") or ""), str(prompts.get("document") or "")
