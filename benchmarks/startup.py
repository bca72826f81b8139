"""The start of `ctxextend` beside an interpreter that imports no more than it must.

`--help`, and that of every command, beside Typer and Rich; commands on the bundled checkpoint, whose own work is next
to nothing, beside these and numpy. Every command runs as a whole process, in turn with its peer.

    python -m benchmarks.startup [--rounds 15] [--folder DIR]
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import (
    PROGRAM,
    START,
    START_WITH_NUMPY,
    Row,
    alternate,
    measure,
    measured,
    more,
    python,
    seconds,
)
from benchmarks.table import run_alone

ROUNDS = 15

# Seconds that a start may take beyond its peer's.
MOST = 0.1

COMMANDS = ("resize", "verify", "inspect", "evaluate", "compare", "train", "run", "families", "methods", "demo")


def helps() -> list[list[str]]:
    """What prints a help."""
    return [["--help"], *([command, "--help"] for command in COMMANDS)]


def works(folder: Path) -> list[list[str]]:
    """What works on the smallest checkpoint there is; the proof has one to prove in `folder`."""
    extended = str(folder / "extended")
    measure([*PROGRAM, "resize", "tiny-gpt2", "--to", "512", "-o", extended])
    return [
        *(["methods"], ["families"], ["inspect", "tiny-gpt2"], ["verify", "tiny-gpt2", extended]),
        ["resize", "tiny-gpt2", "--to", "512", "--dry-run"],
    ]


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Yield a row for every start, each with runs of its peer between its own."""
    for start, commands in ((START, helps()), (START_WITH_NUMPY, works(folder))):
        peer = f'python -c "{start}"'
        for command in commands:
            name = f"ctxextend {' '.join(command).replace(f'{folder}/', '')}"
            costs = alternate({name: measured([*PROGRAM, *command]), peer: measured(python(start))}, rounds)
            yield Row(f"`{name}`", "s", seconds(costs[name]), f"`{peer}`", seconds(costs[peer]), more(MOST))


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
