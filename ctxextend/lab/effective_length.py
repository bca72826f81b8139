"""How far a model reads, from its scores of the measure `effective`.

*Effective length*, as in RULER (arXiv:2404.06654, section 4): the largest length at which a model
is above a threshold, here at every depth. Of at least eight trials, the threshold is above chance.
"""

from collections.abc import Iterable, Sequence

from ctxextend.errors import joined
from ctxextend.lab.scores import Score, select
from ctxextend.lab.statistics import binomial_tail

THRESHOLD = 0.75  # share of answers found
# A task is above chance if guessing finds as many answers with a lower probability than this. It is
# low because trials of one text are not quite independent.
VERY_UNLIKELY = 0.001
FOUND = "found"  # name of the score of all tasks


def is_above_chance(scores: Iterable[Score]) -> bool:
    """Whether a model is above chance in any task at any length."""
    for score in select(scores, part=None):
        if score.chance is not None:
            found = round(score.mean * score.samples)
            if binomial_tail(found, score.samples, score.chance) < VERY_UNLIKELY:
                return True
    return False


def effective_lengths(scores: Sequence[Score]) -> dict[str, int | None]:
    """Return the largest length that is read, by task; None if none is."""
    lengths = dict[str, int | None]()
    for score in select(scores, part=None):
        if score.name == FOUND:
            continue
        lengths.setdefault(score.name, None)
        depths = select(scores, name=score.name, length=score.length)
        if all(one.mean >= THRESHOLD for one in depths):
            lengths[score.name] = score.length  # the longest one is last
    return lengths


def effective_length(scores: Sequence[Score]) -> int | None:
    """Return the smallest effective length of all tasks; None if one has none."""
    lengths = effective_lengths(scores).values()
    return min((length or 0 for length in lengths), default=0) or None


def effective_text(scores: Sequence[Score]) -> str:
    """Return in a few sentences how far a model reads, and what that leaves open."""
    lengths = sorted({score.length for score in scores})
    if not is_above_chance(scores):
        return (
            f"Effective context: none, questions about texts of {lengths[0]:,} tokens are answered "
            "as by guessing."
        )
    by_task = effective_lengths(scores)
    tasks = [f"{task} {length:,}" if length else f"{task} none" for task, length in by_task.items()]
    reads = effective_length(scores)
    far = f"{reads:,}" if reads else f"less than {lengths[0]:,}"
    text = (
        f"Effective context: {far} of {lengths[-1]:,} tokens ({', '.join(tasks)}), where "
        f"{100 * THRESHOLD:.0f} % of the answers are found at every depth."
    )
    unsure = []
    for length in lengths:
        if reads and length > reads:
            asked = [score for score in select(scores, length=length) if by_task.get(score.name)]
            if all(score.interval[1] >= THRESHOLD for score in asked if score.interval):
                unsure.append(f"{length:,}")
    if unsure:
        text += f" What it misses at {joined(unsure)} tokens may be chance."
    return text
