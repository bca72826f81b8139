import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ctxextend.errors import ResizeError
from ctxextend.json_output import to_json
from ctxextend.tables import methods
from ctxextend.tables.apply import MethodOptions
from ctxextend.tables.method_facts import METHOD_NAMES
from ctxextend.tables.methods import METHODS, list_methods
from ctxextend.tables.sinusoids import BLOCK_ROWS, sinusoidal_rows

TABLES = arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats(-8, 8))


def test_copy_equals_longformers_notebook_loop() -> None:
    learned, rows = np.random.default_rng(0).normal(size=(6, 4)), 24
    expected, position = np.empty((rows, 4)), 0
    while position < rows - 1:
        expected[position : position + len(learned)] = learned
        position += len(learned)
    assert np.array_equal(methods.copy(learned, rows), expected)


def test_linear_keeps_both_ends_and_spaces_rows_evenly() -> None:
    table = np.array([[0.0], [3.0], [6.0]])
    assert methods.linear(table, 5)[:, 0].tolist() == [0, 1.5, 3, 4.5, 6]
    assert methods.linear(table, 7)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("learned", "rows"), [(2, 3), (7, 20), (128, 513), (5, 5), (1, 4)])
def test_linear_equals_torchs_interpolate_with_align_corners(learned: int, rows: int) -> None:
    table = np.random.default_rng(learned).normal(size=(learned, 3))
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(table.T.copy()).unsqueeze(0), size=rows, mode="linear", align_corners=True
    )
    np.testing.assert_allclose(methods.linear(table, rows), theirs[0].numpy().T, rtol=0, atol=1e-12)


def test_linear_over_many_blocks_equals_numpys_interp() -> None:
    table = np.random.default_rng(1).normal(size=(700, 2))
    rows = 2 * BLOCK_ROWS + 17
    places = np.linspace(0, 699, rows)
    expected = np.stack([np.interp(places, np.arange(700), column) for column in table.T], axis=1)
    np.testing.assert_allclose(methods.linear(table, rows), expected, rtol=0, atol=1e-9)


def test_sinusoidal_rows_by_hand() -> None:
    rows = sinusoidal_rows(np.array([0, 1, 7]), 4)
    expected = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in (0, 1, 7)]
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-15)
    odd = [f(7 / 10000 ** (k / 5)) for k in (0, 2, 4) for f in (math.sin, math.cos)][:5]
    np.testing.assert_allclose(sinusoidal_rows(np.array([7]), 5)[0], odd, rtol=0, atol=1e-15)


def test_sinusoidal_rows_equal_distilberts_own() -> None:
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

    theirs = torch.zeros(50, 6)
    create_sinusoidal_embeddings(50, 6, theirs)
    np.testing.assert_allclose(sinusoidal_rows(np.arange(50), 6), theirs.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [1, 4, 5])
def test_sinusoidal_new_places_rows_as_far_from_the_mean_as_learned_ones(width: int) -> None:
    table = np.random.default_rng(2).normal(3, 0.1, size=(6, width))
    made = methods.sinusoidal(table, 11, start=2)
    mean = table.mean(axis=0)
    radius = np.median(np.linalg.norm(table - mean, axis=1))
    assert np.array_equal(made[:6], table)
    np.testing.assert_allclose(np.linalg.norm(made[6:] - mean, axis=1), radius, rtol=1e-12)
    wave = sinusoidal_rows(np.array([8]), width)[0]
    np.testing.assert_allclose(made[6], mean + radius * wave / np.linalg.norm(wave), rtol=1e-12)


def test_sinusoidal_all_is_the_plain_formula() -> None:
    table = np.full((3, 4), 9.0)
    made = methods.sinusoidal(table, 6, scope="all", start=1)
    assert np.array_equal(made, sinusoidal_rows(np.arange(1, 7), 4))


def test_cubic_by_eye() -> None:
    made = methods.cubic(np.array([[0.0], [0.0], [1.0], [1.0]]), 7)[:, 0]
    # Half-way, Keys' kernel weighs -0.09375, 0.59375, 0.59375, -0.09375.
    np.testing.assert_allclose(made, [0, -0.09375, 0, 0.5, 1, 1.09375, 1], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("learned", "rows"), [(2, 3), (3, 10), (7, 20), (128, 513), (300, 701), (5, 5), (1, 4)])
