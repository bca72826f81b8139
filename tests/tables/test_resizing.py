from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxextend.checkpoint.safetensors_file import numpy_dtype
from ctxextend.tables.apply import cast, resize_table
from ctxextend.tables.methods import METHODS
from tests.helpers import pico
from tests.helpers.method_choices import read_choice

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@pytest.mark.parametrize(
    ("options", "learned", "resized"),
    [
        ({"method": "copy", "keep_first": 1}, [9, 1, 2, 3], [9, 1, 2, 3, 1, 2, 3, 1, 2]),
        ({"method": "linear", "keep_first": 1}, [9, 0, 2, 4], [9, 0, 1, 2, 3, 4]),
    ],
)
def test_resize_table_returns_expected_rows(
    options: dict[str, Any], learned: list[float], resized: list[float]
) -> None:
    table = np.array(learned, np.float32)[:, None]
    choice = read_choice(**options)
    result = resize_table(table, len(resized), choice)
    assert result[:, 0].tolist() == resized


def any_values(dtype: np.dtype[Any], rows: int, width: int, seed: int) -> Any:
    """Return a table of random bits, which include NaN payloads, infinity and signed zeros."""
    shape = (rows, width * dtype.itemsize)
    bits = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return bits.view(dtype)


@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(DTYPES),
    method=st.sampled_from(sorted(pico.LEARNED_METHODS)),
    more=st.integers(1, 40),
    keep=st.integers(0, 5),
)
def test_resize_table_keeps_learned_rows_bit_identical(
    name: str, method: str, more: int, keep: int
) -> None:
    dtype = dtype_of(name)
    table = any_values(dtype, 12, 3, seed=more)
    facts = METHODS[method]
    if facts.keep_first is None:
        keep = 0
    rows = 12 + more
    if method == "hierarchical":
        maximum = (12 - keep) ** 2 + keep
        rows = max(min(rows, maximum), 12)
    kept = keep
    if facts.keeps_learned_rows:
        kept = 12

    choice = read_choice(method, keep_first=keep)
    with np.errstate(all="ignore"):
        result = resize_table(table, rows, choice)

    assert result.dtype == dtype
    assert result.shape == (rows, 3)
    assert result[:kept].tobytes() == table[:kept].tobytes()


def values_to_cast() -> Any:
    generator = np.random.default_rng(3)
    ordinary = generator.normal(size=4000)
    small = generator.normal(size=4000) * 1e-6
    large = generator.normal(size=4000) * 50
    # Halfway cases, where rounding via float32 differs from rounding once.
    above_half = 1 + np.arange(64) * 2.0**-11 + 2.0**-40
    below_half = 1 + np.arange(64) * 2.0**-8 - 2.0**-40
    limits = [1e3, -1e3, 465.67, 460, 1e6, -1e6, np.inf, -np.inf, 0.0, -0.0]
    return np.concatenate([ordinary, small, large, above_half, below_half, limits])


@pytest.mark.parametrize("name", DTYPES)
def test_cast_rounds_like_torch(name: str) -> None:
    values = values_to_cast()
    # Older versions of torch turn numbers beyond the range of float8_e4m3fn into NaN.
    if name == "float8_e4m3fn" and torch.tensor(1e3).to(torch.float8_e4m3fn).isnan():
        values = values[abs(values) < 448]
    theirs = torch.from_numpy(values).to(getattr(torch, name))
    expected = theirs.contiguous().view(torch.uint8).numpy()

    with np.errstate(over="ignore"):
        result = cast(values, dtype_of(name))

    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if method.repeats_rows]
)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_resize_table_repeats_rows_bit_identical(method: str, dtype: str) -> None:
    table = any_values(numpy_dtype(dtype), 7, 6, seed=0)
    known = {row.tobytes() for row in table}
    kept: list[int | None] = [None]
    if METHODS[method].keep_first is not None:
        kept.append(2)
    for keep in kept:
        choice = read_choice(method, keep_first=keep)
        resized = resize_table(table, 19, choice)
        assert resized.dtype == table.dtype
        for row in resized:
            assert row.tobytes() in known
