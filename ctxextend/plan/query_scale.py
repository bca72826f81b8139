"""Plan which weights are multiplied so that attention stays as sharp at the new length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.safetensors_file import TORCH_DTYPES
from ctxextend.checkpoints.weights import layer_pattern
from ctxextend.errors import MethodError, ResizeError, UnsupportedModelError
from ctxextend.families.lookup import TableLocation
from ctxextend.families.query_projections import (
    NO_QUERY_PROJECTION,
    QUERY_PROJECTIONS,
    QueryProjection,
    projection_names,
)
from ctxextend.plan.table_plan import TablePlan, scales
from ctxextend.recipe import AUTO, Resize
from ctxextend.runtimes.rule_schema import YARN
from ctxextend.tables.bands import choose_split
from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.query_factor import QueryPart, default_query_scale, scale_queries
from ctxextend.tables.rope_types import ATTENTION_FACTOR, LIST_MSCALES

REMOVE = "Remove --query-scale."
QUANTISED_HINT = "Resize the checkpoint that was quantised, or remove --query-scale."
# Methods of rotary positions with the frequencies for which YaRN's temperature was measured.
SCALED_METHODS = (YARN, SWITCH)


class TensorFacts(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: str  # as torch spells it, without a prefix, if models compute in it


class WeightFacts(NamedTuple):
    """The weights of a checkpoint or a loaded model, as far as a query scale depends on them."""

    tensors: Mapping[str, TensorFacts]  # by name
    is_quantised: bool  # whether the config says so
    read_rows: Callable[[TablePlan], NDArray[Any]]  # the stored rows of a table, reserved included


class ScaledTensor(NamedTuple):
    """A weight or bias whose queries are multiplied by a factor."""

    name: str
    shape: tuple[int, ...]
    part: QueryPart  # which of its outputs are queries
    factor: float

    def compute(self, before: NDArray[Any]) -> NDArray[Any]:
        """Return the tensor after the resize, from that before it.

        Raises:
            ResizeError: A value overflows the dtype.
        """
        after = scale_queries(before, self.part, self.factor)
        if _count_nonfinite(after) > _count_nonfinite(before):
            message = (
                f"--query-scale {self.factor:.6g}: {self.name} overflows {after.dtype.name} to "
                "infinity."
            )
            raise ResizeError(message, "Use a smaller number.")
        return after


def _count_nonfinite(values: NDArray[Any]) -> int:
    """Return the number of values that are NaN or infinite."""
    if values.dtype.itemsize < 4:
        values = values.astype(np.float32)
    return int(values.size - np.isfinite(values).sum())


class PlannedQueryScale(NamedTuple):
    """The factor of queries, and the tensors that it changes."""

    factor: float
    tensors: tuple[ScaledTensor, ...]  # none if the factor is 1
    # Tables without a high-frequency part, for which the factor is 1 unless it is stated.
    smooth_tables: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """The number of layers whose query projections are multiplied."""
        return sum(tensor.name.endswith(".weight") for tensor in self.tensors)


def plan_query_scale(
    weights: WeightFacts, tables: Sequence[TablePlan], settings: Resize
) -> PlannedQueryScale:
    """Plan the query scale of a resize.

    Args:
        weights: Of the source.
        tables: Its planned tables, with their methods.
        settings: With the length as a number, and a query scale.

    Raises:
        MethodError: It does not apply to these positions, to this method, or to these weights:
            they are quantised, or have no query projections.
        UnsupportedModelError: It is not known where the model type computes queries.
    """
    extended = [table for table in tables if table.is_extended]
    if not extended:
        message = "--query-scale applies to a longer context, and no table gets longer."
        raise MethodError(message, REMOVE)
    for table in extended:
        _check_positions(table)
    smooth = tuple(_smooth_tables(weights, extended, settings))
    factor = _choose_factor(extended, settings, smooth)
    found = dict[str, ScaledTensor]()
    for table in extended:
        for tensor in _find_tensors(weights, table.location, factor):
            found[tensor.name] = tensor
    tensors = tuple(found.values())
    if factor == 1:
        tensors = ()
    return PlannedQueryScale(factor=factor, tensors=tensors, smooth_tables=smooth)


# ---- positions


def _check_positions(table: TablePlan) -> None:
    """Check that a query scale applies to the positions of a table, and to its method.

    Raises:
        MethodError: It does not.
    """
    if table.has_rows:
        if not table.is_stored:
            message = (
                f"--query-scale does not apply to {table.name}: transformers computes its rows."
            )
            raise MethodError(message, REMOVE)
        return
    if table.location.table.rope is None or not table.rope:
        message = f"--query-scale does not apply to {table.scheme} positions."
        raise MethodError(message, REMOVE)
    for plan in table.rope:
        _check_attention(plan.choice.name, plan.after)
    if not scales(table):
        message = "--query-scale has no effect to offer: the rotary settings already serve --to."
        raise MethodError(message, REMOVE)


def _check_attention(method: str, settings: Mapping[str, Any]) -> None:
    """Check that rotary settings leave the attention to the queries.

    Raises:
        MethodError: The method is another one, or its settings scale attention themselves.
    """
    hint = f"Use --method {YARN}:attention-factor=1 or --method {SWITCH}, or remove --query-scale."
    if method not in SCALED_METHODS:
        message = (
            f"--query-scale does not apply to --method {method}: it is the attention temperature "
            f"of {YARN}, for the frequencies of that method."
        )
        raise MethodError(message, hint)
    factors = [settings.get(key) for key in LIST_MSCALES]
    stated = [factor for factor in factors if factor is not None]
    if settings.get(ATTENTION_FACTOR) == 1 and all(factor == 1 for factor in stated):
        return
    message = (
        f"--query-scale does the same as the attention factor of --method {method}: both together "
        "would sharpen attention twice."
    )
    if method == SWITCH:
        hint = "Remove --query-scale, or the settings that scale attention."
    else:
        hint = f"Use --method {YARN}:attention-factor=1, or remove --query-scale."
    raise MethodError(message, hint)


# ---- factor


def _smooth_tables(
    weights: WeightFacts, tables: Sequence[TablePlan], settings: Resize
) -> Iterator[str]:
    """Yield the names of tables in which `bands` finds no high-frequency part, if that decides."""
    if settings.query_scale != AUTO:
        return
    for table in tables:
        if table.has_rows and not _has_high_frequencies(weights, table):
            yield table.name


def _has_high_frequencies(weights: WeightFacts, table: TablePlan) -> bool:
    """Whether `bands` finds a high-frequency part in the learned rows of a table."""
    rows = weights.read_rows(table)[table.reserved_rows :]
    return choose_split(rows.astype(np.float64)).sigma > 0


def _choose_factor(
    tables: Sequence[TablePlan], settings: Resize, smooth_tables: Sequence[str]
) -> float:
    """Return the factor as stated, or by the ratio of the lengths.

    Raises:
        MethodError: The ratios of several tables differ.
    """
    if isinstance(settings.query_scale, float):
        return settings.query_scale
    if smooth_tables:
        return 1.0
    ratios = {_length_ratio(table) for table in tables}
    if len(ratios) > 1:
        message = f"--query-scale {AUTO}: the tables grow by different factors."
        raise MethodError(message, "State a number, or resize one table with --part.")
    return default_query_scale(ratios.pop())


def _length_ratio(table: TablePlan) -> float:
    """Return how many times as long as in the first training the context gets."""
    before = table.max_len_before
    if table.lengths is not None:
        before = table.lengths.first_trained
    return table.max_len_after / before


# ---- tensors


def _find_tensors(
    weights: WeightFacts, location: TableLocation, factor: float
) -> list[ScaledTensor]:
    """Return the weights and biases that compute the queries of one model.

    Raises:
        UnsupportedModelError: It is not known where they are, or a scale of them does nothing.
        MethodError: They are quantised or missing.
    """
    projections = _projections_of(location)
    if weights.is_quantised or location.stated("quantization_config"):
        message = "--query-scale: the weights are quantised (quantization_config)."
        raise MethodError(message, QUANTISED_HINT)
    found = list[ScaledTensor]()
    for projection in projections:
        found += _tensors_of(weights, projection, location, factor)
    for tensor in found:
        dtype = weights.tensors[tensor.name].dtype
        if dtype not in TORCH_DTYPES.values():
            message = f"--query-scale: {tensor.name} is quantised ({dtype})."
            raise MethodError(message, QUANTISED_HINT)
    return found


def _projections_of(location: TableLocation) -> list[QueryProjection]:
    """Return where a model computes the queries that its positions reach.

    Raises:
        UnsupportedModelError: This is not known, or a scale of their weights does nothing.
    """
    model_type = location.family.model_type
    hint = "Resize without --query-scale: only positions change."
    reason = NO_QUERY_PROJECTION.get(model_type)
    known = QUERY_PROJECTIONS.get(model_type)
    if known is None:
        message = f"The query scale is not known for model type {model_type}."
        if reason is not None:
            message = f"--query-scale does not apply to model type {model_type}: {reason}."
        raise UnsupportedModelError(message, hint)
    own_part = location.table.part
    found = list[QueryProjection]()
    for projection in known:
        if projection.part and projection.part != own_part:
            continue
        if projection.when and not projection.when.holds(location.stated(projection.when.key)):
            continue
        if projection.undone_by and location.stated(projection.undone_by):
            message = (
                f"--query-scale does not apply with {projection.undone_by}: the model normalises "
                "queries after the projection, which undoes a scale of its weights."
            )
            raise UnsupportedModelError(message, hint)
        found.append(projection)
    return found


def _tensors_of(
    weights: WeightFacts, projection: QueryProjection, location: TableLocation, factor: float
) -> list[ScaledTensor]:
    """Return the weights and biases of one kind of layers, in the order of the file.

    Raises:
        MethodError: There are none, or their shape is not the expected one.
    """
    names = projection_names(projection, location)
    patterns = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    found = list[ScaledTensor]()
    for name, facts in weights.tensors.items():
        if layer_pattern(name) in patterns:
            part = _part_of(weights, projection, location, name, facts)
            found.append(ScaledTensor(name=name, shape=facts.shape, part=part, factor=factor))
    if not any(tensor.name.endswith(".weight") for tensor in found):
        message = f"--query-scale: the checkpoint has no query projections {names[0]}.weight."
        raise MethodError(message, "Resize without --query-scale: only positions change.")
    return found


def _part_of(
    weights: WeightFacts,
    projection: QueryProjection,
    location: TableLocation,
    name: str,
    facts: TensorFacts,
) -> QueryPart:
    """Return which outputs of a weight or bias are queries.

    Raises:
        MethodError: Its shape is not the expected one.
    """
    axis = 0
    if projection.is_transposed and name.endswith(".weight"):
        axis = 1
    if len(facts.shape) <= axis:
        raise _wrong_shape(name, facts)
    outputs = facts.shape[axis]
    period = outputs
    queries = outputs
    match projection.fused:
        case "thirds":
            queries = outputs // 3
        case "thirds of each head":
            period = outputs // max(location.value(projection.heads_key), 1)
            queries = period // 3
        case "queries first":
            queries = _inputs_of_reader(weights, projection, name)
    is_fused = bool(projection.fused)
    if not 0 < queries <= outputs or outputs % period or (is_fused and queries == outputs):
        raise _wrong_shape(name, facts)
    return QueryPart(axis=axis, period=period, queries=queries)


def _inputs_of_reader(weights: WeightFacts, projection: QueryProjection, name: str) -> int:
    """Return how many values the module reads that reads what the heads of this layer return."""
    attention = name.rpartition(".")[0].rpartition(".")[0]
    reader = weights.tensors.get(f"{attention}.{projection.reader}.weight")
    return reader.shape[-1] if reader is not None and reader.shape else 0


def _wrong_shape(name: str, facts: TensorFacts) -> MethodError:
    message = f"--query-scale: {name} has shape {list(facts.shape)}, whose queries are not known."
    return MethodError(message, "Resize without --query-scale: only positions change.")
