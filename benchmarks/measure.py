"""Measure whole processes in turn with an alternative, and compare their ratio with a target."""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CTXEXTEND", "Cost", "Row", "alternate", "measure", "measure_json", "python"]

# With PYTHONDONTWRITEBYTECODE, every process would compile all modules again.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}

CTXEXTEND = (sys.executable, "-m", "ctxextend")


@dataclass(frozen=True)
class Cost:
    """Time and memory of one run.

    Attributes:
        seconds: Wall time.
        megabytes: Peak resident memory of the process, in 10^6 bytes.
        reported: What the run reported itself: tokens/s, a loss, ...
        cpu_seconds: CPU time of the process, in user and system mode.
    """

    seconds: float
    megabytes: float
    reported: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """One measure of ctxextend and of a baseline, and limits on the ratio of their medians.

    Attributes:
        measure: What was measured.
        unit: Of all values: "s", "MB", "MB/s", "tokens/s".
        values: Values of ctxextend, one per round.
        baseline: What a user would run instead.
        baseline_values: Values of the baseline, one per round.
        maximum: The highest allowed ratio values / baseline_values, or None.
        minimum: The lowest allowed ratio values / baseline_values, or None.
    """

    measure: str
    unit: str
    values: Sequence[float]
    baseline: str
    baseline_values: Sequence[float]
    maximum: float | None = None
    minimum: float | None = None

    @property
    def ratio(self) -> float:
        """Median of ctxextend divided by the median of the baseline."""
        return statistics.median(self.values) / statistics.median(self.baseline_values)

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within its limits."""
        return (self.maximum is None or self.ratio <= self.maximum) and (
            self.minimum is None or self.ratio >= self.minimum
        )

    @property
    def target(self) -> str:
        """The limits as text."""
        limits = (("≤", self.maximum), ("≥", self.minimum))
        return ", ".join(f"{sign} {limit:.3g} x" for sign, limit in limits if limit is not None)

    def to_json(self) -> dict[str, Any]:
        """Return all values, their medians and the verdict."""
        sides = {"ours": self.values, "theirs": self.baseline_values}
        medians = {f"{side}_median": statistics.median(values) for side, values in sides.items()}
        verdict = {"ratio": self.ratio, "target": self.target, "is_met": self.is_met}
        return {
            "measure": self.measure,
            "unit": self.unit,
            "peer": self.baseline,
            **sides,
            **medians,
            **verdict,
        }


def python(code: str, *arguments: object) -> list[str]:
    """Return a command that runs code in a new interpreter."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def measure(command: Sequence[object], stdout: int = subprocess.DEVNULL) -> Cost:
    """Run a process and measure its time and memory.

    A child's peak includes the memory of its parent at start, so this process imports neither numpy
    nor torch.

    Raises:
        SystemExit: The process failed; the message ends with its stderr.
    """
    with tempfile.TemporaryFile() as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command], stdout=stdout, stderr=stderr, env=ENVIRONMENT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            stderr.seek(0)
            tail = stderr.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"failed: {shlex.join(map(str, command))[:200]}\n{tail}")
    return Cost(
        seconds=seconds,
        megabytes=usage.ru_maxrss * 1024 / 1e6,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
    )


def measure_json(command: Sequence[object]) -> tuple[Cost, Any]:
    """Run a process; return its cost and the JSON that it printed."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "stdout"
        with path.open("w") as stdout:
            cost = measure(command, stdout.fileno())
        return cost, json.loads(path.read_text())


def alternate(
    routes: Mapping[str, Callable[[], Cost]],
    rounds: int,
    before: Callable[[], object] = lambda: None,
) -> list[list[Cost]]:
    """Run all routes in turn, `rounds` times, so that a slow phase of the machine affects all of
    them.

    Args:
        routes: Measured functions by name.
        rounds: Runs per route.
        before: Called before each run; not measured.

    Returns:
        The costs of each route, in the order of `routes`.
    """
    results: list[list[Cost]] = [[] for _ in routes]
    for number in range(1, rounds + 1):
        for costs, route in zip(results, routes.values(), strict=True):
            before()
            costs.append(route())
        times = ", ".join(
            f"{name} {costs[-1].seconds:.2f} s" for name, costs in zip(routes, results, strict=True)
        )
        print(f"  round {number} of {rounds}: {times}", file=sys.stderr, flush=True)
    return results