def test_cubic_equals_torchs_bicubic_with_align_corners(learned: int, rows: int) -> None:
    table = np.random.default_rng(learned).normal(size=(learned, 3))
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(table)[None, None], size=(rows, 3), mode="bicubic", align_corners=True
    )
    np.testing.assert_allclose(methods.cubic(table, rows), theirs[0, 0].numpy(), rtol=0, atol=1e-12)


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


def test_nearest_equals_longembeds_grouped_positions() -> None:
    table, scale = np.random.default_rng(0).normal(size=(16, 3)), 8
    position_ids = torch.arange(16 * scale) // scale
    assert np.array_equal(methods.nearest(table, 16 * scale), table[position_ids.numpy()])
    assert methods.nearest(np.arange(3.0)[:, None], 5)[:, 0].tolist() == [0, 0, 1, 1, 2]


def test_mirror_turns_at_both_ends() -> None:
    table = np.array([[0.0], [1.0], [2.0]])
    assert methods.mirror(table, 10)[:, 0].tolist() == [0, 1, 2, 1, 0, 1, 2, 1, 0, 1]
    assert methods.mirror(table[:1], 3)[:, 0].tolist() == [0, 0, 0]
    assert methods.mirror(table[:2], 5)[:, 0].tolist() == [0, 1, 0, 1, 0]


def test_stretch_takes_equal_steps_past_the_last_row() -> None:
    table = np.array([[0.0], [2.0], [6.0]])
    assert methods.stretch(table, 6)[:, 0].tolist() == [0, 1, 2, 4, 6, 8]
    assert methods.stretch(table[:1], 3)[:, 0].tolist() == [0, 0, 0]


def test_stretch_equals_long_clips_loop() -> None:
    learned, kept, steps = np.random.default_rng(0).normal(size=(77, 5)), 20, 4
    expected = [*learned[:kept]]
    for row in range(kept, len(learned)):
        # The last row has none behind it, and goes on as the one before it went.
        start = min(row, len(learned) - 2)
        expected += [learned[row] + k / steps * (learned[start + 1] - learned[start]) for k in range(steps)]
    assert len(expected) == 248
    ours = np.vstack([learned[:kept], methods.stretch(learned[kept:], 248 - kept)])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-14)


def test_hierarchical_by_eye() -> None:
    table = np.array([[1.0], [2.0]])
    # u = (p - 0.25·1) / 0.75 = 1, 7/3; row 2 is 0.25·7/3 + 0.75·1, row 3 is 7/3.
    np.testing.assert_allclose(methods.hierarchical(table, 4, alpha=0.25)[:, 0], [1, 2, 4 / 3, 7 / 3])


