"""Contrastive training of sentence encoders: pairs of texts, and sentence-transformers' loss on a batch of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity
from torch.utils.data import Dataset

from ctxextend.errors import DataError, TrainingError
from ctxextend.evaluation.embedding import read_pooling, read_prompts
from ctxextend.evaluation.eval_model import EvalModel, TextTokenizer, position_base, prepare_inputs
from ctxextend.evaluation.search import read_rows
from ctxextend.held_out import Ids, fingerprint
from ctxextend.text_data import without_surrogates
from ctxextend.training.train_data import ORDER, POSITION, SequenceSettings, Text

COLUMNS = ("anchor", "positive", "negative")  # sentence-transformers' names; the last one is optional
PASSAGE = 16, 128  # minimum and maximum tokens of a passage: the lengths of questions and of answers
REMOVED = 0.9  # share of passages that are removed from their document
PIECE = 8  # maximum length of a document, in context lengths; longer ones are cut into pieces


def read_pairs(
    paths: Sequence[str], tokenizer: TextTokenizer, pairs: list[list[int]], files: list[dict[str, Any]]
) -> Iterator[Ids]:
    """Yield the token ids of the texts of pairs, those of equal texts once.

    `pairs` receives the first token and the end of each text of a pair: anchor, positive and, if given, negative;
    `files` the `fingerprint` of each file.
    """
    total, known = 0, dict[str, list[int]]()
    for path in paths:
        for where, row in read_rows(path, *COLUMNS[:2]):
            texts = [row[name] for name in COLUMNS if name in row]
            if not all(isinstance(text, str) and text.strip() for text in texts):
                raise DataError(f"{where} has a field without text.", "Remove the line, or add the text.")
            if pairs and len(pairs[0]) != 2 * len(texts):
                raise DataError(f"{where} has {len(texts)} texts.", "Give every line a negative, or none.")
            for text in (text for text in texts if text not in known):
                ids = tokenizer.encode(without_surrogates(text))
                known[text] = [total, total := total + len(ids)]
                yield ids
            pairs.append([number for text in texts for number in known[text]])
        files.append(fingerprint(Path(path)) | {"first_token": 0})


class PairDataset(Dataset[dict[str, dict[str, torch.Tensor]]]):
    """Pairs of texts: a passage (anchor) and its document (positive), or those of `read_pairs`.

    A passage is a random part of a document, and usually removed from it. An epoch takes each document or positive
    once, in whole batches, so that none is a negative of the anchor it belongs to. Windows are placed like those of
    `SequenceDataset`; without windows, a text from `read_pairs` is read from its start.

    Source: the inverse cloze task of Lee et al. 2019, section 4, arXiv:1906.00300, which also removes 90 % of passages.
    """

    def __init__(
        self, text: Text, settings: SequenceSettings, model: EvalModel, batch: int, count: int, *, shuffled: bool
    ) -> None:
        self.text, self.settings, self.tokenizer, self.shuffled = text, settings, model.tokenizer, shuffled
        self.prompts, self.is_cut = read_prompts(model.root), text.spans.shape[1] == 2
        self.units, self.shortest = text.spans, min(PASSAGE[0], settings.length // 8)
        if self.is_cut:
            inner, borders = text.spans.ravel(), np.flatnonzero(text.tokens == model.tokenizer.separator)
            pieces = np.arange(0, len(text.tokens), PIECE * settings.span)
            edges = np.unique(np.concatenate([inner, borders, borders + 1, pieces]))
            is_inside = np.searchsorted(inner, edges[:-1], side="right") % 2 == 1
            kept = is_inside & (np.diff(edges) >= 2 * self.shortest)
            self.units = np.stack([edges[:-1], edges[1:]], axis=1)[kept]
        self.first, self.number = np.unique(self.units[:, 0 if self.is_cut else 2], return_inverse=True)
        if len(self.first) < 2:
            kind = f"documents of {2 * self.shortest} tokens" if self.is_cut else "positives"
            message = f"The text {'to train on' if shuffled else 'held out'} has fewer than two {kind}."
            raise DataError(message, "Pass more text: the loss compares the documents of a batch.")
        self.epoch = len(self.first) - len(self.first) % batch or len(self.first)
        self.count = count if shuffled else min(count, len(self.first))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, dict[str, torch.Tensor]]:
        """Return the text of each column: ``input_ids``, ``attention_mask`` and, for windows, ``position_ids``.

        All are int64 of shape (width,), which is the same for all texts of a column: they are padded.
        """
        settings, tokens, (epoch, index) = self.settings, self.text.tokens, divmod(number, self.epoch)
        draw, chosen = settings.generator(POSITION, number), number * len(self.first) // self.count
        if self.shuffled:
            chosen = settings.generator(ORDER, epoch).permutation(len(self.first))[index]
        texts = [tokens[start:stop] for start, stop in draw.choice(self.units[self.number == chosen]).reshape(-1, 2)]
        if self.is_cut:
            size = int(draw.integers(self.shortest, min(PASSAGE[1], len(texts[0]) // 2) + 1))
            first = int(draw.integers(len(texts[0]) - size + 1))
            rest = first + size * (draw.random() < REMOVED)
            texts = [texts[0][first : first + size], np.concatenate([texts[0][:first], texts[0][rest:]])]
        item, largest = dict[str, dict[str, torch.Tensor]](), settings.span - settings.length
        for name, text in zip(COLUMNS, texts, strict=False):
            is_anchor, start, offset = name == COLUMNS[0], 0, 0
            before = [*settings.special_before, *self.tokenizer.encode(self.prompts[not is_anchor])]
            special = len(before) + len(settings.special_after)
            width = min(settings.length, PASSAGE[1] + special) if is_anchor and self.is_cut else settings.length
            if not is_anchor and (self.is_cut or largest):
                start = int(draw.integers(max(len(text) - width + special, 0) + 1))
                offset = int(draw.integers(1 - width, largest + width).clip(0, largest))
            ids = np.concatenate([before, text[start : start + width - special], settings.special_after])
            padded, padding = np.arange(width), self.tokenizer.tokenizer.pad_token_id or 0
            values = {"input_ids": np.pad(ids, (0, width - len(ids)), constant_values=padding)}
            values["attention_mask"] = padded < len(ids)
            if largest:
                values["position_ids"] = padded + offset * (padded >= len(settings.special_before))
            item[name] = {key: torch.from_numpy(array.astype(np.int64)) for key, array in values.items()}
        return item


class TokenEmbeddings(torch.nn.Module):
    """A loaded encoder as a module of sentence-transformers."""

    def __init__(self, model: EvalModel, position_base: int = 0) -> None:
        super().__init__()
        self.model, self.position_base = model.model, position_base

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add ``token_embeddings``, (b, w, d), to ``input_ids``, ``attention_mask`` and maybe ``position_ids``."""
        positions = features["position_ids"] + self.position_base if "position_ids" in features else None
        inputs = prepare_inputs(self.model, features["input_ids"], positions)
        output = self.model.base_model(**inputs | {"attention_mask": features["attention_mask"]})
        return features | {"token_embeddings": output.last_hidden_state}


