"""Search the settings that YaRN leaves open on a text, with a loaded model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ctxextend.comparison.comparison_result import SettingsSearch, Trial
from ctxextend.comparison.in_memory import InMemoryResizer, open_resizer
from ctxextend.comparison.metrics import LOSS, METRICS
from ctxextend.comparison.yarn_search import (
    FEWEST_WINDOWS,
    MIN_PASSES,
    Losses,
    OpenValues,
    WindowReader,
    YarnSearch,
)
from ctxextend.errors import MethodError, ResizeError
from ctxextend.evaluation.eval_model import (
    ENCODER,
    ResizableFiles,
    check_vocabulary,
    load_eval_model,
    open_files,
)
from ctxextend.evaluation.losses import BY_POSITION, ReadingMode, TargetWindows
from ctxextend.evaluation.scorer import Scorer, open_scorer
from ctxextend.evaluation.unseen_text import read_unseen
from ctxextend.evaluation.windows import TextWindows, cut_windows
from ctxextend.families.rope import rotary_dim
from ctxextend.held_out import Ids
from ctxextend.models.devices import torch_threads
from ctxextend.plan.plan import Plan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import Evaluate, Resize
from ctxextend.runtimes.rule_schema import YARN
from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.open_settings import OPEN_IN
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    FACTOR,
    TYPE,
    yarn_betas,
)
from ctxextend.tables.rotary import frequencies, yarn_attention_factor
from ctxextend.text_data import check_paths

# The rope types that `switch` gives the frequencies of yarn for long inputs.
SWITCHED_TO_YARN = ("default", YARN)
POSITION_DECIMALS = 12  # of frequencies and attention factors that count as equal


@dataclass(frozen=True)
class SearchRequest:
    """What to search, and the time for reading windows."""

    plan: Plan  # by a method with `free_settings`
    budget: float  # seconds, as the user gave them
    available: float  # seconds that are left for this search
    fixed: tuple[str, ...] = ()  # settings that must not change, as in `free_settings`
    clock: Callable[[], float] = time.perf_counter  # seconds


class UnseenWindows(NamedTuple):
    """Windows of a text that a model was not trained on."""

    text: TextWindows
    warnings: tuple[str, ...]  # about files that it was trained on


def free_settings(plan: Plan, fixed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the settings that a search may change, in search order.

    None are free if the user gave all, or if the method has none for these positions.

    Args:
        plan: By the method.
        fixed: Names of settings that must not change, as those that a runtime does not apply.
    """
    table = plan.tables[0]
    is_requested = plan.settings.choice.name == plan.method
    if not table.rope or plan.method not in OPEN_IN or not is_requested:
        return ()
    kind = table.rope[0].before.parameters[TYPE]
    if plan.method == SWITCH and kind not in SWITCHED_TO_YARN:
        return ()
    given = plan.settings.choice.settings
    names = [name for name in OPEN_IN[plan.method] if given.get(name) is None]
    return tuple(name for name in names if name not in fixed)


def check_can_search(plan: Plan, fixed: Sequence[str] = ()) -> None:
    """Check that a search may change settings of the method that the user requests.

    Args:
        plan, fixed: As in `free_settings`.

    Raises:
        MethodError: The positions have no rotary settings.
        ResizeError: The method has no such settings, all of them are given, or the files are those
            of an encoder.
    """
    if plan.has_rows or not plan.tables[0].rope:
        message = "--data with --method is for rotary positions."
        raise MethodError(message, "Remove --method, or --data.")
    if free_settings(plan, fixed):
        files = open_files(plan.model)
        _check_kind(files.name, files.stated_kind)
        return
    if plan.method not in OPEN_IN:
        message = f"--data searches settings of {_names()}; here, the method is {plan.method}."
        raise ResizeError(message, "Remove --data.")
    given = [name for name in OPEN_IN[plan.method] if plan.settings.choice.settings.get(name)]
    if given and fixed:
        message = f"All settings of {plan.method} that the runtime applies are given."
        raise ResizeError(message, "Remove at least one, --for or --data.")
    if given:
        message = f"All settings of {plan.method} are given, so there is nothing to search."
        raise ResizeError(message, "Remove at least one, or --data.")
    kind = plan.tables[0].rope[0].before.parameters[TYPE]
    message = f"--method {plan.method}: {kind} settings have none that a search may change."
    raise ResizeError(message, "Remove --data.")


