"""Whole processes measured in turn with what a user would run instead, and the ratio each must keep."""

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

# Without bytecode beside the modules, every start would compile them.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

CTXEXTEND = (sys.executable, "-m", "ctxextend")


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        seconds: Wall time.
        megabytes: Peak resident memory of the process, 10^6 bytes.
        counted: What the run says of itself, by name: tokens/s, a loss, ...
    """

    seconds: float
    megabytes: float
    counted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One promise: ours beside a peer's, and the ratio of their medians that must be kept.

    Attributes:
        measure: What was measured.
        unit: Of both sides' values: "s", "MB", "MB/s", "tokens/s".
        ours: A value of each round.
        peer: What a user would run instead.
        theirs: Its value of each round.
        most: The highest ratio ours / theirs allowed, or None.
        least: The lowest ratio ours / theirs allowed, or None.
    """

    measure: str
    unit: str
    ours: Sequence[float]
    peer: str
    theirs: Sequence[float]
    maximum: float | None = None
    minimum: float | None = None

    @property
    def ratio(self) -> float:
        """Median of ours over the median of theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within its limits."""
        return (self.maximum is None or self.ratio <= self.maximum) and (
            self.minimum is None or self.ratio >= self.minimum
        )

    @property
    def target(self) -> str:
        """The limits in words."""
        limits = (("≤", self.maximum), ("≥", self.minimum))
        return ", ".join(f"{sign} {limit:.3g} x" for sign, limit in limits if limit is not None)

    def to_json(self) -> dict[str, Any]:
        """Return all values, medians and the verdict."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        medians = {f"{side}_median": statistics.median(values) for side, values in sides.items()}
        verdict = {"ratio": self.ratio, "target": self.target, "is_met": self.is_met}
        return {"measure": self.measure, "unit": self.unit, "peer": self.peer, **sides, **medians, **verdict}


def python(code: str, *arguments: object) -> list[str]:
    """The command that runs some code in an interpreter of its own."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def measure(command: Sequence[object], stdout: int = subprocess.DEVNULL) -> Cost:
    """Run a process to its end.

    A child's peak includes what its parent held when it was started, so the benchmarks' own process imports neither
    numpy nor torch.

    Raises:
        SystemExit: The process failed; the message ends with what it said.
    """
    with tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=stdout, stderr=stderr, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        taken = time.perf_counter() - began
        if status:
            stderr.seek(0)
            said = stderr.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"failed: {shlex.join(map(str, command))[:200]}\n{said}")
    return Cost(taken, usage.ru_maxrss * 1024 / 1e6)


def measure_json(command: Sequence[object]) -> tuple[Cost, Any]:
    """Run a process to its end; return its cost and the JSON that it printed."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "stdout"
        with path.open("w") as stdout:
            cost = measure(command, stdout.fileno())
        return cost, json.loads(path.read_text())


def alternate(
    routes: Mapping[str, Callable[[], Cost]], rounds: int, before: Callable[[], object] = lambda: None
) -> list[list[Cost]]:
    """Run all routes in turn, so many times, so that a slow phase of the machine slows all of them.

    Args:
        routes: Each by its name.
        rounds: How often each runs.
        before: Called before each run, and not measured.

    Returns:
        The costs of each route, in the order of the routes.
    """
    results: list[list[Cost]] = [[] for _ in routes]
    for number in range(1, rounds + 1):
        for costs, route in zip(results, routes.values(), strict=True):
            before()
            costs.append(route())
        taken = ", ".join(f"{name} {costs[-1].seconds:.2f} s" for name, costs in zip(routes, results, strict=True))
        print(f"  round {number} of {rounds}: {taken}", file=sys.stderr, flush=True)
    return results
