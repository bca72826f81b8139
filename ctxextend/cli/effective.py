"""How far models read, on the screen: maps of length and depth, and a table of several models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ctxextend.cli.tables import Cell, Page
from ctxextend.errors import joined

if TYPE_CHECKING:
    from ctxextend.evaluation.effective_result import Effective, LengthResult, TaskResult

# Heat map characters from 0 to 100 %.
UNICODE_SHADES = " \u2591\u2592\u2593\u2588"
ASCII_SHADES = " .:+#"
HEAT_CELL = 3  # width of a heat map cell in characters


def add_effective(
    page: Page, effective: "Effective", base_max_len: int | None, *, has_headline: bool
) -> None:
    """Add a map of each task that is above chance, and what the others tell.

    Args:
        page: The page.
        effective: What was measured.
        base_max_len: The base's context; longer lengths are marked with a star.
        has_headline: Whether the verdict comes first.
    """
    from ctxextend.report.effective_text import (
        EFFECTIVE_TITLE,
        TASK_NAMES,
        effective_verdict,
        task_facts,
        task_remark,
    )

    if has_headline:
        page.line()
        page.text("Effective context", "title")
        page.text(effective_verdict(effective), "right" if effective.effective_length else "")
    for name, task in effective.tasks.items():
        page.line()
        title = f"{name}: {TASK_NAMES[name]}"
        if task.is_above_chance:
            page.text(f"{EFFECTIVE_TITLE}, {title}", "title")
            _add_map(page, task, effective, base_max_len)
        else:
            page.text(title, "title")
        is_said = len(effective.tasks) == 1  # by the verdict
        if not is_said:
            page.text(task_remark(task, effective))
    page.line()
    page.text(" ".join(task_facts(effective)))
    if effective.is_above_chance and _has_longer(effective, base_max_len):
        page.text("* longer than the base's context.")


def _has_longer(effective: "Effective", base_max_len: int | None) -> bool:
    return base_max_len is not None and effective.lengths[-1] > base_max_len


def _add_map(
    page: Page, task: "TaskResult", effective: "Effective", base_max_len: int | None
) -> None:
    from ctxextend.report.effective_text import depth_range

    header = ["depth"]
    for one in task.lengths:
        is_longer = base_max_len is not None and one.length > base_max_len
        header.append(f"{one.length:,}*" if is_longer else f"{one.length:,}")
    rows = list[list[Cell]]()
    for index, cell in enumerate(task.lengths[0].cells):
        shares = [one.cells[index].accuracy for one in task.lengths]
        rows.append([depth_range(cell), *(_heat(page, share, effective) for share in shares)])
    rows.append(["all", *(f"{100 * one.accuracy:.0f}" for one in task.lengths)])
    rows.append(["95 %", *map(_interval, task.lengths)])
    rows.append(["trials", *(str(one.trials) for one in task.lengths)])
    page.table(header, rows)


def _interval(result: "LengthResult") -> str:
    lower, upper = result.interval
    return f"{100 * lower:.0f}-{100 * upper:.0f}"


def _heat(page: Page, share: float, effective: "Effective") -> Cell:
    shades = UNICODE_SHADES if page.unicode else ASCII_SHADES
    shade = shades[round(share * (len(shades) - 1))]
    style = "right" if share >= effective.threshold else "faint"
    return f"{shade * HEAT_CELL} {100 * share:3.0f}", style


def add_effective_lengths(page: Page, results: "Mapping[str, Effective]", row_type: str) -> None:
    """Add a table of how far several models read, by name: one for each task."""
    from ctxextend.report.effective_text import SHORT_NAMES, TASK_NAMES, left_out_remark

    if page.lines[-1]:  # without notes on the columns above, the last line is empty
        page.line()
    longest = next(iter(results.values())).max_len
    page.text(f"Effective context, of {longest:,} tokens", "title")
    page.table([row_type, "reads"], [[name, _overall(one)] for name, one in results.items()])
    page.text("Answers found (%) at the worst depth", "title")
    above_chance = [
        task
        for task in _tasks_of(results)
        if any(task in one.tasks and one.tasks[task].is_above_chance for one in results.values())
    ]
    lengths = sorted({length for one in results.values() for length in one.lengths})
    for task in above_chance:
        rows = [
            [name, *_worst_by_length(one.tasks.get(task), lengths), _reads(one.tasks.get(task))]
            for name, one in results.items()
        ]
        page.text(f"{task}: {TASK_NAMES[task]}")
        page.table([row_type, *(f"{length:,}" for length in lengths), "reads"], rows)
    at_chance = [SHORT_NAMES[task] for task in _tasks_of(results) if task not in above_chance]
    if at_chance:
        page.text(f"Every {row_type} is at chance: {joined(at_chance)}.")
    for remark in left_out_remark(next(iter(results.values()))):  # all read the same texts
        page.text(remark)


def _tasks_of(results: "Mapping[str, Effective]") -> list[str]:
    return list(dict.fromkeys(task for one in results.values() for task in one.tasks))


def _worst_by_length(task: "TaskResult | None", lengths: Sequence[int]) -> list[str]:
    from ctxextend.report.effective_text import worst_cell

    if task is None:
        return ["-"] * len(lengths)
    shares = {one.length: f"{100 * worst_cell(one).accuracy:.0f}" for one in task.lengths}
    return [shares.get(length, "-") for length in lengths]


def _overall(effective: "Effective") -> str:
    return _how_far(
        effective.effective_length, effective.lengths[0], is_above=effective.is_above_chance
    )


def _reads(task: "TaskResult | None") -> str:
    if task is None:
        return "-"
    return _how_far(task.effective_length, task.lengths[0].length, is_above=task.is_above_chance)


def _how_far(length: int | None, shortest: int, *, is_above: bool) -> str:
    if not is_above:
        return "at chance"
    if length is None:
        return f"< {shortest:,}"
    return f"{length:,}"
