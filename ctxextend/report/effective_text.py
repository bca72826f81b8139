"""What is said of how far a model reads: one function per clause."""

from collections.abc import Iterator

from ctxextend.errors import joined
from ctxextend.lab.effective_result import (
    OPTIONAL_TASKS,
    Cell,
    Effective,
    LengthResult,
    TaskResult,
)

EFFECTIVE_TITLE = "Answers found (%)"
TASK_NAMES = {
    "needle": "a needle, among words that are not in the text",
    "key": "one of many needles, among the values of the others",
    "tracking": "variable tracking, among the values of other chains",
    "passage": "the text with a passage, among texts that differ only in it",
    "document": "the text with a passage, among other texts with other passages",
}
SHORT_NAMES = {
    "needle": "needle",
    "key": "one of many needles",
    "tracking": "variable tracking",
    "passage": "a passage in the same text",
    "document": "a passage among other texts",
}


def effective_verdict(effective: Effective) -> str:
    """Return one sentence on how far a model reads, and what that leaves open."""
    if not effective.is_above_chance:
        return (
            "At chance in texts of every length: the model does not find what they hide, so no "
            "effective length is given."
        )
    sentences = [f"{_reads(effective)}."]
    uncertain = dict[int, None]()
    unread = dict[int, None]()
    for task in effective.tasks.values():
        if task.effective_length == effective.effective_length:
            uncertain |= dict.fromkeys(task.uncertain_lengths)
            unread |= dict.fromkeys(task.shorter_unread)
    if unread:
        listed = joined([f"{length:,}" for length in unread])
        sentences.append(f"Shorter texts of {listed} tokens are below the threshold.")
    if uncertain:
        listed = joined([f"{length:,}" for length in uncertain])
        sentences.append(
            f"The difference at {listed} tokens is within chance: raise --budget to measure more."
        )
    below = []
    for name, task in effective.tasks.items():
        if task.is_above_chance and task.effective_length is None:
            below.append(SHORT_NAMES[name])
    if below and effective.effective_length is not None:
        sentences.append(f"Below the threshold at every length: {joined(below)}.")
    if effective.left_out:
        sentences.append(f"{_left_out(effective)}.")
    return " ".join(sentences)


def _reads(effective: Effective) -> str:
    """Return how far a model reads, without a full stop."""
    of_all = f"of {effective.max_len:,} tokens"
    length = effective.effective_length or 0
    text = f"Reads {length:,} {of_all}"
    if effective.effective_length is None:
        # What was not found in the shortest texts.
        missed = effective.tasks.keys() - effective.read_tasks.keys() - OPTIONAL_TASKS
        name = next(name for name in effective.tasks if name in missed)
        shortest = effective.tasks[name].lengths[0]
        cell = worst_cell(shortest)
        text = (
            f"Reads less than {effective.lengths[0]:,} {of_all}: at {shortest.length:,} tokens, "
            f"{percent(cell.accuracy)} of the answers are found at a depth of {depth_range(cell)} "
            f"({SHORT_NAMES[name]}), and the threshold is {percent(effective.threshold)}"
        )
    for name, one in effective.read_tasks.items():
        if one > length:
            text += f"; {SHORT_NAMES[name]}: up to {one:,}"
    return text


def _left_out(effective: Effective) -> str:
    """Return which lengths were not measured, without a full stop."""
    lengths = joined([f"{length:,}" for length in effective.left_out])
    text = f"Not measured: {lengths} tokens"
    seconds = effective.left_out_seconds
    if seconds is not None:
        scale = 10 ** max(len(str(int(seconds))) - 2, 0)  # two digits are shown
        missing = f"{round(seconds / scale) * scale:,}"
        text += f", for which --budget {effective.budget} is about {missing} s too short"
    return text


def task_remark(task: TaskResult, effective: Effective) -> str:
    """Return what a task says about the length, as a sentence."""
    length = task.effective_length
    longest = task.lengths[-1].length
    is_complete = longest == effective.lengths[-1]
    if length is not None:
        text = f"Reads {length:,} of {effective.max_len:,} tokens"
        return f"{text}." if is_complete else f"{text}; longer texts were not asked about."
    level = "Below the threshold" if task.is_above_chance else "At chance"
    if is_complete:
        return f"{level} at every length."
    return f"{level} at {longest:,} tokens, so it was not asked about longer texts."


def left_out_remark(effective: Effective) -> Iterator[str]:
    """Yield a sentence on the lengths that were not measured, if there are any."""
    if effective.left_out:
        yield f"{_left_out(effective)}."


def task_facts(effective: Effective) -> Iterator[str]:
    """Yield what holds for all cells of the map, as sentences."""
    yield (
        f"A length is read if at least {percent(effective.threshold)} of the answers are found at "
        "every depth, above chance."
    )
    chances = {name: percent(task.chance) for name, task in effective.tasks.items()}
    if len(set(chances.values())) == 1:
        yield f"Chance level: {next(iter(chances.values()))}."
    else:
        parts = [f"{SHORT_NAMES[name]} {chance}" for name, chance in chances.items()]
        yield f"Chance levels: {joined(parts)}."


def share_at(task: TaskResult, length: int) -> str:
    """Return what was found at a length, with its interval; ``-`` if it was not measured."""
    for one in task.lengths:
        if one.length == length:
            lower, upper = one.interval
            return f"{percent(one.accuracy)} ({100 * lower:.0f} to {100 * upper:.0f})"
    return "-"


def worst_cell(result: LengthResult) -> Cell:
    """Return the depths at which least is found."""
    return min(result.cells, key=lambda cell: cell.accuracy)


def depth_range(cell: Cell) -> str:
    """Return a range of depths in percent: ``33-67 %``."""
    return f"{100 * cell.start:.0f}-{100 * cell.stop:.0f} %"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"
