"""Choose, on a text, the method and settings whose rows a table should start from."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ctxextend.comparison.bands_search import MOST_BANDS, BandsSearch
from ctxextend.comparison.in_memory import InMemoryResizer
from ctxextend.errors import ResizeError
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.evaluation.evaluation_result import Estimate
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.recipe import Resize
from ctxextend.tables.bands import has_free_settings
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.training.sequence_losses import SequenceLosses, read_sequences
from ctxextend.training.setup import TrainingSetup
from ctxextend.training.train_data import HeldOutSequences, NumberedItems, Text

BANDS = "bands"
# Tried besides the default method, in this order, if none is requested.
OTHER_METHODS = (BANDS, "copy", "linear", "stretch")
CHOOSING_WINDOWS = 8  # at most, that choose among candidates
SLOW_READING = 2.0  # seconds; a longer one needs no warm-up
MOST_CANDIDATES = 1 + len(OTHER_METHODS) + MOST_BANDS


@dataclass
class RowsReader:
    """Reads sequences with the rows of one candidate after another."""

    plan: Plan  # with the settings before the choice
    resizer: InMemoryResizer
    setup: TrainingSetup
    report: Callable[[str], None]  # called with the name of each candidate

    def read(self, candidate: Resize, items: NumberedItems) -> SequenceLosses:
        """Return the losses of sequences with the rows of a candidate.

        Raises:
            ResizeError: The method does not apply.
        """
        self.report(candidate.choice.name)
        return self._read(candidate, items, range(len(items)))

    def time_reading(self, candidate: Resize, items: NumberedItems) -> float:
        """Return the seconds for reading a sequence with the rows of a candidate.

        Raises:
            ResizeError: The method does not apply.
        """
        seconds = 0.0
        for _ in range(2):  # the first one warms up, unless it is slow
            started = time.perf_counter()
            self._read(candidate, items, [0])
            seconds = time.perf_counter() - started
            if seconds > SLOW_READING:
                break
        return seconds

    def _read(
        self, candidate: Resize, items: NumberedItems, numbers: Sequence[int]
    ) -> SequenceLosses:
        plan = self.plan_of(candidate)
        self.resizer.set_positions(plan)
        self.setup.objective.eval()
        return read_sequences(self.setup.objective, items, numbers)

    def plan_of(self, candidate: Resize) -> Plan:
        """Return the plan of a candidate.

        Raises:
            ResizeError: The method does not apply.
        """
        if candidate == self.plan.settings:
            return self.plan
        return plan_model(self.plan.model, candidate)

    @property
    def choosing(self) -> HeldOutSequences:
        """Sequences of the text that is trained on, which choose among candidates."""
        text = self.setup.task.text.train
        assert isinstance(text, Text)
        held_out = self.setup.held_out
        assert isinstance(held_out, HeldOutSequences)
        return HeldOutSequences(text, held_out.settings, CHOOSING_WINDOWS)


@dataclass
class RowsChoice:
    """The candidates that were read, and the best one."""

    reader: RowsReader
    deadline: float  # in seconds of `time.perf_counter`
    seconds_per_sequence: float = 0.0  # of the new length
    losses: dict[Resize, SequenceLosses] = field(default_factory=dict)  # in the order of reading
    best: Resize = field(init=False)
    lead: Estimate | None = None  # of the best one on held-out sequences; None if it is the first
    # Losses on held-out sequences of the first and of the best candidate, if they differ.
    confirmed: Mapping[Resize, SequenceLosses] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best = self.reader.plan.settings

    def has_time(self, *counts: int) -> bool:
        """Whether there is time to read so many sequences, in sum."""
        seconds = sum(counts) * self.seconds_per_sequence
        return time.perf_counter() + seconds < self.deadline

    @property
    def has_time_for_another(self) -> bool:
        """Whether there is time for a candidate, and to confirm it on held-out sequences."""
        return self.has_time(len(self.reader.choosing), 2 * len(self.reader.setup.held_out))

    def run(self) -> None:
        """Read candidates while there is time, and confirm the best one on held-out sequences.

        A candidate is better if it leads by more than a standard error, and is kept if it then
        leads by more than its 95 % interval on the sequences that did not choose it.
        """
        first = self.reader.plan.settings
        if self.reader.setup.model.kind == ENCODER:
            return  # their default keeps learned rows, and repeats them
        items = self.reader.choosing
        self.seconds_per_sequence = self.reader.time_reading(first, items)
        if not self.has_time(len(items)):
            return
        started = time.perf_counter()
        self.losses[first] = self.reader.read(first, items)
        self.seconds_per_sequence = (time.perf_counter() - started) / len(items)
        self._try_methods(items)
        self._search_bands(items)
        if self.best != first:
            self._confirm(first)

    def _try_methods(self, items: NumberedItems) -> None:
        first = self.reader.plan.settings
        if first.choice.name != DEFAULT_METHOD:
            return
        for name in OTHER_METHODS:
            if not self.has_time_for_another:
                return
            candidate = replace(first, method=name)
            if name != self.reader.plan.method:
                self._try(candidate, items)

    def _try(self, candidate: Resize, items: NumberedItems) -> None:
        """Read a candidate, if it applies, and keep it if it is better."""
        try:
            self.losses[candidate] = self.reader.read(candidate, items)
        except ResizeError:
            return
        if self._leads(candidate, self.best):
            self.best = candidate

    def _leads(self, candidate: Resize, other: Resize) -> bool:
        """Whether a candidate is better than another by more than a standard error."""
        lead = self.losses[candidate].improvement(self.losses[other])
        return lead.standard_error is not None and lead.mean > lead.standard_error

    def _search_bands(self, items: NumberedItems) -> None:
        """Search the settings of `bands` that the user left open, if its rows are the best."""
        plan = self.reader.plan_of(self.best)
        requested = plan.settings
        if plan.method != BANDS:
            return
        if requested.choice.name == DEFAULT_METHOD:
            requested = replace(requested, method=BANDS)
        if not has_free_settings(requested.choice.settings) or not self.has_time_for_another:
            return
        table = plan.tables[0]
        learned = self.reader.resizer.learned[table.name][table.reserved_rows :]
        search = BandsSearch(
            table=learned.astype(np.float64),
            rows=table.rows_after - table.reserved_rows,
            requested=requested,
            measure=lambda candidate: self.reader.read(candidate, items),
            has_time=lambda: self.has_time_for_another,
            is_only=len(plan.tables) == 1,
        )
        found = search.run()
        self.losses.update(search.losses)
        if self._leads(found, self.best):
            self.best = found

    def _confirm(self, first: Resize) -> None:
        """Go back to the first candidate unless the best one leads on held-out sequences too."""
        held_out = self.reader.setup.held_out
        confirmed = {item: self.reader.read(item, held_out) for item in (first, self.best)}
        lead = confirmed[self.best].improvement(confirmed[first])
        if lead.sign == 1:
            self.lead = lead
            self.confirmed = confirmed
        else:
            self.best = first
