"""Read a text once, and answer several questions about it: at masks, or with the pass's cache."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.held_out import Ids
from ctxextend.lab.eval_model import TOKENS_PER_BATCH, prepare_inputs, rope_types
from ctxextend.lab.needle_text import Question
from ctxextend.lab.scorer import Scorer, identity_lm_head

if TYPE_CHECKING:
    import torch

Logits = NDArray[np.float32]  # of the labels of a question, shape (labels,)

# The argument and the output that have the cache; the second one before transformers 5.24.
CACHE_NAMES = ("cache", "past_key_values")
LENGTH_DEPENDENT = {"dynamic", "longrope"}  # rope types
MAX_ROWS = 4  # questions that are answered at once; more gain little on a CPU
TRIAL_TOKENS = 24  # of the text by which a cache is tried
TOLERANCES = {"float32": 1e-3}  # of logits with and without the cache, relative and absolute
TOLERANCE = 0.1  # in dtypes of lower precision


def find_cache(scorer: Scorer, text: Ids, questions: Sequence[Question]) -> str | None:
    """Return the argument with which a causal model reads on from a cache; None if it cannot.

    It can if the logits of some questions are those of passes without a cache.
    """
    parameters = inspect.signature(scorer.model.model.forward).parameters
    names = [name for name in CACHE_NAMES if name in parameters]
    text = text[:TRIAL_TOKENS]
    asked = questions[: MAX_ROWS + 1]  # the last one after those that may have changed the cache
    # Model classes fail in various ways; they are read without a cache then.
    with suppress(Exception):
        logits = [*answer_questions(scorer, names[0], text, asked)]
        tolerance = TOLERANCES.get(scorer.model.precision, TOLERANCE)
        expected = [*answer_questions(scorer, None, text, asked)]
        if np.allclose(logits, expected, rtol=tolerance, atol=tolerance):
            return names[0]
    return None


def answer_questions(
    scorer: Scorer, cache_name: str | None, text: Ids, questions: Sequence[Question]
) -> Iterator[Logits]:
    """Yield the logits of each question, which follows a text.

    Args:
        scorer: A causal model.
        cache_name: The argument, and the output, that have a cache; None: it reads the text once
            for each question.
        text: The text, shape (k,).
        questions: The questions, all equally long.
    """
    import torch

    if cache_name is None:
        for question in questions:
            yield from answer_in_pass(scorer, np.concatenate([text, question.ids]), {-1: question})
        return
    model = scorer.model.model
    # With frequencies that depend on the length, the text is read with as many tokens as it has
    # with a question.
    more = questions[0].ids
    if LENGTH_DEPENDENT.isdisjoint(rope_types(model.config)):
        more = more[:0]
    whole = torch.from_numpy(np.concatenate([text, more]))[None].to(model.device)
    output = _run_model(scorer, prepare_inputs(model, whole) | {"use_cache": True})
    cache_of_text = getattr(output, cache_name)
    if len(more):
        cache_of_text.crop(-len(more))
    rows = min(max(TOKENS_PER_BATCH // len(text), 1), MAX_ROWS)
    for start in range(0, len(questions), rows):
        asked = questions[start : start + rows]
        ids = torch.from_numpy(np.stack([question.ids for question in asked])).to(model.device)
        cache = copy.deepcopy(cache_of_text)
        if len(asked) > 1:
            cache.reorder_cache(ids.new_zeros(len(asked)))
        mask = ids.new_ones(len(ids), len(text) + ids.shape[1])
        inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": True, cache_name: cache}
        output = _run_model(scorer, inputs)
        yield from _label_logits(scorer, output.logits[:, -1], asked)


def answer_in_pass(scorer: Scorer, ids: Ids, questions: Mapping[int, Question]) -> Iterator[Logits]:
    """Return the logits of the questions in a text, by the index of the output that answers."""
    import torch

    model = scorer.model.model
    whole = torch.from_numpy(ids)[None].to(model.device)
    (outputs,) = _run_model(scorer, prepare_inputs(model, whole)).logits
    return _label_logits(scorer, outputs[[*questions]], [*questions.values()])


def _run_model(scorer: Scorer, inputs: dict[str, Any]) -> Any:
    """Return the output of a pass, with hidden states as logits if the LM head is separate.

    If it is not, only the last token's logits are computed where the model can.
    """
    import torch

    model = scorer.model.model
    head: Any = torch.nn.Identity()
    if scorer.has_separate_head:
        head = model.get_output_embeddings()
    elif "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs = inputs | {"logits_to_keep": 1}
    with torch.inference_mode(), identity_lm_head(head):
        return model(**inputs)


def _label_logits(
    scorer: Scorer, outputs: "torch.Tensor", questions: Sequence[Question]
) -> Iterator[Logits]:
    """Yield the logits of each question from an output of `_run_model`, shape (questions, d).

    Only the labels' rows of a separate LM head are applied, in float32: in bfloat16, many logits
    are equal.
    """
    import torch

    head = scorer.model.model.get_output_embeddings()
    for states, question in zip(outputs.float(), questions, strict=True):
        labels = torch.from_numpy(question.labels).to(states.device)
        with torch.inference_mode():
            if not scorer.has_separate_head:
                logits = states[labels]
            else:
                logits = head.weight[labels].float() @ states
                if head.bias is not None:
                    logits = logits + head.bias[labels].float()
        yield logits.cpu().numpy()
