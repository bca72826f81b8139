import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ctxextend.errors import ResizeError
from ctxextend.tables import methods
from ctxextend.tables.apply import MethodOptions
from ctxextend.tables.methods import METHODS
from ctxextend.tables.sinusoids import sinusoidal_rows

TABLES = arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats(-8, 8))


def drawn(rows: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, width))


def makes(name: str, learned: int, rows: int) -> int:
    """As many rows as are wanted, or as the method can make."""
    maximum = METHODS[name].max_rows
    return min(rows, maximum(learned)) if maximum else rows


@pytest.mark.parametrize(
    ("method", "learned", "expected"),
    [
        ("linear", [0, 3, 6], [0, 1.5, 3, 4.5, 6]),
        # Half-way, Keys' kernel weighs -0.09375, 0.59375, 0.59375, -0.09375.
        ("cubic", [0, 0, 1, 1], [0, -0.09375, 0, 0.5, 1, 1.09375, 1]),
        ("nearest", [0, 1, 2], [0, 0, 1, 1, 2]),
        ("mirror", [0, 1, 2], [0, 1, 2, 1, 0, 1, 2, 1, 0, 1]),
        ("mirror", [0, 1], [0, 1, 0, 1, 0]),
        ("mirror", [5], [5, 5, 5]),
        ("stretch", [0, 2, 6], [0, 1, 2, 4, 6, 8]),
        ("stretch", [5], [5, 5, 5]),
        # u = (p - 0.4·1) / 0.6 = 1, 1.5; row 2 is 0.4·1.5 + 0.6·1, row 3 is 1.5 + 0.
        ("hierarchical", [1, 1.3], [1, 1.3, 1.2, 1.5]),
        ("last", [0, 1, 5], [0, 1, 5, 5, 5]),
        ("mean", [0, 1, 5], [0, 1, 5, 2, 2]),
    ],
)
def test_methods_by_eye(method: str, learned: list[float], expected: list[float]) -> None:
    made = METHODS[method].function(np.array(learned, np.float64)[:, None], len(expected))
    np.testing.assert_allclose(made[:, 0], expected, rtol=0, atol=1e-15)


# Ours against theirs


def test_copy_equals_longformers_notebook_loop() -> None:
    learned, rows = drawn(6, 4), 24
    expected, position = np.empty((rows, 4)), 0
    while position < rows - 1:
        expected[position : position + len(learned)] = learned
        position += len(learned)
    assert np.array_equal(methods.copy(learned, rows), expected)


@pytest.mark.parametrize(("method", "mode"), [(methods.linear, "bilinear"), (methods.cubic, "bicubic")])
@pytest.mark.parametrize(("learned", "rows"), [(2, 3), (3, 10), (7, 20), (128, 513), (300, 701), (5, 5), (1, 4)])
def test_interpolation_equals_torchs_with_align_corners(method: Any, mode: str, learned: int, rows: int) -> None:
    table = drawn(learned, 3)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(table)[None, None], size=(rows, 3), mode=mode, align_corners=True
    )
    np.testing.assert_allclose(method(table, rows), theirs[0, 0].numpy(), rtol=0, atol=1e-12)


def test_sinusoidal_rows_equal_distilberts_own() -> None:
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

    theirs = torch.zeros(50, 6)
    create_sinusoidal_embeddings(50, 6, theirs)
    np.testing.assert_allclose(sinusoidal_rows(np.arange(50), 6), theirs.numpy(), rtol=0, atol=1e-6)
    odd = [f(7 / 10000 ** (k / 5)) for k in (0, 2, 4) for f in (math.sin, math.cos)][:5]
    np.testing.assert_allclose(sinusoidal_rows(np.array([7]), 5)[0], odd, rtol=0, atol=1e-15)


def test_nearest_equals_longembeds_grouped_positions() -> None:
    table, scale = drawn(16, 3), 8
    position_ids = torch.arange(16 * scale) // scale
    assert np.array_equal(methods.nearest(table, 16 * scale), table[position_ids.numpy()])


def test_stretch_equals_long_clips_loop() -> None:
    learned, kept, steps = drawn(77, 5), 20, 4
    expected = [*learned[:kept]]
    for row in range(kept, len(learned)):
        # The last row has none behind it, and goes on as the one before it went.
        start = min(row, len(learned) - 2)
        expected += [learned[row] + k / steps * (learned[start + 1] - learned[start]) for k in range(steps)]
    assert len(expected) == 248
    ours = np.vstack([learned[:kept], methods.stretch(learned[kept:], 248 - kept)])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.4, 0.1, 0.9])
