"""Compare the start-up of `inspect` and `resize` with the import of the libraries they need."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.files import clear_output
from benchmarks.measure import CTXEXTEND, Row, alternate, measure, python

__all__ = ["start_up_rows"]

IMPORTS = "import typer, numpy, yaml"
# `ctxextend` sets it too: else numpy starts threads, which cost CPU time and do nothing here.
ONE_THREAD = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'"


def start_up_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Compare the CPU time of commands on the bundled 4 MB checkpoint with that of imports.

    CPU time depends less on other processes than wall time, and such short runs are hardly
    delayed by the disk.
    """
    output = folder / "out"
    commands: dict[str, list[object]] = {
        "inspect": [*CTXEXTEND, "inspect", "tiny-gpt2"],
        "resize": [*CTXEXTEND, "resize", "tiny-gpt2", "--to", 512, "-o", output, "--quiet"],
        "imports": [*python(f"{ONE_THREAD}; {IMPORTS}")],
    }
    clear = clear_output(output)
    for command in commands.values():  # writes bytecode, and fills the disk cache
        clear()
        measure(command)
    routes = {name: partial(measure, command) for name, command in commands.items()}
    costs = alternate(routes, rounds, clear)
    seconds = dict(zip(routes, ([cost.cpu_seconds for cost in one] for one in costs), strict=True))
    for name in ("inspect", "resize"):
        yield Row(
            measure=f"`{name}`, 4 MB: CPU time",
            unit="s",
            values=seconds[name],
            baseline=f'`python -c "{IMPORTS}"`',
            baseline_values=seconds["imports"],
            maximum=1.6,
        )
