"""Vectors of texts by an encoder, pooled as its folder says, and how near they are to each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import stays_inside
from ctxextend.checkpoints.folder import load_modules
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import points_outside
from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.evaluation.eval_model import SENTENCE_MODULES, EvalModel, batches, prepare_inputs, reads_only_text

if TYPE_CHECKING:
    import torch

DEFAULT = "mean"  # what a folder that says nothing is pooled by
USE_ITSELF = "Measure it with sentence-transformers itself."

# The flags of older folders, in the order in which sentence-transformers joins the vectors of those that are set.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# sentence-transformers' own modules: those that make a vector, and those that leave its direction as it is.
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")


def _weighted_mean(states: "torch.Tensor") -> "torch.Tensor":
    weights = states.new_ones(states.shape[1]).cumsum(0)
    return weights @ states / weights.sum()


# The states of texts without padding, (texts, tokens, d), to their vectors, (texts, d).
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
    """Gives the vectors of texts by an encoder."""

    model: EvalModel
    poolings: tuple[str, ...]  # names of `POOLINGS`; the vectors of several are joined
    batch_size: int | None = None  # texts that are read at once; None is as many as hold 4,096 tokens

    def vectors(self, texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the vectors of texts, each of length 1, shape (texts, d).

        Texts are ids without special tokens, each of shape (k,), 1 ≤ k ≤ `model.max_text`.
        """
        import torch

        whole = [self.model.tokenizer.add_special_tokens(text) for text in texts]
        found: dict[int, NDArray[np.float32]] = {}
        for batch in batches([len(text) for text in whole], self.batch_size):
            ids = torch.from_numpy(np.stack([whole[i] for i in batch])).to(self.model.model.device)
            with torch.inference_mode():
                states = last_states(self.model, ids)
                pooled = torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)
            found |= zip(batch, _unit(pooled.cpu().numpy()), strict=True)
        return np.stack([found[i] for i in range(len(texts))])

    def mean_of_chunks(self, text: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the mean of the vectors of a text's chunks of `model.max_text` tokens, of length 1, shape (d,)."""
        size = self.model.max_text
        return _unit(self.vectors([text[start : start + size] for start in range(0, len(text), size)]).mean(axis=0))


def open_embedder(model: EvalModel, batch_size: int | None = None) -> Embedder:
    """Return an encoder's embedder, which pools as the encoder's folder says; it is tried on a short text."""
    embedder = Embedder(model, read_pooling(model.root), batch_size)
    with reads_only_text(model, "vectors"):
        embedder.vectors([model.tokenizer.encode("a")])
    return embedder


def last_states(model: EvalModel, ids: "torch.Tensor", position_ids: "torch.Tensor | None" = None) -> "torch.Tensor":
    """Return the last hidden states before a model's head, (b, w, d), float32; inputs are (b, w), int64."""
    # The part before a language model's head: with it there are logits, and no last states.
    output = model.model.base_model(**prepare_inputs(model.model, ids, position_ids))
    states: torch.Tensor = output.last_hidden_state.float()
    return states


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors, shape (…, d), at length 1; those of length 0 as they are."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def read_pooling(root: Path) -> tuple[str, ...]:
    """Return how a folder of sentence-transformers pools, by names of `POOLINGS`; the mean where it is none.

    A config has one flag for each way, or, since version 5.4, one key with the name of the way, or several.
    """
    path = root / SENTENCE_MODULES
    if not path.is_file():
        return (DEFAULT,)
    folders, other = [], []
    for module in load_modules(path):
        name = str(module.get("type"))
        if name.startswith("sentence_transformers."):  # versions have their classes in other places
            name = name.rpartition(".")[2]
        folders += [str(module.get("path", ""))] if name == "Pooling" else []
        other += [f"the module {name}"] if name not in KNOWN_MODULES else []
    if other or len(folders) != 1:
        what = f"{path} names {[*other, f'{len(folders)} Pooling modules'][0]}; vectors are made by a Transformer, one "
        raise UnsupportedModelError(f"{what}Pooling, and Normalize.", USE_ITSELF)
    if not stays_inside(folders[0]) or points_outside(root, root / folders[0]):
        raise CheckpointError(f"{path} puts its Pooling outside the folder, at {folders[0]}.", "Fetch it again.")
    path = root / folders[0] / "config.json"
    config: Mapping[str, Any] = load_object(path)
    flags = [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
    stated = config.get("pooling_mode") or flags or DEFAULT
    poolings = tuple(map(str, stated if isinstance(stated, list) else [stated]))
    if unknown := [mode for mode in poolings if mode not in POOLINGS]:
        what = f"{path} pools by {unknown[0]!r}, which is not known here; known are {', '.join(POOLINGS)}."
        raise UnsupportedModelError(what, USE_ITSELF)
    return poolings


def ranks(queries: NDArray[np.float32], documents: NDArray[np.float32], owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each query's own document among all by cosine, from 1, shape (q,).

    A document that is as near as the query's own, or whose nearness is not a number, comes before it: a model to which
    all documents are one finds none. Vectors of length 1 of queries, (q, d), and documents, (n, d); owners, (q,).
    """
    wide = documents.astype(np.float64)
    found = np.empty(len(queries), np.int64)
    for i, (query, owner) in enumerate(zip(queries, owners, strict=True)):
        # Summed row by row: a matrix product can give two equal documents cosines that differ in the last bit.
        near = (wide * query).sum(axis=1)
        found[i] = np.count_nonzero(~(near < near[owner]))
    return found