def test_hierarchical_equals_bert4keras_layer(alpha: float) -> None:
    table, rows = drawn(24, 3), 24**2
    position_ids, base = np.arange(rows), (table - alpha * table[:1]) / (1 - alpha)
    theirs = alpha * base[position_ids // 24] + (1 - alpha) * base[position_ids % 24]
    made = methods.hierarchical(table, rows, alpha=alpha)
    np.testing.assert_allclose(made, theirs, rtol=0, atol=1e-12)
    assert len(np.unique(made.round(9), axis=0)) == rows


# What is promised of new rows


@pytest.mark.parametrize("width", [1, 4, 5])
def test_sinusoidal_new_places_rows_as_far_from_the_mean_as_learned_ones(width: int) -> None:
    table = np.random.default_rng(2).normal(3, 0.1, size=(6, width))
    made = methods.sinusoidal(table, 11, start=2)
    mean = table.mean(axis=0)
    radius = np.median(np.linalg.norm(table - mean, axis=1))
    np.testing.assert_allclose(np.linalg.norm(made[6:] - mean, axis=1), radius, rtol=1e-12)
    wave = sinusoidal_rows(np.array([8]), width)[0]
    np.testing.assert_allclose(made[6], mean + radius * wave / np.linalg.norm(wave), rtol=1e-12)


def test_random_draws_rows_like_the_learned_ones() -> None:
    table = np.random.default_rng(1).normal([0, 5, -3], [1, 0.1, 7], size=(50, 3))
    new = methods.random(table, 20050)[50:]
    np.testing.assert_allclose(new.mean(axis=0), table.mean(axis=0), atol=4 * 7 / 20000**0.5)
    np.testing.assert_allclose(new.std(axis=0), table.std(axis=0), rtol=0.03)
    first = np.random.default_rng(3).standard_normal(3) * table.std(axis=0) + table.mean(axis=0)
    np.testing.assert_allclose(methods.random(table, 51, seed=3)[50], first, rtol=1e-12)


@pytest.mark.parametrize("method", [methods.linear, methods.cubic])
def test_interpolation_gives_rows_that_meet_bit_for_bit_whatever_they_are(method: Any) -> None:
    table = np.array([[np.inf, -0.0], [-0.0, 2.0], [np.nan, -0.0]])
    for rows in (3, 5, 7):
        assert method(table, rows)[:: (rows - 1) // 2].tobytes() == table.tobytes()


@pytest.mark.parametrize(
    ("method", "rows", "spoiled"),
    [("linear", 9, [1, 2, 3]), ("cubic", 9, [1, 2, 3, 5]), ("stretch", 10, [1, 2, 3])],
)
def test_interpolation_spreads_nan_to_rows_between_the_ones_around_alone(
    method: str, rows: int, spoiled: list[int]
) -> None:
    table = np.array([[0.0], [np.nan], [2.0], [3.0], [4.0]])
    found = np.isnan(METHODS[method].function(table, rows)[:, 0])
    assert np.flatnonzero(found).tolist() == spoiled


@given(table=TABLES, extra=st.integers(0, 20), name=st.sampled_from(sorted(METHODS)))
def test_methods_give_rows_of_their_own_and_keep_learned_ones_where_promised(table: Any, extra: int, name: str) -> None:
    rows = makes(name, len(table), len(table) + extra)
    before = table.copy()
    made, again = (METHODS[name].function(table, rows) for _ in range(2))
    assert made.shape == (rows, table.shape[1])
    assert made.dtype == np.float64
    assert np.array_equal(made, again)
    assert np.array_equal(table, before)
    if METHODS[name].keeps_learned_rows or rows == len(table):
        assert np.array_equal(made[: len(table)], table)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].keeps_learned_rows])
