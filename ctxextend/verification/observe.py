"""Run a loaded model on short and long inputs, and keep what is seen of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint, layer_pattern
from ctxextend.conversion.twins import SEPARATOR_KEY
from ctxextend.models.devices import torch_threads
from ctxextend.models.load import (
    LoadingInfo,
    MoreThanTextError,
    padded_texts,
    run_on_tokens,
    separated_ids,
)
from ctxextend.positions.change import Change
from ctxextend.verification.expected import Expected

SHORTEST_PAIR = 4  # tokens, of which three are separators
SHORT_INPUT = 8  # tokens, to find out which parameters outputs depend on
MAX_ERROR = 200  # characters of an error that are kept
Tensor = Any  # of torch
TransformersModel = Any  # of transformers
LoadedFrequencies = Mapping[str, NDArray[np.float32]]  # inverse frequencies by name of the buffer


@dataclass(frozen=True)
class Ran:
    """The output of a model."""

    values: Tensor
    tokens: int  # of the input

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinity."""
        return bool(self.values.isfinite().all())


@dataclass(frozen=True)
class NotRun:
    """Why a model was not run: it does not run on text only."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The error of a model that runs on shorter texts."""

    error: str


RunOutcome = Ran | NotRun | Failed
Outcomes = Mapping[tuple[str, str], RunOutcome]  # by table and input


@dataclass(frozen=True)
class RandomParameters:
    """Parameters without weights of their shape, which transformers initialised at random."""

    mismatched: tuple[str, ...]
    needed: tuple[str, ...]  # missing, and outputs depend on them
    # Missing, but outputs do not depend on them, such as a pooler without a head for it.
    unneeded: tuple[str, ...]
    unknown: tuple[str, ...]  # missing, and the model could not be run to tell

    @property
    def decisive(self) -> tuple[str, ...]:
        """Those that make outputs random, or may do so."""
        return (*self.mismatched, *self.needed, *self.unknown)


@dataclass(frozen=True)
class Observed:
    """What was seen of a loaded model, which is dropped before the next one is loaded."""

    outcomes: Outcomes
    random: RandomParameters
    unexpected: tuple[str, ...]  # tensors for which the model has no place
    frequencies: LoadedFrequencies


@dataclass(frozen=True)
class NotLoaded:
    """Why transformers cannot load a checkpoint, as a sentence."""

    reason: str


def observe(
    expected: Expected,
    checkpoint: Checkpoint,
    model: TransformersModel,
    info: LoadingInfo,
    lengths: Sequence[int],
) -> Observed:
    """Run a model on inputs of some lengths, in tokens, and find its random parameters."""
    frequencies = _read_frequencies(model)  # inputs change them, so they are read first
    return Observed(
        outcomes=run_inputs(expected, checkpoint, model, lengths),
        random=_find_random(expected, model, info, min(*lengths, SHORT_INPUT)),
        unexpected=info.unexpected,
        frequencies=frequencies,
    )


def run_inputs(
    expected: Expected, checkpoint: Checkpoint, model: TransformersModel, lengths: Sequence[int]
) -> Outcomes:
    """Run a model on inputs of some lengths, in tokens, for each table.

    A model whose outputs depend on the padding length also reads padded texts.
    """
    outcomes: dict[tuple[str, str], RunOutcome] = {}
    for table in expected.plan.changes:
        inputs: dict[str, int | Tensor] = {length_text(length): length for length in lengths}
        if table.keeps_padding:
            folder = checkpoint.root / (table.positions.tokenizer or checkpoint.model)
            inputs |= padded_texts(model, folder, table.max_len_before)
        for text, tokens in inputs.items():
            outcomes[table.name, text] = _run(expected, model, table, tokens)
    return outcomes


def length_text(length: int) -> str:
    """Return the name of an input of some tokens, for `Outcomes`."""
    return f"{length} tokens"


def outcomes_of(table: Change, outcomes: Outcomes) -> dict[str, RunOutcome]:
    """Return the outcomes for one table, by input."""
    return {text: outcome for (name, text), outcome in outcomes.items() if name == table.name}


def why_not_run(table: Change, outcomes: Outcomes) -> NotRun | None:
    """Return why a model ran on no input for a table; None if it ran on one, or failed."""
    found = outcomes_of(table, outcomes).values()
    reasons = [outcome for outcome in found if isinstance(outcome, NotRun)]
    if len(reasons) < len(found):
        return None
    return reasons[0]


