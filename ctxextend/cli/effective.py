"""How far models read, on the screen: maps of length and depth, and a table of several models."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ctxextend.cli.console import Cell, Page
from ctxextend.errors import joined

if TYPE_CHECKING:
    from ctxextend.lab.effective_result import Effective, TaskResult

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
    has_longer = base_max_len is not None and effective.lengths[-1] > base_max_len
    if effective.is_above_chance and has_longer:
        page.text("* longer than the base's context.")


def _add_map(
    page: Page, task: "TaskResult", effective: "Effective", base_max_len: int | None
) -> None:
    from ctxextend.report.effective_text import depth_range

    shades = UNICODE_SHADES if page.unicode else ASCII_SHADES
    header = ["depth"]
    for one in task.lengths:
        is_longer = base_max_len is not None and one.length > base_max_len
        header.append(f"{one.length:,}*" if is_longer else f"{one.length:,}")
    rows = list[list[Cell]]()
    for index, cell in enumerate(task.lengths[0].cells):
        shares = [one.cells[index].accuracy for one in task.lengths]
        row: list[Cell] = [depth_range(cell)]
        for share in shares:
            shade = shades[round(share * (len(shades) - 1))]
            style = "right" if share >= effective.threshold else "faint"
            row.append((f"{shade * HEAT_CELL} {100 * share:3.0f}", style))
        rows.append(row)
    rows.append(["all", *(f"{100 * one.accuracy:.0f}" for one in task.lengths)])
    intervals = [one.interval for one in task.lengths]
    rows.append(["95 %", *(f"{100 * low:.0f}-{100 * high:.0f}" for low, high in intervals)])
    rows.append(["trials", *(str(one.trials) for one in task.lengths)])
    page.table(header, rows)


def add_effective_lengths(page: Page, results: "Mapping[str, Effective]", row_type: str) -> None:
    """Add a table of how far several models read, by name: one for each task."""
    from ctxextend.report.effective_text import SHORT_NAMES, TASK_NAMES, left_out_remark

    if page.lines[-1]:  # without notes on the columns above, the last line is empty
        page.line()
    longest = next(iter(results.values())).max_len
    page.text(f"Effective context, of {longest:,} tokens", "title")
    overall = list[list[str]]()
    for name, one in results.items():
        reads = _how_far(one.effective_length, one.lengths[0], is_above=one.is_above_chance)
        overall.append([name, reads])
    page.table([row_type, "reads"], overall)
    page.text("Answers found (%) at the worst depth", "title")
    lengths = sorted({length for one in results.values() for length in one.lengths})
    at_chance = list[str]()
    for task in dict.fromkeys(task for one in results.values() for task in one.tasks):
        tasks = {name: one.tasks.get(task) for name, one in results.items()}
        if not any(found is not None and found.is_above_chance for found in tasks.values()):
            at_chance.append(SHORT_NAMES[task])
            continue
        page.text(f"{task}: {TASK_NAMES[task]}")
        rows = [[name, *_worst_and_far(found, lengths)] for name, found in tasks.items()]
        page.table([row_type, *(f"{length:,}" for length in lengths), "reads"], rows)
    if at_chance:
        page.text(f"Every {row_type} is at chance: {joined(at_chance)}.")
    for remark in left_out_remark(next(iter(results.values()))):  # all read the same texts
        page.text(remark)


def _worst_and_far(task: "TaskResult | None", lengths: Sequence[int]) -> list[str]:
    from ctxextend.report.effective_text import worst_cell

    if task is None:
        return ["-"] * (len(lengths) + 1)
    shares = {one.length: f"{100 * worst_cell(one).accuracy:.0f}" for one in task.lengths}
    far = _how_far(task.effective_length, task.lengths[0].length, is_above=task.is_above_chance)
    return [*(shares.get(length, "-") for length in lengths), far]


def _how_far(length: int | None, shortest: int, *, is_above: bool) -> str:
    if not is_above:
        return "at chance"
    if length is None:
        return f"< {shortest:,}"
    return f"{length:,}"
