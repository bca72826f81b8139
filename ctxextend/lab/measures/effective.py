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
    groups = list(open_trials(reader, texts))
    score = partial(Score, model=reader.name, measure="effective", reading=ONE_PASS)
    scores = list[Score]()
    of_first = []  # whether the questions of the first group are answered, by length and task
    for group in groups:
        for length in group.lengths:
            answers = [group.read(length, index) for index in range(group.texts)]
            if reader.is_dry:
                continue
            own = list[Score]()
            of_length = partial(score, length=length, tokens=length, unit=TRIALS)
            for task, chance in group.chances.items():
                found = np.concatenate([one[task] for one in answers])
                own.append(of_length(name=task, values=[*found[:, None]], chance=chance))
                for index, part in enumerate(pairwise(DEPTHS)):
                    inside = found[group.ranges == index, None]
                    own.append(of_length(name=task, values=[*inside], part=part, chance=chance))
                if group is groups[0]:
                    of_first.append(found)
            scores += own
            if length == group.lengths[0] and not is_above_chance(own):
                break
    if reader.is_dry:
        return
    # A sample has the question with the same number of each length, so that differences between
    # lengths do not count as chance.
    unread = len(groups[0].lengths) * len(groups[0].chances) - len(of_first)
    samples = np.pad(np.stack(of_first, axis=1), ((0, 0), (0, unread)))
    yield score(name=FOUND, length=texts.length, tokens=texts.length, values=[*samples])
    yield from scores