def test_methods_that_keep_rows_begin_a_longer_table_with_a_shorter_one(name: str) -> None:
    table = drawn(40, 6)
    shorter, longer = (METHODS[name].function(table, rows) for rows in (90, 700))
    np.testing.assert_allclose(longer[:90], shorter, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", sorted({*METHODS} - {"sinusoidal"}))
def test_methods_leave_a_constant_table_constant(name: str) -> None:
    for learned, width in ((3, 5), (40, 1)):
        made = METHODS[name].function(np.full((learned, width), 0.1), makes(name, learned, 90))
        np.testing.assert_allclose(made, 0.1, rtol=1e-12)


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "no method 'magic'. Methods: copy, linear"),
        ({"method": "bnads"}, "no method 'bnads'. Did you mean bands?"),
        ({"method": "magic:sigma=2"}, "no method 'magic'"),
        ({"keep_first": -1}, "--keep-first"),
        ({"drop_last": True}, "--drop-last"),
        ({"method": "last", "keep_first": 2}, "--keep-first has no meaning for --method last"),
        ({"method": "last:keep-first=2"}, "--method last does not take 'keep-first'. It takes drop-last."),
        ({"method": "truncate:seed=2"}, "--method truncate does not take 'seed'. It takes no settings."),
        ({"method": "linear:alpha=0.3"}, "--method linear does not take 'alpha'. It takes keep-first, drop-last."),
        ({"method": "bands:sgima=3"}, "does not take 'sgima'. Did you mean sigma.* takes sigma, repeat, gain, within,"),
        ({"method": "bands:sigma=3,sigma=4"}, "--method bands has sigma twice"),
        ({"method": "linear:keep-first=2", "keep_first": 3}, "--keep-first is given by itself and in --method linear"),
        ({"method": "linear:drop-last=-2"}, "drop-last must be a whole number from 0"),
        ({"method": "hierarchical:alpha=0"}, "alpha must be between 0 and 1.*, got '0'"),
        ({"method": "hierarchical:alpha=nan"}, "alpha must be between 0 and 1"),
        ({"method": "hierarchical:alpha=0.5"}, "not 0.5"),
        ({"method": "hierarchical:alpha=high"}, "alpha must be between 0 and 1.*, got 'high'"),
        ({"method": "random:seed=-1"}, "seed must be a whole number from 0"),
        ({"method": f"random:seed={2**63}"}, "seed must be a whole number from 0"),
        ({"method": "sinusoidal:scope=some"}, "scope must be new or all, got 'some'"),
        ({"method": "sinusoidal:scope=all", "drop_last": 2}, "no meaning for --method sinusoidal:scope=all"),
        ({"method": "bands:sigma=-1"}, "sigma must be 0, or at least 0.5"),
        ({"method": "bands:sigma=1e-9"}, "sigma must be 0, or at least 0.5"),
        ({"method": "bands:sigma"}, "sigma must be 0, or at least 0.5, got ''"),
        ({"method": "bands:gain=0"}, "gain must be above 0"),
        ({"method": "bands:gain=inf"}, "gain must be above 0"),
        ({"method": "bands:repeat=5:5"}, "repeat must be A:B"),
        ({"method": "bands:repeat=4"}, "repeat must be A:B"),
        ({"method": "bands:repeat=3:9,sigma=0"}, "no meaning with sigma=0"),
    ],
)
def test_method_options_refuses_what_has_no_meaning(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ResizeError, match=message):
        MethodOptions(**options)


def test_method_options_reports_every_fault_at_once() -> None:
    with pytest.raises(ResizeError) as caught:
        MethodOptions(method="bands:sigma=-1,gian=2", drop_last=-1)
    assert len((caught.value, *caught.value.others)) == 3


@pytest.mark.parametrize("name", METHODS)
def test_method_options_take_the_settings_of_the_method_alone_and_fill_in_its_defaults(name: str) -> None:
    options, known = MethodOptions(method=name), METHODS[name].settings
    defaults = {key: setting.default for key, setting in known.items()}
    assert options.kept_first == (20 if name == "stretch" else 0)
    assert options.settings == defaults
    assert MethodOptions(method=name, keep_first=0).kept_first == 0
    own: dict[str, Any] = {"scope": "all", "alpha": 0.3, "seed": 1, "sigma": 2.0, "repeat": (2, 9), "gain": 1.5}
    for key, value in own.items():
        text = f"{name}:{key}={'2:9' if key == 'repeat' else value}"
        if key in known:
            assert MethodOptions(method=text).settings == {**defaults, key: value}
        else:
            with pytest.raises(ResizeError, match=f"--method {name} does not take '{key}'"):
                MethodOptions(method=text)
    assert options.keeps_learned_rows == METHODS[name].keeps_learned_rows
    assert not MethodOptions(method="sinusoidal:scope=all").keeps_learned_rows


def test_method_options_read_settings_in_any_spelling_and_hold_them_in_one() -> None:
    one = MethodOptions(method=" bands: repeat=020:90, sigma=4.0,keep_first=3 ")
    assert one == MethodOptions(method="bands:repeat=20:90,sigma=4", keep_first=3)
    assert one.method == "bands:repeat=20:90,sigma=4"


@given(st.floats(0.5, allow_infinity=False), st.floats(0, allow_infinity=False, exclude_min=True), st.integers(0, 99))
def test_full_method_is_read_bit_for_bit(sigma: float, gain: float, first: int) -> None:
    options = MethodOptions(method="bands").with_settings(sigma=sigma, gain=gain, repeat=(first, first + 9))
    assert MethodOptions(method=options.full_method).settings == {
        **{"sigma": sigma, "repeat": (first, first + 9), "gain": gain, "within": None}
    }
