"""Read a text once, and answer several questions about it with the cache of that pass."""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import prepare_inputs, rope_types
from ctxextend.lab.scorer import UNKNOWN_VOCABULARY, Scorer, identity_lm_head
from ctxextend.models.load import first_trial_token

if TYPE_CHECKING:
    import torch

    # From the logits of a token, or what the LM head turns into them, and labels.
    ScoreLabels = Callable[[torch.Tensor, torch.Tensor], NDArray[np.float32]]

# The argument and the output that have the cache: of attention, before transformers 5.24, and of
# state-space models before that.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
LENGTH_DEPENDENT = {"dynamic", "longrope"}  # rope types
TRIAL_TEXT = 24  # tokens of the text, and of a question, by which a cache is tried
TRIAL_QUESTION = 3
TOLERANCES = {"float32": 1e-3}  # of logits with and without the cache, relative and absolute
TOLERANCE = 0.1  # in dtypes of lower precision


@dataclass(frozen=True)
class CacheUse:
    """How a model reads on from a cache."""

    name: str  # of the argument and the output that have it
    # Whether it reads only one token at a time, and without a mask, as state-space models do.
    is_stepwise: bool
    depends_on_length: bool = False  # whether what it caches depends on the tokens of a pass


@dataclass(frozen=True)
class CachedText:
    """A text that a causal model has read, without what followed it."""

    scorer: Scorer
    use: CacheUse
    cache: Any  # after the text
    tokens: int  # of the text

    def logits(self, questions: Sequence[Ids], labels: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """Return the logits of each question's labels after it, each of shape (labels,).

        All questions have the same length.
        """
        import torch
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        ids = torch.from_numpy(np.stack(questions)).to(self.scorer.model.model.device)
        # A copy for so many texts with the same start. Layers that replace their tensors, instead
        # of writing to them, are copied without these.
        layers = getattr(self.cache, "layers", ())
        kinds = {type(layer) for layer in layers}
        if layers and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
            cache = copy.copy(self.cache)
            cache.layers = [copy.copy(layer) for layer in layers]
        else:
            cache = copy.deepcopy(self.cache)
        if len(ids) > 1:
            cache.reorder_cache(torch.zeros(len(ids), dtype=torch.long))
        read = self.tokens
        for part in torch.split(ids, 1 if self.use.is_stepwise else ids.shape[1], dim=1):
            read += part.shape[1]
            inputs = {"input_ids": part, "use_cache": True, self.use.name: cache}
            if not self.use.is_stepwise:
                inputs["attention_mask"] = part.new_ones(len(part), read)
            output, score = run_model(self.scorer, inputs)
            cache = getattr(output, self.use.name)
        last = output.logits[:, -1]
        pairs = zip(last, labels, strict=True)
        return [score(states, torch.from_numpy(wanted)) for states, wanted in pairs]


def read_text(scorer: Scorer, use: CacheUse, ids: Ids, question: Ids) -> CachedText:
    """Run a model on a text, ids of shape (k,), and keep its cache.

    `question` is any question that follows: with frequencies that depend on the length, the text is
    read with as many tokens as it has with a question.
    """
    import torch

    model = scorer.model.model
    tokens = len(ids)
    if use.depends_on_length:
        ids = np.concatenate([ids, question])
    inputs = prepare_inputs(model, torch.from_numpy(ids)[None].to(model.device))
    output, _ = run_model(scorer, inputs | {"use_cache": True})
    cache = getattr(output, use.name)
    if use.depends_on_length:
        cache.crop(-len(question))
    return CachedText(scorer=scorer, use=use, cache=cache, tokens=tokens)


def run_model(scorer: Scorer, inputs: dict[str, Any]) -> "tuple[Any, ScoreLabels]":
    """Return the output of a pass, and a function from its logits of a token to those of labels.

    With a separate LM head, the output has hidden states as logits, and only the labels' rows of
    the head are applied to them, in float32: in bfloat16, many logits are equal. Without one, only
    the last token's logits are computed where the model can.
    """
    import torch

    model = scorer.model.model
    head = model.get_output_embeddings()
    if scorer.has_separate_head:
        with torch.inference_mode(), identity_lm_head(head):
            output = model(**inputs)
    else:
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            inputs = inputs | {"logits_to_keep": 1}
        with torch.inference_mode():
            output = model(**inputs)

    def score(states: "torch.Tensor", labels: "torch.Tensor") -> NDArray[np.float32]:
        labels = labels.to(states.device)
        with torch.inference_mode():
            if not scorer.has_separate_head:
                logits = states.float()[labels]
            else:
                logits = head.weight[labels].float() @ states.float()
                if head.bias is not None:
                    logits = logits + head.bias[labels].float()
        scored: NDArray[np.float32] = logits.cpu().numpy()
        return scored

    return output, score


def find_cache(scorer: Scorer) -> CacheUse | None:
    """Return how a causal model reads on from a cache; None if it cannot.

    It can if the logits of two questions about a text are those of passes without a cache.
    """
    model = scorer.model.model
    parameters = inspect.signature(model.forward).parameters
    names = [name for name in CACHE_NAMES if name in parameters]
    if not names:
        return None
    depends_on_length = not LENGTH_DEPENDENT.isdisjoint(rope_types(model.config))
    for is_stepwise in (False, True):
        use = CacheUse(name=names[0], is_stepwise=is_stepwise, depends_on_length=depends_on_length)
        # Model classes fail in various ways; they are read without a cache then.
        with suppress(Exception):
            if _has_same_logits(scorer, use):
                return use
    return None


def _has_same_logits(scorer: Scorer, use: CacheUse) -> bool:
    import torch

    model = scorer.model
    head = model.model.get_output_embeddings()
    vocab_size = int(getattr(head, "out_features", UNKNOWN_VOCABULARY))
    first = first_trial_token(vocab_size)
    ids = first + np.arange(TRIAL_TEXT + TRIAL_QUESTION, dtype=np.int64) % (vocab_size - first)
    text = ids[:TRIAL_TEXT]
    questions = [ids[TRIAL_TEXT:], ids[TRIAL_TEXT:][::-1].copy()]
    labels = np.arange(vocab_size)
    expected = []
    for question in questions:
        whole = torch.from_numpy(np.concatenate([text, question]))[None]
        inputs = prepare_inputs(model.model, whole.to(model.model.device))
        output, score = run_model(scorer, inputs)
        expected.append(score(output.logits[0, -1], torch.from_numpy(labels)))
    cached_text = read_text(scorer, use, text, questions[0])
    found = cached_text.logits(questions, [labels, labels])
    again = cached_text.logits(questions, [labels, labels])  # the cache must not have changed
    tolerance = TOLERANCES.get(model.precision, TOLERANCE)
    return all(
        np.allclose(logits, expected, rtol=tolerance, atol=tolerance) for logits in (found, again)
    )
