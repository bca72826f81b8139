"""Results as text: `print(result)` shows what the command prints."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ctxextend.cli.console import Console, Page, Pieces, rendered
from ctxextend.cli.evaluate import add_evaluation
from ctxextend.cli.inspect import add_inspection
from ctxextend.cli.resize import show_output, show_plan
from ctxextend.cli.show_training import show_training
from ctxextend.cli.train import add_training_plan
from ctxextend.cli.verify import add_verification
from ctxextend.inspection.inspection_result import Inspection
from ctxextend.json_output import Result
from ctxextend.lab.evaluation import Evaluation
from ctxextend.pipeline import RunResult
from ctxextend.planned import Planned, ResizeResult
from ctxextend.training.train_result import TrainingPlan, TrainResult
from ctxextend.verification.conclusion import Verification


@dataclass(frozen=True)
class Transcript(Console):
    """Collects what a command prints, on stdout and on stderr, instead of printing it."""

    quiet: bool = False
    page: Page = field(default_factory=Page.for_stdout)

    def data(self, text: str) -> None:
        """Add the result."""
        for line in text.split("\n"):
            self.page.line(line)

    def note(self, *lines: str) -> None:
        """Add lines of stderr; commands, which are indented, do not wrap."""
        self.printed.update(lines)
        for line in lines:
            if line.startswith(" "):
                self.page.line(line)
            else:
                self.page.text(line)

    def next_steps(self, *commands: str) -> None:
        """Add nothing: these are commands for a terminal."""

    def report(self, lines: Iterable[Pieces]) -> None:
        """Add styled lines."""
        self.page.lines.extend(lines)

    screen = report


def show(result: Result, console: Transcript) -> None:
    """Add what the command of a result prints; of other results, their repr."""
    page = console.page
    match result:
        case Evaluation():
            _add_remarks(result, console)
            add_evaluation(page, result)
        case Inspection():
            console.note(*result.notes)
            add_inspection(page, result)
        case Verification():
            console.note(*result.notes)
            add_verification(page, result)
        case Planned():
            show_plan(console, result.source, result.dry_run())
        case ResizeResult():
            show_output(console, result)
        case TrainResult():
            console.note(*result.notes)
            show_training(console, result)
            console.data(str(result.output))
        case TrainingPlan():
            _add_remarks(result, console)
            add_training_plan(page, result)
        case RunResult():
            for step in (result.resize, result.train):
                if isinstance(step, Result):
                    show(step, console)
            if isinstance(result.evaluate, Evaluation):
                page.line()
                show(result.evaluate, console)
        case _:
            console.note(repr(result))


def _add_remarks(result: Evaluation | TrainingPlan, console: Transcript) -> None:
    console.note(*result.notes)
    console.warning(*result.warnings)


def as_text(result: Result) -> str:
    """Return what the command of a result prints."""
    console = Transcript()
    show(result, console)
    return rendered(console.page.lines)
