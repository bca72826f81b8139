"""The start of `ctxextend` beside an interpreter that imports no more than it must.

`--help`, and that of every command, beside Typer and Rich; commands on the bundled checkpoint, whose own work is next
to nothing, beside these and numpy. Every command runs as a whole process, in turn with the others.

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
    """Yield a row for every start."""
    for start, commands in ((START, helps()), (START_WITH_NUMPY, works(folder))):
        ours = {f"ctxextend {_said(command, folder)}": [*PROGRAM, *command] for command in commands}
        peer = f'python -c "{start}"'
        costs = alternate({name: measured(route) for name, route in {peer: python(start), **ours}.items()}, rounds)
        seconds = {name: [cost.seconds for cost in found] for name, found in costs.items()}
        for name in ours:
            yield Row(f"`{name}`", "s", seconds[name], f"`{peer}`", seconds[peer], more(MOST))


def _said(command: list[str], folder: Path) -> str:
    return " ".join(command).replace(f"{folder}/", "")


if __name__ == "__main__":
    run_alone(rows, __doc__ or "", ROUNDS)
