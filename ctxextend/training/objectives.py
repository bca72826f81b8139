"""Training objectives: language modelling, distillation from the base, contrastive training."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.checkpoint import checkpoint

from ctxextend.errors import (
    CheckpointError,
    UnsupportedModelError,
)
from ctxextend.lab import eval_model
from ctxextend.lab.embedding import POOLINGS, last_states, read_pooling
from ctxextend.lab.eval_model import CAUSAL, EvalModel, prepare_inputs
from ctxextend.lab.position_ids import position_base
from ctxextend.lab.scorer import identity_lm_head, open_scorer
from ctxextend.training.memory import chunked_divergence, chunked_loss
from ctxextend.training.train_data import IGNORE_INDEX, plan_windows, select

# number of evenly spaced token ids on which the tokenizers of student and teacher must agree
SAMPLED_IDS = 512


class LanguageModeling(torch.nn.Module):
    """Mean loss of a causal or masked language model.

    If the LM head is separate, which the constructor checks on short texts, logits are computed in
    chunks. `position_ids`: whether `forward` is called with position ids. With a teacher, `weight`
    times the mean of `Teacher.errors` is added in training mode only, not to held-out losses.

    Source: TULIP, Najdenkoska et al. 2024, arXiv:2410.10034, distils a model with learned positions
        into its copy with rotary ones on short texts, then trains it on long ones. Doing both at
        once, in windows, is ours.
    """

    def __init__(
        self,
        model: EvalModel,
        teacher: EvalModel | None = None,
        weight: float = 1.0,
        *,
        position_ids: bool = False,
    ) -> None:
        super().__init__()
        self.kind = model.kind
        self.weight = weight
        self.teacher: Teacher | None = None
        if teacher is not None:
            self.teacher = Teacher(teacher, model, overlapping=False)
        self.model: Any = model.model
        self.has_separate_head = open_scorer(model).has_separate_head
        self.position_base = position_base(model) if position_ids else 0

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        position_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the mean loss in nats as ``loss``; all inputs are int64 of shape (b, w).

        Texts are not padded. Labels are not shifted for a causal model; those equal to
        `IGNORE_INDEX` are ignored. Position ids count from the first usable position; None means
        default positions. ``tokens`` is how many are predicted.
        """
        result = self._read(input_ids, position_ids)
        outputs = result.logits
        if self.kind == CAUSAL:
            outputs = outputs[:, :-1]
            labels = labels[:, 1:]
        loss = self._loss(outputs, labels)
        if self.training and self.teacher is not None:
            windows, targets = self.teacher.read(input_ids)
            errors = self.teacher.errors(result.hidden_states[-1].float(), targets, windows)
            loss = loss + self.weight * errors.mean()
        return {"loss": loss, "tokens": (labels != IGNORE_INDEX).sum()}

    @property
    def head(self) -> Any:
        """The LM head, or the identity if the model computes logits itself."""
        return _lm_head(self.model, self.has_separate_head)

    def _read(self, input_ids: Tensor, position_ids: Tensor | None) -> Any:
        """Return what the model returns, with the inputs of the head, (b, w, d), as logits.

        If a teacher needs them, it has hidden states.
        """
        if position_ids is not None:
            position_ids = position_ids + self.position_base
        inputs = prepare_inputs(self.model, input_ids, position_ids)
        if self.training and self.teacher is not None:
            inputs["output_hidden_states"] = True
        with identity_lm_head(self.head):
            return self.model(**inputs)

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss in nats of outputs, (b, w, d), with labels, (b, w)."""
        if self.has_separate_head:
            return chunked_loss(self.head, outputs, labels)
        logits = outputs.float().flatten(0, 1)
        return cross_entropy(logits, labels.flatten(), ignore_index=IGNORE_INDEX)


class TableDistillation(LanguageModeling):
    """Distils what a base predicts in windows into its own copy with another position table.

    The base reads windows from position 0 on. The student reads the same windows at other
    positions: those of a run with `Train.window`, or several of each text, shape (b, windows, w).
    A text without position ids it reads as a whole. The base then reads overlapping windows: as
    those of a causal model slide, each predicts what the one before has not; in a masked model,
    each token is predicted where it is most central. The loss is `share` times the mean
    Kullback-Leibler divergence of the student's predictions from the base's, and for the rest the
    cross entropy of the text. In evaluation mode it is the cross entropy, as in `LanguageModeling`.

    Source: distillation of predictions is that of Hinton et al. 2015, section 2,
        arXiv:1503.02531, at temperature 1, with their weighted sum of both losses. That a model
        teaches itself what a window means elsewhere is ours: whole texts teach what many rows mean
        together, windows what each means.
    """

    def __init__(
        self,
        model: EvalModel,
        base: EvalModel,
        share: float,
        *,
        tokens: int | None = None,
    ) -> None:
        """Check that the base can teach the student, and put it in evaluation mode.

        `tokens` are those of a whole text, without special tokens; None: only windows are read.

        Raises:
            CheckpointError: The two have other tokens.
            UnsupportedModelError: Only windows are read, and the student does not accept position
                ids.
        """
        self.windows: list[range] = []  # of whole texts
        has_position_ids = True
        if tokens is not None:
            size = min(base.max_text, tokens)
            self.windows = plan_windows(tokens, size, max(size // 2, 1))
            try:
                position_base(model)
            except UnsupportedModelError:
                has_position_ids = False
        self.moves_windows_of_texts = has_position_ids and tokens is not None
        super().__init__(model, position_ids=has_position_ids)
        check_vocabularies(model, base)
        self.base = base  # not a submodule: it is neither trained nor saved
        self.base_has_separate_head = open_scorer(base).has_separate_head
        self.share = share
        self.tokenizer = model.tokenizer

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        position_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the mean loss in nats as ``loss``; see `LanguageModeling.forward`."""
        if not self.training:
            return super().forward(input_ids, labels, position_ids)
        if position_ids is None:
            targets = self._targets_of_texts(input_ids)
        else:
            if input_ids.ndim == 3:  # the first window of each text, then the second, …
                input_ids = input_ids.transpose(0, 1).flatten(0, 1)
                labels = labels.transpose(0, 1).flatten(0, 1)
                position_ids = position_ids.transpose(0, 1).flatten(0, 1)
            targets = self._targets(input_ids)
        outputs = self._read(input_ids, position_ids).logits
        heads = (self.head, _lm_head(self.base.model, self.base_has_separate_head))
        loss = chunked_divergence(heads, outputs.flatten(0, 1), targets.flatten(0, 1))
        if self.share < 1:
            if self.kind == CAUSAL:
                outputs = outputs[:, :-1]
                labels = labels[:, 1:]
            loss = self.share * loss + (1 - self.share) * self._loss(outputs, labels)
        return {"loss": loss}

    def _targets(self, input_ids: Tensor) -> Tensor:
        """Return the inputs of the base's head for windows, (b, w), without gradients."""
        base: Any = self.base.model.to(input_ids.device).eval()
        inputs = prepare_inputs(base, input_ids)
        with torch.no_grad(), identity_lm_head(_lm_head(base, self.base_has_separate_head)):
            targets: Tensor = base(**inputs).logits
        return targets

    def _targets_of_texts(self, input_ids: Tensor) -> Tensor:
        """Return the inputs of the base's head for whole texts, each from one of its windows.

        Those of special tokens are of the first window that has them at the start or the end.
        """
        windows = self.windows
        parts = [select(input_ids, window, self.tokenizer) for window in windows]
        targets = self._targets(torch.cat(parts))
        targets = targets.view(len(windows), -1, *targets.shape[1:])
        borders = central_borders(windows, is_tie_first=False)
        if self.kind == CAUSAL:
            borders = [0, *(window.stop for window in windows)]
        before = len(self.tokenizer.before)
        after = targets.shape[2] - len(self.tokenizer.after)
        merged = merge(targets, windows, borders, before)
        return torch.cat([targets[0, :, :before], merged, targets[-1, :, after:]], dim=1)


