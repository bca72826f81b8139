"""Multiply the queries of self-attention by a factor, in the weights that compute them."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.apply import cast
from ctxextend.tables.sinusoids import BLOCK_ROWS

LOG_WEIGHT = 0.1  # of the logarithm, in YaRN's attention temperature


class QueryPart(NamedTuple):
    """Which outputs of a linear layer are queries: the first of each so many outputs."""

    axis: int  # of its outputs in the weight or bias
    period: int  # outputs after which queries start again: all, or those of a head
    queries: int  # the number of queries at the start of each period


def default_query_scale(ratio: float) -> float:
    """Return the factor of queries for a context that is `ratio` times as long as the trained one.

    It is 1 / t = (0.1 ln r + 1)^2, the attention temperature of YaRN's section 3.3. There, queries
    and keys share it; here, queries have all of it.

    Source: Peng et al. 2023, YaRN, arXiv:2309.00071; for encoders, it is the constant form of log-n
    scaling of Zhu et al. 2024, LongEmbed, arXiv:2404.12096.
    """
    return (1 + LOG_WEIGHT * math.log(ratio)) ** 2


def scale_queries(values: NDArray[Any], part: QueryPart, factor: float) -> NDArray[Any]:
    """Multiply the queries of a weight or bias by a factor, in float64, and cast once.

    Args:
        values: The tensor, in any float dtype.
        part: Which of its outputs are queries.
        factor: The factor.

    Returns:
        A new tensor of the same dtype; other outputs are bit-identical.
    """
    result = values.copy()
    outputs = np.arange(values.shape[part.axis])
    is_query = outputs % part.period < part.queries
    # Shaped so that it aligns with the axis of the outputs.
    shape = [1] * values.ndim
    shape[part.axis] = len(outputs)
    mask = is_query.reshape(shape)
    for start in range(0, len(result), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = result[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = cast(block.astype(np.float64) * factor, values.dtype)
        block_mask = mask[rows] if part.axis == 0 else mask
        np.copyto(block, scaled, where=block_mask)
    return result