def _run(
    expected: Expected, model: TransformersModel, table: Change, tokens: int | Tensor
) -> RunOutcome:
    """Run the part of a model around a table on a number of tokens, or on token ids, (1, n)."""
    name = _name_in_model(model, table)
    length = tokens if isinstance(tokens, int) else tokens.shape[-1]
    trial: int | Tensor = 2
    if isinstance(tokens, int) and needs_separators(expected):
        trial = _ids_of_pair(expected, model, SHORTEST_PAIR)
        tokens = _ids_of_pair(expected, model, tokens)
    try:
        with torch_threads(model, None):
            values = run_on_tokens(
                model,
                name,
                tokens,
                has_other_tables=len(expected.plan.model.tables) > 1,
                trial=trial,
            )
    except MoreThanTextError as error:
        return NotRun(str(error))
    except Exception as error:  # model classes raise many types
        return Failed(f"{type(error).__name__}: {error}"[:MAX_ERROR])
    return Ran(values, length)


def needs_separators(expected: Expected) -> bool:
    """Whether the class of a twin runs only on pairs of texts with three separators."""
    return expected.windows is not None and expected.windows.head.needs_separators


def _ids_of_pair(expected: Expected, model: TransformersModel, length: int) -> Tensor:
    """Return the ids of a pair of texts, with the separators of the twin."""
    assert expected.windows is not None
    return separated_ids(model.config, length, expected.windows.config[SEPARATOR_KEY])


def _name_in_model(model: TransformersModel, table: Change) -> str:
    """Return the name of a table in the model, which can differ from that in the file.

    The source of a conversion has another prefix than the twin, whose table it is.
    """
    modules = {name for name, _ in model.named_modules()}
    for name in table.positions.names:
        if name.rpartition(".")[0] in modules:
            return name
    own_module, _, parameter = table.positions.tensor.rpartition(".")
    for module in modules:
        if module.endswith(f".{own_module}"):
            return f"{module}.{parameter}"
    return table.name


def _find_random(
    expected: Expected, model: TransformersModel, info: LoadingInfo, length: int
) -> RandomParameters:
    """Find the parameters with random values, and on which of them outputs depend.

    With NaN in these, fewer values of an output are finite. Parameters of the same name in other
    layers count too, since inputs do not reach all experts.
    """
    groups: dict[str, list[str]] = {}
    for name in info.missing:
        groups.setdefault(layer_pattern(name), []).append(name)
    finite = _count_finite(expected, model, length) if groups else 0
    if not finite:
        return RandomParameters(info.mismatched, needed=(), unneeded=(), unknown=info.missing)
    needed = list[str]()
    unneeded = list[str]()
    for pattern, names in groups.items():
        tensors = _tensors_like(model, pattern)
        with _filled_with_nan(tensors):
            found = _count_finite(expected, model, length)
        if tensors and found == finite:
            unneeded += names
        else:
            needed += names
    return RandomParameters(
        mismatched=info.mismatched,
        needed=tuple(needed),
        unneeded=tuple(unneeded),
        unknown=(),
    )


def _count_finite(expected: Expected, model: TransformersModel, length: int) -> int:
    """Count the finite values of a model's outputs for a short input; 0 if it does not run."""
    count = 0
    for table in expected.plan.changes:
        outcome = _run(expected, model, table, length)
        if isinstance(outcome, Ran):
            count += int(outcome.values.isfinite().sum())
    return count


def _tensors_like(model: TransformersModel, pattern: str) -> list[Tensor]:
    """Return the parameters and buffers of a name with ``*`` for layers."""
    state = dict(model.named_parameters(remove_duplicate=False))
    state |= dict(model.named_buffers())
    return [value for name, value in state.items() if layer_pattern(name) == pattern]


@contextmanager
def _filled_with_nan(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Set all float values to NaN meanwhile."""
    floats = [value for value in tensors if value.is_floating_point()]
    before = [value.detach().clone() for value in floats]
    for value in floats:
        value.data.fill_(np.nan)
    try:
        yield
    finally:
        for value, kept in zip(floats, before, strict=True):
            value.data.copy_(kept)


def _read_frequencies(model: TransformersModel) -> dict[str, NDArray[np.float32]]:
    """Return the inverse frequencies of rotary positions, as the model has loaded them, by name."""
    return {
        name: buffer.float().numpy().copy()
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq")
    }