def _check_kind(name: str, kind: str | None) -> None:
    """Raise ResizeError for an encoder."""
    if kind == ENCODER:
        message = f"{name} has no LM head, so no loss tells its settings apart."
        raise ResizeError(message, "Remove --data.")


def _names() -> str:
    return " and ".join(OPEN_IN)


def search_settings(
    request: SearchRequest, text: Evaluate, progress: Progress = no_progress
) -> SettingsSearch:
    """Load the model of a plan, and search settings of its method on a text.

    Args:
        request: What to search.
        text: At least four windows of the new length.
        progress: Called with the number of tokens read since the last call, and about the total.

    Raises:
        CtxextendError: As `compare`.
        DataError: The text is too short.
        ResizeError: The model is an encoder without an LM head.
    """
    plan = request.plan
    files = open_files(plan.model)
    length = plan.max_len_after
    few = _read_few_windows(files, text, length)
    base = load_eval_model(files, text.precision, text.device)
    resizer = open_resizer(base, plan)

    def cut(count: int) -> Sequence[Ids]:
        more = replace(text, tokens=count * length)
        return read_windows(files, more, length, FEWEST_WINDOWS).text.windows

    with torch_threads(base.model, text.threads):
        found = search_on_windows(request, resizer, cut, progress)
    return replace(found, notes=base.notes, warnings=few.warnings)


def check_text(plan: Plan, text: Evaluate) -> None:
    """Check that a text suffices for a search, without loading the model.

    Raises:
        DataError: It cannot be read, or has fewer than four windows of the new length.
        CheckpointError: The model has no tokenizer.
    """
    check_paths(text.data)
    _read_few_windows(open_files(plan.model), text, plan.max_len_after)


def _read_few_windows(files: ResizableFiles, text: Evaluate, length: int) -> UnseenWindows:
    """Return as few windows as a search needs."""
    return read_windows(files, replace(text, tokens=length), length, FEWEST_WINDOWS)


