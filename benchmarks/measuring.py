"""Whole processes measured in turn with their peers, and what each must reach beside its peer."""

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "ENVIRONMENT",
    "PROGRAM",
    "SHOWN",
    "START",
    "START_WITH_NUMPY",
    "Cost",
    "Row",
    "Target",
    "alternate",
    "apart",
    "at_least",
    "at_most",
    "less",
    "measure",
    "measured",
    "megabytes",
    "more",
    "python",
    "seconds",
    "shown",
    "within",
]

# An installed package has its bytecode beside it; an environment that forbids to write it would compile at every start.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

PROGRAM = (sys.executable, "-m", "ctxextend")

# What a start takes: an interpreter, the command line's framework, and numpy where tables are read.
START = "import typer, rich.console"
START_WITH_NUMPY = f"{START}, numpy"


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds of wall time, MB of memory at the peak, and what else was counted, by name."""

    seconds: float
    megabytes: float
    counted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What must be reached.

    Attributes:
        said: In words, such as "≥ 8 times less".
        reach: Gives the figure that is held to the limit, of the medians of ours and of the peer's.
        limit: That figure's limit.
        is_floor: Whether it must be reached, not kept below.
        unit: Of the figure: "x", "s", "MB".
    """

    said: str
    reach: Callable[[float, float], float]
    limit: float
    is_floor: bool
    unit: str


# What a row must reach that is held to nothing.
SHOWN = "-"


def less(times: float) -> Target:
    """Ours is so many times less than the peer's, or more times."""
    return Target(f"≥ {times:g} x less", lambda ours, peer: peer / ours, times, True, "x")


def at_most(times: float) -> Target:
    """Ours is at most so many times the peer's."""
    return Target(f"≤ {times:g} x", lambda ours, peer: ours / peer, times, False, "x")


def at_least(times: float) -> Target:
    """Ours, a speed, is at least so many times the peer's."""
    return Target(f"≥ {times:g} x", lambda ours, peer: ours / peer, times, True, "x")


def more(most: float, unit: str = "s") -> Target:
    """Ours is at most so much more than the peer's."""
    return Target(f"≤ + {most:g} {unit}", lambda ours, peer: ours - peer, most, False, unit)


def shown() -> Target:
    """Ours, a speed, is shown beside the peer's and held to nothing."""
    return Target(SHOWN, lambda ours, peer: ours / peer, 0.0, True, "x")


def within(most: float, unit: str = "MB") -> Target:
    """Ours is at most so much, whatever the peer's."""
    return Target(f"≤ {most:g} {unit}", lambda ours, peer: ours, most, False, unit)


@dataclass(frozen=True)
class Row:
    """One measure of the table.

    Attributes:
        measure: What was measured of what.
        unit: Of the values: "s", "MB", "tokens/s".
        ours: The values of each round.
        peer: What ours stands beside; empty where it stands beside nothing but its limit.
        theirs: Its values of each round.
        target: What must be reached.
    """

    measure: str
    unit: str
    ours: Sequence[float]
    peer: str
    theirs: Sequence[float]
    target: Target

    @property
    def reached(self) -> float:
        """The figure that is held to the target's limit, of medians."""
        return self.target.reach(statistics.median(self.ours), statistics.median(self.theirs or [1.0]))

    @property
    def is_met(self) -> bool:
        """Whether the target is reached."""
        return self.reached >= self.target.limit if self.target.is_floor else self.reached <= self.target.limit


def python(code: str) -> list[str]:
    """The command that has an interpreter run some code."""
    return [sys.executable, "-c", code]


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Call a function in a process of its own: what this one has held counts as the peak of those that it measures.

    Raises:
        SystemExit: It failed.
    """
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"failed: {work.__name__}{arguments}")


def measure(command: Sequence[str]) -> Cost:
    """Run a process to its end; raise SystemExit with the end of what it said where it fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        taken = time.perf_counter() - began
        if status:
            said.seek(0)
            raise SystemExit(f"failed: {' '.join(command)[:200]}\n{said.read().decode(errors='replace')[-2000:]}")
    return Cost(taken, usage.ru_maxrss * 1024 / 1e6)


def measured(command: Sequence[str]) -> Callable[[], Cost]:
    """The route that runs a process to its end."""
    return lambda: measure(command)


def alternate(
    routes: Mapping[str, Callable[[], Cost]], rounds: int, before: Callable[[], object] = lambda: None
) -> dict[str, list[Cost]]:
    """Run every route in turn, so many times; `before` runs in front of each and is not measured."""
    results: dict[str, list[Cost]] = {name: [] for name in routes}
    for number in range(1, rounds + 1):
        for name, route in routes.items():
            before()
            results[name].append(route())
        taken = ", ".join(f"{name} {costs[-1].seconds:.2f} s" for name, costs in results.items())
        print(f"round {number} of {rounds}: {taken}", file=sys.stderr, flush=True)
    return results


def seconds(costs: Sequence[Cost]) -> list[float]:
    """The wall time of each run."""
    return [cost.seconds for cost in costs]


def megabytes(costs: Sequence[Cost]) -> list[float]:
    """The peak memory of each run."""
    return [cost.megabytes for cost in costs]
