"""How far a model reads: what it finds in texts of growing lengths, at several depths."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ctxextend.lab.effective_length import FOUND, is_above_chance
from ctxextend.lab.eval_model import CAUSAL, ENCODER, MASKED
from ctxextend.lab.measures import measure
from ctxextend.lab.scores import ONE_PASS, TRIALS, Score
from ctxextend.lab.trials import DEPTHS, open_trials

if TYPE_CHECKING:
    from ctxextend.lab.reader import Reader
    from ctxextend.lab.texts import Texts


@measure("Effective context", CAUSAL, MASKED, ENCODER)
def effective(reader: "Reader", texts: "Texts") -> Iterator[Score]:
    """Yield the share of answers found by task, length and depth, and before them in all.

    A model that is at chance in the shortest texts is not asked about longer ones.
    """
    if reader is texts.base:
        return
    trials = open_trials(reader, texts)
    score = partial(Score, model=reader.name, measure="effective", reading=ONE_PASS)
    scores = list[Score]()
    of_questions = []  # whether they are answered, by length and task
    for length in trials.lengths:
        answers = [trials.read(length, index) for index in range(trials.texts)]
        if reader.is_dry:
            continue
        of_length = partial(score, length=length, tokens=length, unit=TRIALS)
        for task, chance in trials.chances.items():
            found = np.concatenate([one[task] for one in answers])
            scores.append(of_length(name=task, values=[*found[:, None]], chance=chance))
            for index, part in enumerate(pairwise(DEPTHS)):
                inside = found[trials.ranges == index, None]
                scores.append(of_length(name=task, values=[*inside], part=part, chance=chance))
            of_questions.append(found)
        if length == trials.lengths[0] and not is_above_chance(scores):
            break
    if reader.is_dry:
        return
    # A sample has the question with the same number of each length, so that differences between
    # lengths do not count as chance.
    unread = len(trials.lengths) * len(trials.chances) - len(of_questions)
    samples = np.pad(np.stack(of_questions, axis=1), ((0, 0), (0, unread)))
    yield score(name=FOUND, length=texts.length, tokens=texts.length, values=[*samples])
    yield from scores
