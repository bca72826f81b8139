"""Run a loaded model on short and long inputs, and keep what is seen of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import Checkpoint, layer_pattern
from ctxextend.models.devices import torch_threads
from ctxextend.models.load import (
    LoadingInfo,
    MoreThanTextError,
    padded_texts,
    run_on_tokens,
)
from ctxextend.positions.change import Change
from ctxextend.verification.expected import Expected

SHORT_INPUT = 8  # tokens, to find out which parameters outputs depend on
MAX_ERROR = 200  # characters of an error that are kept
MORE_THAN_TEXT = "more than text"
# What follows from a parameter without weights of its shape.
RANDOM = "its values are random"
UNUSED = "no output that is compared depends on it"  # such as a pooler without a head for it
UNKNOWN = "the model does not run on text only, so outputs may depend on it"
Tensor = Any  # of torch
TransformersModel = Any  # of transformers
LoadedFrequencies = Mapping[str, NDArray[np.float32]]  # inverse frequencies by name of the buffer


@dataclass(frozen=True)
class Outcome:
    """What a model makes of an input: an output, or an error."""

    values: Tensor = None  # None if it has no output
    tokens: int = 0  # of the input
    error: str = ""
    # Errors of one kind differ only in numbers, or are all of `MORE_THAN_TEXT`; empty without one.
    kind: str = ""

    @property
    def size(self) -> float:
        """The largest absolute value of an output."""
        return float(self.values.nan_to_num().abs().max())


Outcomes = Mapping[tuple[str, str], Outcome]  # by table and input


class KeyFault(NamedTuple):
    """A parameter without weights of its shape, or a tensor for which the model has no place."""

    kind: str  # ``missing``, ``unexpected`` or ``mismatched``, as transformers calls them
    name: str
    effect: str = ""  # `RANDOM`, `UNUSED` or `UNKNOWN`; empty if it is unexpected


@dataclass(frozen=True)
class Observed:
    """What was seen of a loaded model, which is dropped before the next one is loaded."""

    outcomes: Outcomes = field(default_factory=dict)
    keys: Sequence[KeyFault] = ()
    frequencies: LoadedFrequencies = field(default_factory=dict)
    error: str = ""  # why transformers cannot load it, as a sentence; then nothing was seen

    @property
    def random(self) -> list[str]:
        """The parameters that make outputs random, or may do so."""
        return [fault.name for fault in self.keys if fault.effect in (RANDOM, UNKNOWN)]


def observe(
    expected: Expected,
    checkpoint: Checkpoint,
    model: TransformersModel,
    info: LoadingInfo,
    lengths: Sequence[int],
) -> Observed:
    """Run a model on inputs of some lengths, in tokens, and find its random parameters."""
    # Inputs change frequencies, so they are read first.
    frequencies = dict[str, NDArray[np.float32]]()
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
            frequencies[name] = buffer.float().numpy().copy()
    return Observed(
        outcomes=run_inputs(expected, checkpoint, model, lengths),
        keys=_find_faults(expected, model, info, min(*lengths, SHORT_INPUT)),
        frequencies=frequencies,
    )


def run_inputs(
    expected: Expected, checkpoint: Checkpoint, model: TransformersModel, lengths: Sequence[int]
) -> Outcomes:
    """Run a model on inputs of some lengths, in tokens, for each table.

    A model whose outputs depend on the padding length also reads padded texts.
    """
    outcomes: dict[tuple[str, str], Outcome] = {}
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


def _run(
    expected: Expected, model: TransformersModel, table: Change, tokens: int | Tensor
) -> Outcome:
    """Run the part of a model around a table on a number of tokens, or on token ids, (1, n)."""
    length = tokens if isinstance(tokens, int) else tokens.shape[-1]
    try:
        with torch_threads(model, None):
            values = run_on_tokens(
                model,
                _name_in_model(model, table),
                tokens,
                has_other_tables=len(expected.plan.model.tables) > 1,
            )
    except MoreThanTextError as error:
        return Outcome(error=str(error), kind=MORE_THAN_TEXT)
    except Exception as error:  # model classes raise many types
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR]
        return Outcome(error=text, kind=re.sub(r"\d+", "N", text))
    return Outcome(values, length)


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


def _find_faults(
    expected: Expected, model: TransformersModel, info: LoadingInfo, length: int
) -> list[KeyFault]:
    """Find the parameters with random values, and on which of them outputs depend.

    With NaN in these, fewer values of an output are finite. Parameters of the same name in other
    layers count too, since inputs do not reach all experts.
    """
    faults = [KeyFault("mismatched", name, RANDOM) for name in info.mismatched]
    groups: dict[str, list[str]] = {}
    for name in info.missing:
        groups.setdefault(layer_pattern(name), []).append(name)
    finite = _count_finite(expected, model, length) if groups else 0
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for pattern, names in groups.items():
        effect = UNKNOWN
        if finite:
            tensors = [value for name, value in state.items() if layer_pattern(name) == pattern]
            with _filled_with_nan(tensors):
                is_unused = tensors and _count_finite(expected, model, length) == finite
            effect = UNUSED if is_unused else RANDOM
        faults += [KeyFault("missing", name, effect) for name in names]
    return faults + [KeyFault("unexpected", name) for name in info.unexpected]


@contextmanager
def _filled_with_nan(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Set all float values to NaN meanwhile."""
    floats = [value for value in tensors if value.is_floating_point()]
    before = [value.detach().clone() for value in floats]
    for value in floats:
        value.data.fill_(np.nan)
    yield
    for value, kept in zip(floats, before, strict=True):
        value.data.copy_(kept)


def _count_finite(expected: Expected, model: TransformersModel, length: int) -> int:
    """Count the finite values of a model's outputs for a short input; 0 if it does not run."""
    count = 0
    for table in expected.plan.changes:
        outcome = _run(expected, model, table, length)
        if outcome.values is not None:
            count += int(outcome.values.isfinite().sum())
    return count