def read_windows(files: ResizableFiles, text: Evaluate, length: int, minimum: int) -> UnseenWindows:
    """Return windows of a text that a model was not trained on.

    Args:
        files: The model.
        text: The text, and the maximum number of its tokens.
        length: Tokens of a window, special tokens included.
        minimum: Windows that are read even if they have more tokens.

    Raises:
        DataError: The text has fewer windows than the minimum.
    """
    tokenizer = files.tokenizer
    size = length - tokenizer.num_special
    count = max(text.tokens // length, minimum)
    unseen = read_unseen([files], replace(text, tokens=count * length), size * minimum)
    cut = cut_windows(
        unseen.documents,
        size,
        count,
        tokenizer.separator,
        minimum=minimum,
        short_hint="Pass more text with --data, or use a smaller --to.",
    )
    return UnseenWindows(text=cut, warnings=tuple(unseen.warnings))


def search_on_windows(
    request: SearchRequest,
    resizer: InMemoryResizer,
    cut: Callable[[int], Sequence[Ids]],
    progress: Progress = no_progress,
) -> SettingsSearch:
    """Search settings of a method with a loaded model, on windows of a text.

    Args:
        request: What to search.
        resizer: The model, of the new length.
        cut: Returns so many windows without special tokens, or fewer, but at least four.
        progress: As in `search_settings`.

    Raises:
        CheckpointError: The tokenizer is not that of the model.
        ResizeError: The model is an encoder without an LM head.
        UnsupportedModelError: It needs more than text.
    """
    _check_kind(resizer.model.name, resizer.model.kind)
    plan = request.plan
    reader = PlanReader(
        plan=plan,
        resizer=resizer,
        scorer=open_scorer(resizer.model),
        cut=cut,
        progress=progress,
    )
    search = YarnSearch(
        requested=plan.settings,
        opened=_open_values(request),
        reader=WindowReader(measure=reader.losses, clock=request.clock),
        positions=reader.positions,
        cut=reader.cut_windows,
        budget=request.available,
    )
    best = search.run()
    return _report(request, reader, search, best)


def _open_values(request: SearchRequest) -> OpenValues:
    """Return the values that the settings of a plan have now, stated or by default."""
    plan = request.plan
    layers = plan.tables[0].rope[0]
    before = layers.before.parameters
    choice = layers.choice.settings
    stated = {**before, **{key: value for key, value in choice.items() if value is not None}}
    factor = float(choice[FACTOR])
    return OpenValues(
        values={**yarn_betas(stated), ATTENTION_FACTOR: yarn_attention_factor(stated)},
        free=free_settings(plan, request.fixed),
        factor=factor,
    )


@dataclass
class PlanReader:
    """Reads windows with the loaded model and the positions of one candidate after another."""

    plan: Plan  # with the settings before the search
    resizer: InMemoryResizer
    scorer: Scorer
    cut: Callable[[int], Sequence[Ids]]
    progress: Progress
    windows: Sequence[Ids] = ()
    passes: int = MIN_PASSES  # that are planned, for the progress

    def cut_windows(self, count: int, passes: int) -> int:
        """Cut the text into so many windows or fewer, for so many passes, and return how many.

        Raises:
            CheckpointError: The tokenizer is not that of the model.
        """
        self.windows = self.cut(count)
        self.passes = passes
        check_vocabulary(self.resizer.model, np.concatenate(self.windows))
        return len(self.windows)

    def positions(self, candidate: Resize) -> bytes | None:
        """Return the rotary settings of a candidate as they count: frequencies and attention.

        None if the files cannot state them, as those with Mistral's params.json.
        """
        try:
            plan = self._plan_of(candidate)
        except MethodError:
            return None
        found = list[bytes]()
        for table in plan.tables:
            for layers in table.rope:
                computed = frequencies(
                    layers.after,
                    rotary_dim(table.location, layers.after),
                    max_len=table.max_len_after,
                )
                values = np.append(computed.inverse, computed.attention_factor)
                found.append(values.round(POSITION_DECIMALS).tobytes())
        return b"".join(found)

    def losses(self, candidate: Resize, numbers: Sequence[int]) -> list[Losses]:
        """Return the losses of windows at positions from the old length on."""
        self.resizer.set_positions(self._plan_of(candidate))
        texts = [self.windows[number] for number in numbers]
        length = self.plan.max_len_after
        targets = TargetWindows(self.resizer.model, self.windows, length, seed=0)
        first = self.plan.max_len_before - len(self.resizer.model.tokenizer.before)
        scored = range(first, targets.text_size)
        beyond = list[Ids]()
        for number in numbers:
            indices = targets.targets(number)[BY_POSITION]
            beyond.append(indices[indices >= first])
        mode = ReadingMode.of_whole_texts(self.scorer, targets.text_size)
        losses = mode.score(texts, beyond, scored)
        self.progress(len(numbers) * length, self.passes * length, candidate.choice.name)
        return losses

    def _plan_of(self, candidate: Resize) -> Plan:
        return plan_model(self.plan.model, candidate)


def _report(
    request: SearchRequest, reader: PlanReader, search: YarnSearch, best: Resize | None
) -> SettingsSearch:
    """Return what a search has found."""
    plan = request.plan
    name = plan.method
    windows = search.choosing or search.confirmed or (0,)
    trials = dict[Resize, Trial]()
    for candidate in search.reader.losses:
        score = METRICS[LOSS].mean(search.reader.scores(candidate, windows))
        trials[candidate] = Trial(candidate.choice.settings, score, name)
    lead = None
    if best is not None:
        lead = search.reader.lead(best, search.requested, search.confirmed)
    return SettingsSearch(
        before=trials[search.requested],
        best=None if best is None else trials[best],
        lead=lead,
        trials=tuple(trials.values()),
        windows=len(search.choosing),
        length=plan.max_len_after,
        first_position=plan.max_len_before,
        budget=request.budget,
        available=round(request.available, 3),
        seconds=round(search.reader.seconds, 3),
        seconds_needed=None if search.size is not None else round(search.seconds_needed, 1),
    )