class Contrastive(torch.nn.Module):
    """Loss of finding the positive of each anchor among all positives and negatives of a batch.

    It is sentence-transformers' `CachedMultipleNegativesRankingLoss`, whose memory depends on its mini-batches instead
    of the batch; on several devices, `MultipleNegativesRankingLoss` on the texts of all. In training mode, with a
    teacher, `weight` times the mean of 1 - cosine similarity between both models' embeddings of the anchors is added.

    Source: in-batch negatives of Henderson et al. 2017, section 4.4, arXiv:1705.00652; gradient cache of Gao et al.
        2021, arXiv:2101.06983. Distilling the embeddings of anchors, to keep those of short texts, is ours.
    """

    def __init__(
        self, student: EvalModel, teacher: EvalModel | None, weight: float, devices: int, *, position_ids: bool
    ) -> None:
        try:
            from sentence_transformers.sentence_transformer import losses, modules
        except ImportError as error:
            message = "--contrastive requires sentence-transformers 6, which is not installed."
            raise TrainingError(message, "pip install 'ctxextend[train]'") from error
        super().__init__()
        self.model, self.teacher, self.weight = student.model, teacher, weight
        self.pooling = modules.Pooling(student.model.config.get_text_config().hidden_size, read_pooling(student.root))
        base = position_base(student, "--window") if position_ids else 0
        embedder: Any = torch.nn.Sequential(TokenEmbeddings(student, base), self.pooling)
        self.embedder = embedder
        self.cached = losses.CachedMultipleNegativesRankingLoss(embedder)
        gathered = losses.MultipleNegativesRankingLoss(embedder, gather_across_devices=True)
        self.training_loss = gathered if devices > 1 else self.cached

    def forward(self, **texts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the mean loss in nats as ``loss`` of a batch of `PairDataset`, whose tensors have shape (b, w)."""
        columns = [
            {name: value[:, : int(text["attention_mask"].sum(dim=1).max())] for name, value in text.items()}
            for text in texts.values()
        ]
        loss: torch.Tensor = (self.training_loss if self.training else self.cached)(columns, None)
        if self.teacher is not None and self.training:
            self.teacher.model.to(loss.device).eval()
            short = {name: value[:, : self.teacher.max_len] for name, value in columns[0].items()}
            with torch.no_grad():
                targets = self.pooling(TokenEmbeddings(self.teacher)(short))["sentence_embedding"]
            embeddings = self.embedder(short)["sentence_embedding"]
            loss = loss + self.weight * (1 - cosine_similarity(embeddings.float(), targets.float())).mean()
        return {"loss": loss}