def _lm_head(model: Any, is_separate: bool) -> Any:
    """Return the LM head, or the identity if the model computes logits itself."""
    return model.get_output_embeddings() if is_separate else torch.nn.Identity()


class Teacher:
    """A base checkpoint that reads long texts in windows, without gradients.

    The target of a token is its last hidden state in the window in which it is most central, the
    first one of two; of a special token, the mean over all windows. Overlapping windows start half
    their length apart. The model is not a submodule of an objective, so its weights are neither
    trained nor saved.

    Source: `run_squad.py` of Devlin et al. 2018, arXiv:1810.04805, assigns tokens to windows by
        maximum context.
    """

    def __init__(self, teacher: EvalModel, student: EvalModel, *, overlapping: bool) -> None:
        """Check that the teacher can teach the student, and put it in evaluation mode.

        Raises:
            CheckpointError: The two have other tokens or another hidden size.
            UnsupportedModelError: One of them cannot compute hidden states from text only.
        """
        self.model = teacher
        self.tokenizer = student.tokenizer
        self.overlapping = overlapping
        teacher.model.eval()
        check_vocabularies(student, teacher)
        size = _hidden_size(student)
        expected = _hidden_size(teacher)
        if size != expected:
            message = (
                f"The hidden size of {student.name} is {size:,}, but that of {teacher.name} is "
                f"{expected:,}."
            )
            hint = f"Pass the base checkpoint of {student.name} with --base."
            raise CheckpointError(message, hint)

    def read(self, input_ids: Tensor) -> tuple[list[range], Tensor]:
        """Return the windows of texts, (b, w), and their states, (windows, b, s, d), in float32.

        States are those of special tokens too.
        """
        self.model.model.to(input_ids.device)
        length = self.model.max_text
        stride = max(length // 2, 1) if self.overlapping else length
        tokens = input_ids.shape[1] - self.tokenizer.num_special
        windows = plan_windows(tokens, length, stride)
        ids = torch.cat([select(input_ids, window, self.tokenizer) for window in windows])
        batches = torch.split(ids, max(eval_model.TOKENS_PER_BATCH // ids.shape[1], 1))
        with torch.no_grad():
            states = torch.cat([last_states(self.model, batch) for batch in batches])
        return windows, states.view(len(windows), -1, *states.shape[1:])

    def errors(self, states: Tensor, targets: Tensor, windows: list[range]) -> Tensor:
        """Return the mean squared error of each text, relative to its targets, shape (b,).

        It is that of the text's states, (b, w, d), over the mean square of the targets.
        """
        borders = central_borders(windows, is_tie_first=True)
        before = len(self.tokenizer.before)
        after = targets.shape[2] - len(self.tokenizer.after)
        special = targets.mean(dim=0)
        merged = merge(targets, windows, borders, before)
        merged = torch.cat([special[:, :before], merged, special[:, after:]], dim=1)
        return (states - merged).square().mean(dim=(1, 2)) / merged.square().mean(dim=(1, 2))


def central_borders(windows: list[range], *, is_tie_first: bool) -> list[int]:
    """Return the first token that is most central in each window, and the end of the text.

    A token that is as central in two windows belongs to the first or to the second one.
    """
    borders = [0]
    for window, following in pairwise(windows):
        borders.append((window.stop + following.start + is_tie_first) // 2)
    return [*borders, windows[-1].stop]


def merge(values: Tensor, windows: list[range], borders: list[int], before: int) -> Tensor:
    """Return the values of texts, (b, tokens, d), from those of windows, (windows, b, s, d).

    Each window has those from its border to the next one, and starts with `before` special tokens.
    """
    parts = []
    for inside, window, (first, stop) in zip(values, windows, pairwise(borders), strict=True):
        parts.append(inside[:, before + first - window.start : before + stop - window.start])
    return torch.cat(parts, dim=1)


class Distillation(torch.nn.Module):
    """Distils a base checkpoint, which reads windows, into a model that reads long texts.

    The base is the teacher, the model the student. The loss is that of `Teacher.errors`. For
    sentence encoders (`poolings`), the mean of 1 - cosine similarity of each window's embeddings is
    added. A window's embedding is pooled from its tokens and the special tokens around the text, as
    the teacher's is; with a pooling of one token, such as [CLS], one embedding is compared with the
    mean of all.

    Source: Dong et al. 2025, arXiv:2502.07365, keep an extended model's states close to the base
        model's on short texts; Zhang et al. 2025, arXiv:2503.20376, pull the embeddings of a long
        text's chunks towards the teacher's. Targets from overlapping windows are specific to
        ctxextend.
    """

    def __init__(
        self,
        student: EvalModel,
        teacher: EvalModel,
        poolings: tuple[str, ...] = (),
        *,
        position_ids: bool = False,
    ) -> None:
        super().__init__()
        self.model: Any = student.model
        self.student = student
        self.teacher = Teacher(teacher, student, overlapping=True)
        self.poolings = poolings
        self.position_base = position_base(student) if position_ids else 0

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the mean loss of texts, int64 of shape (b, w), as ``loss``.

        Only the student uses position ids.
        """
        if position_ids is not None:
            position_ids = position_ids + self.position_base
        states = last_states(self.student, input_ids, position_ids)
        windows, targets = self.teacher.read(input_ids)
        loss = self.teacher.errors(states, targets, windows)
        if self.poolings:
            selected = [select(states, window, self.student.tokenizer) for window in windows]
            embeddings = torch.stack([self._pool(part) for part in selected])
            target_embeddings = torch.stack([self._pool(part) for part in targets])
            similarity = cosine_similarity(embeddings, target_embeddings, dim=-1)
            loss = loss + 1 - similarity.mean(dim=0)
        return {"loss": loss.mean()}

    def _pool(self, states: Tensor) -> Tensor:
        return torch.cat([POOLINGS[name](states) for name in self.poolings], dim=-1)


class Contrastive(torch.nn.Module):
    """Loss of finding the positive of each anchor among all texts of a batch.

    It is sentence-transformers' `MultipleNegativesRankingLoss`; activations of micro-batches are
    computed again in the backward pass. With a teacher, `weight` times the mean of 1 - cosine
    similarity between both models' embeddings of the anchors is added in training mode only.

    Source: in-batch negatives of Henderson et al. 2017, section 4.4, arXiv:1705.00652; recomputing
        as Gao et al. 2021, arXiv:2101.06983. Distilling the embeddings of anchors, to keep those of
        short texts, is ours.
    """

    micro_batch_size = 1  # set after construction

    def __init__(
        self, student: EvalModel, teacher: EvalModel | None, weight: float, *, position_ids: bool
    ) -> None:
        from sentence_transformers.sentence_transformer import losses, modules

        super().__init__()
        self.model = student.model
        self.teacher = teacher
        self.weight = weight
        self.padding = student.tokenizer.tokenizer.pad_token_id or 0
        self.position_base = position_base(student) if position_ids else 0
        hidden_size = student.model.config.get_text_config().hidden_size
        self.pooling = modules.Pooling(hidden_size, read_pooling(student.root))
        self.ranking: Any = losses.MultipleNegativesRankingLoss(self.pooling)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> dict[str, Tensor]:
        """Return the mean loss in nats as ``loss`` of pairs of `PairDataset`, (b, texts, w)."""
        if position_ids is not None:
            position_ids = position_ids + self.position_base
        size = self.micro_batch_size
        embed: Any = self.embed
        if size < len(input_ids):
            embed = partial(checkpoint, self.embed, use_reentrant=False)
        inputs = [input_ids] if position_ids is None else [input_ids, position_ids]
        # All anchors, then all positives, …
        ordered = [values.transpose(0, 1).flatten(0, 1) for values in inputs]
        micro_batches = [torch.split(values, size) for values in ordered]
        embedded = [embed(self.model, *part) for part in zip(*micro_batches, strict=True)]
        anchors, *others = torch.split(torch.cat(embedded), len(input_ids))
        with torch.autocast(input_ids.device.type, enabled=False):  # similarities are float32, too
            loss: Tensor = self.ranking.compute_loss_from_embeddings([anchors, *others], None)
        if self.teacher is not None and self.training:
            teacher = self.teacher.model.to(input_ids.device).eval()
            with torch.no_grad():
                targets = self.embed(teacher, input_ids[:, 0, : self.teacher.max_len])
            loss = loss + self.weight * (1 - cosine_similarity(anchors, targets)).mean()
        return {"loss": loss}

    def embed(self, model: Any, ids: Tensor, position_ids: Tensor | None = None) -> Any:
        """Return a model's embeddings of texts, (b, d), as float32.

        `ids`, (b, w), are padded with `IGNORE_INDEX`.
        """
        mask = (ids != IGNORE_INDEX).long()
        width = int(mask.sum(dim=1).max())
        inputs = prepare_inputs(model, ids.where(mask > 0, self.padding), position_ids)
        inputs["attention_mask"] = mask
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                inputs[name] = value[:, :width]
        states = model.base_model(**inputs).last_hidden_state.float()
        return self.pooling(inputs | {"token_embeddings": states})["sentence_embedding"]


def check_vocabularies(student: EvalModel, teacher: EvalModel) -> None:
    """Check, on a sample of token ids, that a teacher has the tokens of its student.

    Raises:
        CheckpointError: It has others.
    """
    last = len(student.tokenizer.tokenizer) - 1
    sampled = np.linspace(0, last, SAMPLED_IDS).astype(np.int64)
    eval_model.check_same_tokens(student, teacher, sampled)


def _hidden_size(model: EvalModel) -> int:
    tokenizer = model.tokenizer
    ids = torch.from_numpy(tokenizer.add_special_tokens(tokenizer.encode("a")))
    with torch.no_grad(), eval_model.errors_as_unsupported(model, "states"):
        return int(last_states(model, ids.to(model.model.device)[None]).shape[-1])
