"""Contrastive training of sentence encoders: pairs of texts, and sentence-transformers' loss on a batch of them."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity
from torch.utils.checkpoint import checkpoint

from ctxextend.errors import DataError, TrainingError, counted
from ctxextend.evaluation.embedding import read_pooling, read_prompts
from ctxextend.evaluation.eval_model import EvalModel, TextTokenizer, position_base, prepare_inputs
from ctxextend.evaluation.search import read_rows
from ctxextend.held_out import Ids, fingerprint
from ctxextend.text_data import without_surrogates
from ctxextend.training.train_data import IGNORE_INDEX, ORDER, POSITION, SequenceDataset, SequenceSettings, Text

COLUMNS = ("anchor", "positive", "negative")  # sentence-transformers' names; the last one is optional
PASSAGE = 16, 128  # minimum and maximum tokens of a passage: the lengths of questions and of answers
REMOVED = 0.9  # share of passages that are removed from their document
PIECE = 8  # maximum length of a document, in context lengths; longer ones are cut into pieces


def read_pairs(
    paths: Sequence[str], tokenizer: TextTokenizer, pairs: list[list[int]], files: list[dict[str, Any]]
) -> Iterator[Ids]:
    """Yield the ids of texts, equal ones once; add to `pairs` the first token and the end of each text of a pair."""
    total, known = 0, dict[str, list[int]]()
    for path in paths:
        for where, row in read_rows(path, *COLUMNS[:2]):
            texts = [row[name] for name in COLUMNS if name in row]
            filled = sum(isinstance(text, str) and bool(text.strip()) for text in texts)
            if filled != (expected := len(pairs[0]) // 2 if pairs else len(texts)):
                message = f"{where} has {counted(filled, 'text')} instead of {expected}."
                raise DataError(message, "Fill all fields, and give every line a negative, or none.")
            for text in (text for text in texts if text not in known):
                ids = tokenizer.encode(without_surrogates(text))
                known[text] = [total, total := total + len(ids)]
                yield ids
            pairs.append([number for text in texts for number in known[text]])
        files.append(fingerprint(Path(path)) | {"first_token": 0})


class PairDataset(SequenceDataset):
    """Pairs of texts: a passage (anchor) and its document (positive), or those of `read_pairs`.

    An epoch takes each document or positive once, in whole batches, so that none is a negative of its anchor.
    Without windows, a text from `read_pairs` is read from its start.

    Source: the inverse cloze task of Lee et al. 2019, section 4, arXiv:1906.00300, which also removes 90 % of passages.
    """

    def __init__(
        self, text: Text, settings: SequenceSettings, count: int, *, shuffled: bool, model: EvalModel, batch: int
    ) -> None:
        self.tokens, self.spans, self.settings = *text, settings
        self.prompts = [model.tokenizer.encode(prompt) for prompt in read_prompts(model.root)]
        # Whether pairs are cut from documents, and the minimum tokens of a passage.
        self.is_cut, self.shortest = text.spans.shape[1] == 2, min(PASSAGE[0], settings.length // 8)
        if self.is_cut:
            inner, borders = text.spans.ravel(), np.flatnonzero(text.tokens == model.tokenizer.separator)
            pieces = np.arange(0, len(text.tokens), PIECE * settings.span)
            edges = np.unique(np.concatenate([inner, borders, borders + 1, pieces]))
            is_inside = np.searchsorted(inner, edges[:-1], side="right") % 2 == 1
            self.spans = np.stack([edges[:-1], edges[1:]], axis=1)[is_inside & (np.diff(edges) >= 2 * self.shortest)]
        firsts, self.positive = np.unique(self.spans[:, 0 if self.is_cut else 2], return_inverse=True)
        if (size := len(firsts)) < 2:
            message = f"The text {'to train on' if shuffled else 'held out'} has fewer than two documents or positives."
            raise DataError(message, f"Pass more text; documents require {2 * self.shortest} tokens.")
        self.epoch, self.count = (size - size % batch or size, count) if shuffled else (size, min(count, size))

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, padded with `IGNORE_INDEX`, and for windows ``position_ids``: both (texts, length)."""
        settings, length, largest = self.settings, self.settings.length, self.settings.span - self.settings.length
        draw, (epoch, index) = settings.generator(POSITION, number), divmod(number, self.epoch)
        chosen = settings.generator(ORDER, epoch).permutation(self.positive.max() + 1)[index]
        spans = draw.choice(self.spans[self.positive == chosen]).reshape(-1, 2)
        texts = [self.tokens[start:stop] for start, stop in spans]
        if self.is_cut:
            size = int(draw.integers(self.shortest, min(PASSAGE[1], len(texts[0]) // 2) + 1))
            passage = int(draw.integers(len(texts[0]) - size + 1)) + np.arange(size)
            texts = [texts[0][passage], np.delete(texts[0], passage) if draw.random() < REMOVED else texts[0]]
        ids, positions = np.full((len(texts), length), IGNORE_INDEX), np.tile(np.arange(length), (len(texts), 1))
        for row, text in enumerate(texts):
            before, first = [*settings.special_before, *self.prompts[min(row, 1)]], 0
            size = length - len(before) - len(settings.special_after)
            if row and (self.is_cut or largest):
                first = int(draw.integers(max(len(text) - size, 0) + 1))
                offset = draw.integers(1 - length, largest + length).clip(0, largest)
                positions[row, len(settings.special_before) :] += offset
            content = [*before, *text[first : first + size], *settings.special_after]
            ids[row, : len(content)] = content
        item = {"input_ids": ids} | ({"position_ids": positions} if largest else {})
        return {name: torch.from_numpy(values) for name, values in item.items()}


class Contrastive(torch.nn.Module):
    """Loss of finding the positive of each anchor among all positives and negatives of a batch, on all devices.

    It is sentence-transformers' `MultipleNegativesRankingLoss`; activations of micro-batches are computed again in the
    backward pass. With a teacher, `weight` times the mean of 1 - cosine similarity between both models' embeddings of
    the anchors is added in training mode only.

    Source: in-batch negatives of Henderson et al. 2017, section 4.4, arXiv:1705.00652; recomputing as Gao et al. 2021,
        arXiv:2101.06983. Distilling the embeddings of anchors, to keep those of short texts, is ours.
    """

    micro_batch_size = 1  # set after construction

    def __init__(self, student: EvalModel, teacher: EvalModel | None, weight: float, *, position_ids: bool) -> None:
        try:
            from sentence_transformers.sentence_transformer import losses, modules
        except ImportError as error:
            message = "--contrastive requires sentence-transformers 6, which is not installed."
            raise TrainingError(message, "pip install 'ctxextend[train]'") from error
        super().__init__()
        self.model, self.teacher, self.weight = student.model, teacher, weight
        self.padding = student.tokenizer.tokenizer.pad_token_id or 0
        self.position_base = position_base(student, "--window") if position_ids else 0
        self.pooling = modules.Pooling(student.model.config.get_text_config().hidden_size, read_pooling(student.root))
        self.ranking: Any = losses.MultipleNegativesRankingLoss(self.pooling)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the mean loss in nats as ``loss`` of pairs of `PairDataset`, (b, texts, w)."""
        size, pairs = self.micro_batch_size, len(input_ids)
        embed = self.embed if size >= pairs else partial(checkpoint, self.embed, use_reentrant=False)
        values: list[Any] = [input_ids] if position_ids is None else [input_ids, position_ids + self.position_base]
        parts = zip(*(value.transpose(0, 1).flatten(0, 1).split(size) for value in values), strict=True)
        embedded: Any = torch.cat([embed(self.model, *part) for part in parts])
        anchors, *others = embedded.split(pairs)
        self.ranking.gather_across_devices = self.training and torch.distributed.is_initialized()
        loss: torch.Tensor = self.ranking.compute_loss_from_embeddings([anchors, *others], None)
        if self.teacher is not None and self.training:
            teacher = self.teacher.model.to(input_ids.device).eval()
            with torch.no_grad():
                targets = self.embed(teacher, input_ids[:, 0, : self.teacher.max_len])
            loss = loss + self.weight * (1 - cosine_similarity(anchors, targets)).mean()
        return {"loss": loss}

    def embed(self, model: Any, ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> Any:
        """Return a model's embeddings of texts padded with `IGNORE_INDEX`, (b, w), as float32, (b, d)."""
        mask = (ids != IGNORE_INDEX).long()
        inputs = prepare_inputs(model, ids.where(mask > 0, self.padding), position_ids) | {"attention_mask": mask}
        width = int(mask.sum(dim=1).max())
        inputs |= {name: value[:, :width] for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        states = model.base_model(**inputs).last_hidden_state.float()
        return self.pooling(inputs | {"token_embeddings": states})["sentence_embedding"]