@pytest.mark.parametrize("alpha", [0.4, 0.1, 0.9])
def test_hierarchical_equals_bert4keras_layer(alpha: float) -> None:
    table, rows = np.random.default_rng(0).normal(size=(24, 3)), 24**2
    position_ids, base = np.arange(rows), (table - alpha * table[:1]) / (1 - alpha)
    theirs = alpha * base[position_ids // 24] + (1 - alpha) * base[position_ids % 24]
    made = methods.hierarchical(table, rows, alpha=alpha)
    np.testing.assert_allclose(made, theirs, rtol=0, atol=1e-12)
    assert len(np.unique(made.round(9), axis=0)) == rows
    with pytest.raises(IndexError):
        methods.hierarchical(table, rows + 1)


def test_last_and_mean_by_eye() -> None:
    table = np.array([[0.0], [1.0], [5.0]])
    assert methods.last(table, 5)[:, 0].tolist() == [0, 1, 5, 5, 5]
    assert methods.mean(table, 5)[:, 0].tolist() == [0, 1, 5, 2, 2]


def test_random_draws_rows_like_the_learned_ones() -> None:
    table = np.random.default_rng(1).normal([0, 5, -3], [1, 0.1, 7], size=(50, 3))
    new = methods.random(table, 20050)[50:]
    np.testing.assert_allclose(new.mean(axis=0), table.mean(axis=0), atol=4 * 7 / 20000**0.5)
    np.testing.assert_allclose(new.std(axis=0), table.std(axis=0), rtol=0.03)
    first = np.random.default_rng(3).standard_normal(3) * table.std(axis=0) + table.mean(axis=0)
    np.testing.assert_allclose(methods.random(table, 51, seed=3)[50], first, rtol=1e-12)


def makes(name: str, learned: int, rows: int) -> int:
    """As many rows as are wanted, or as the method can make."""
    most = METHODS[name].max_rows
    return min(rows, most(learned)) if most else rows


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
    elif name not in ("bands", "auto"):  # these widen the table
        assert np.array_equal(made[0], table[0])
    if name in ("linear", "cubic", "nearest"):
        assert np.array_equal(made[-1], table[-1])


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].keeps_learned_rows])
def test_methods_that_keep_rows_begin_a_longer_table_with_a_shorter_one(name: str) -> None:
    table = np.random.default_rng(0).normal(size=(40, 6))
    shorter, longer = (METHODS[name].function(table, rows) for rows in (90, 700))
    np.testing.assert_allclose(longer[:90], shorter, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", sorted({*METHODS} - {"sinusoidal"}))
def test_methods_leave_a_constant_table_constant(name: str) -> None:
    for learned, width in ((3, 5), (40, 1)):
        table = np.full((learned, width), 0.1)
        made = METHODS[name].function(table, makes(name, learned, 90))
        np.testing.assert_allclose(made, 0.1, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "no method 'magic'"),
        ({"keep_first": -1}, "--keep-first"),
        ({"drop_last": True}, "--drop-last"),
        ({"method": "last", "keep_first": 2}, "--keep-first has no meaning for --method last"),
        ({"method": "hierarchical", "alpha": 0.0}, "--alpha must be above 0"),
        ({"method": "hierarchical", "alpha": math.nan}, "--alpha must be above 0"),
        ({"method": "hierarchical", "alpha": 0.5}, "0.5 gives two positions one row"),
        ({"method": "random", "seed": -1}, "--seed must be 0 or more"),
        ({"method": "random", "seed": 2**63}, "below 2"),
        ({"method": "sinusoidal", "scope": "some"}, "no scope 'some'"),
        ({"method": "sinusoidal", "scope": "all", "drop_last": 2}, "no meaning with --scope all"),
    ],
)
def test_method_options_refuses_what_has_no_meaning(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ResizeError, match=message):
        MethodOptions(**options)


@pytest.mark.parametrize("name", METHODS)
def test_method_options_take_the_flags_of_the_method_alone_and_fill_in_its_defaults(name: str) -> None:
    options = MethodOptions(method=name)
    assert options.kept_first == (20 if name == "stretch" else 0)
    assert options.flags == METHODS[name].flags
    assert options.typed_flags["keep-first"] == (20 if name == "stretch" else None)
    assert MethodOptions(method=name, keep_first=0).kept_first == 0
    own: dict[str, Any] = {"scope": "new", "alpha": 0.3, "seed": 0}
    for flag, value in own.items():
        if flag in METHODS[name].flags:
            options = MethodOptions(method=name, **{flag: value})
            assert options.flags == {flag: value}
            assert options.typed_flags[flag] == value
        else:
            with pytest.raises(ResizeError, match=f"--{flag} has no meaning for --method {name}"):
                MethodOptions(method=name, **{flag: value})
    assert options.keeps_learned_rows == METHODS[name].keeps_learned_rows
    assert not MethodOptions(method="sinusoidal", scope="all").keeps_learned_rows


def test_list_methods_says_all_that_users_need_with_the_default_first() -> None:
    found = list_methods()
    assert tuple(method.name for method in found) == tuple(METHODS) == METHOD_NAMES
    assert found[0].name == MethodOptions().facts.name
    described = "name summary keeps_learned_rows keep_first flags when source convention short_inputs long_inputs"
    for method in found:
        values = to_json(method)
        assert list(values) == [*described.split(), "tolerance"]
        assert (values["name"], values["flags"], values["tolerance"]) == (method.name, method.flags, method.tolerance)
        assert method.tolerance >= 0
        assert method.source in " ".join(str(method.function.__doc__).split())
        assert len(method.source) >= len("our own")
