"""The methods that create the rows of a longer position table, in the order of all listings.

Each is a function that is decorated with its metadata. It gets the source rows, shape (n, d),
float64, without reserved rows and those that ``--keep-first`` excludes, and the number of rows to
return, m ≥ n. It returns shape (m, d), float64; methods that keep learned rows
return them first, unchanged.
"""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ctxextend.errors import ResizeError, did_you_mean, raise_first
from ctxextend.tables.bands import (
    MIN_ROWS,
    Indices,
    Rows,
    bands,
    choose_bands,
)
from ctxextend.tables.layouts import BLOCK_ROWS, LAYOUTS, sinusoidal_rows
from ctxextend.tables.method_facts import (
    BLAS_TOLERANCE,
    COUNT,
    TRUNCATE,
    UNCHANGED,
    Method,
    MethodChoice,
    Setting,
    count_setting,
    named_setting,
    positive_setting,
    range_setting,
    registering,
)
from ctxextend.tables.rotary_methods import ROTARY_METHODS

METHODS: dict[str, Method] = {}  # by name, in the order of all listings
method = registering(METHODS)

# Effects on inputs beyond the old length.
CLOSER = "order is kept, but neighbouring rows are closer together than in training"
SIMILAR = "order is kept, but rows are more similar to each other than learned ones"
UNINFORMATIVE = "new positions carry no information until the model is trained"


@method(
    keeps_learned_rows=False,
    convention="as formula for a table of sinusoids; as copy for sentence encoders, models without "
    "an LM head, and tables of fewer than 32 rows; else as bands with settings chosen from the "
    "table",
    long_inputs=SIMILAR,
    when="you do not know which method is best for the model",
    reads_kept_rows=True,
    tolerance=BLAS_TOLERANCE,
)
def auto(table: Rows, rows: int, *, keep: int = 0) -> Rows:
    """Bands for language models, copy for other models. Source: ctxextend."""
    if len(table) < MIN_ROWS:
        return copy(table, rows)
    return bands(table, rows, keep=keep)


@method(
    summary="repeat the learned rows",
    convention="row t is source row t mod n, of n source rows",
    long_inputs="learned rows repeat: the model cannot distinguish the copies, and order breaks at "
    "each seam",
    when="you fine-tune afterwards, and short inputs must give identical outputs until then",
    repeats_rows=True,
)
def copy(table: Rows, rows: int) -> Rows:
    """Tile the learned rows, as in Longformer's `convert_model_to_long.ipynb`.

    Source: Beltagy et al. 2020, Longformer, section 5, arXiv:2004.05150.
    """
    return table[np.arange(rows) % len(table)]


@method(
    summary="interpolate the table linearly",
    keeps_learned_rows=False,
    convention="align_corners=True (both end rows kept), in float64",
    long_inputs=CLOSER,
    when="long inputs must work without training, and outputs for short ones may change",
)
def linear(table: Rows, rows: int) -> Rows:
    """Interpolate row t linearly at source position t·(n-1)/(m-1).

    Torch does the same with ``align_corners=True``.

    Source: Dosovitskiy et al. 2020, section 3.2, arXiv:2010.11929 (2-D),
        and Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378 (text).
    """
    lower, weight = _aligned_ends(len(table), rows)
    return _interpolated(table, lower, weight, lower)


@method(
    settings={
        "scope": named_setting("rows to fill", ("new", "all"), default="new"),
        "layout": named_setting("layout of sinusoids", LAYOUTS, default=LAYOUTS[0]),
        "radius": positive_setting("distance of each row from the mean row"),
    },
    convention="mean + s·PE(t), s = median‖p - mean‖ / ‖PE(t)‖; layouts as in transformers",
    long_inputs=UNINFORMATIVE,
    when="you fine-tune afterwards, and every position needs a distinct row",
    takes_start=True,
)
def sinusoidal(
    table: Rows,
    rows: int,
    *,
    scope: str = "new",
    layout: str = LAYOUTS[0],
    radius: float | None = None,
    start: int = 0,
) -> Rows:
    """Append sinusoidal rows; scope=all replaces the whole table.

    Row i is mean + s·PE(t), where t = start + i is the absolute position and s puts the row at
    `radius` from the mean, by default the median distance of the learned rows: PE(t) has norm
    √(d/2), far more than rows that models learn.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    kept = _kept(table, scope)
    mean = table.mean(axis=0)
    radius = radius or float(np.median(np.linalg.norm(table - mean, axis=1)))
    waves = sinusoidal_rows(np.arange(start + len(kept), start + rows), table.shape[1], layout)
    norms = np.linalg.norm(waves, axis=1).clip(1e-9)  # a single column has zeros
    waves *= (radius / norms)[:, None]
    waves += mean
    return _extended(kept, rows, waves)


@method(
    keep_first=None,
    settings={
        "layout": named_setting("layout of sinusoids", LAYOUTS, default=None),
        "start": count_setting("t of the first row", default=None),
    },
    convention="row i is PE(start + i) as transformers computes it: in float64, or in float32 with "
    "torch",
    long_inputs="positions continue as in training, but the model has not seen them",
    when="the table equals the formula of fixed sinusoids",
)
def formula(table: Rows, rows: int, *, layout: str, start: int) -> Rows:
    """Continue sinusoids by their formula (default for them).

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    width = table.shape[1]
    new = np.arange(start + len(table), start + rows)
    in_float32 = _is_computed_in_float32(table, layout, start)
    return _extended(table, rows, sinusoidal_rows(new, width, layout, in_float32=in_float32))


def _is_computed_in_float32(table: Rows, layout: str, start: int) -> bool:
    """Whether the last row of a table of sinusoids was computed with torch in float32."""
    if layout.startswith("halves-log"):
        return True
    width = table.shape[1]
    end = np.array([start + len(table) - 1])
    if np.array_equal(sinusoidal_rows(end, width, layout).astype(np.float32), table[-1:]):
        return False
    return np.array_equal(sinusoidal_rows(end, width, layout, in_float32=True), table[-1:])


@method(
    summary="interpolate the table with a spline per column",
    keeps_learned_rows=False,
    settings={
        "degree": Setting(
            "degree of the polynomials",
            must="2 or 3",
            default=3,
            read=int,
            allows=lambda degree: degree in (2, 3),
        )
    },
    convention="not-a-knot, align_corners=True (both end rows kept), in float64; degree at most "
    "n - 1 for n rows",
    long_inputs=CLOSER,
    when="as for linear, if the table is smooth and norms must not shrink between rows, or to "
    "reproduce the rows of context-extension",
)
def spline(table: Rows, rows: int, *, degree: int = 3) -> Rows:
    """Interpolate row t at source position t·(n-1)/(m-1) with a not-a-knot spline per column.

    Knots are the positions, or for degree 2 the points halfway between them, without the first and
    last of them. Through n ≤ degree rows, the degree is n - 1. Equals
    `scipy.interpolate.make_interp_spline`.

    Source: Danylenko 2025, PyPI package `context-extension` 0.1.3, which calls scipy; de Boor 2001,
    chapters IV and VI.
    """
    degree = min(degree, len(table) - 1)
    result = linear(table, rows)
    if degree < 2:
        return result
    bend_at = _quadratic_bend if degree == 2 else _cubic_bend
    bends = _second_derivatives(table, degree)
    lower, distance = _aligned_ends(len(table), rows)
    between = np.flatnonzero(distance)
    for start in range(0, len(between), BLOCK_ROWS):
        block = between[start : start + BLOCK_ROWS]
        result[block] += bend_at(distance[block])[:, None] * bends[lower[block]]
        result[block] += bend_at(1 - distance[block])[:, None] * bends[lower[block] + 1]
    return result


def _quadratic_bend(distance: Rows) -> Rows:
    """Return what a unit second derivative adds at a distance from its row, for degree 2."""
    return np.where(distance < 0.5, distance * (4 * distance - 3), distance - 1) / 8


def _cubic_bend(distance: Rows) -> Rows:
    """Return what a unit second derivative adds at a distance from its row, for degree 3."""
    near = 1 - distance
    return (near**3 - near) / 6


@method(
    keeps_learned_rows=False,
    convention="linear at source position t·n/m, extrapolated past the last row, in float64",
    long_inputs=CLOSER,
    when="long inputs must work without training, and most inputs are short, as for CLIP",
    keep_first=20,
)
def stretch(table: Rows, rows: int) -> Rows:
    """Keep the first 20 rows and interpolate the rest, as Long-CLIP does.

    Source: Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378; `load_from_clip`, 77 to
    248.
    """
    lower, remainder = np.divmod(np.arange(rows) * len(table), rows)
    start = np.minimum(lower, max(len(table) - 2, 0))
    return _interpolated(table, lower, remainder / rows, start)


@method(
    settings={
        "alpha": Setting(
            "weight of the first digit",
            must="between 0 and 1 and not 0.5",
            default=0.4,
            read=float,
            allows=lambda weight: 0 < weight < 1 and weight != 0.5,
        )
    },
    convention="row i·n + j is alpha·u_i + (1 - alpha)·u_j, u = (p - alpha·p_0) / (1 - alpha), in "
    "float64",
    long_inputs="every position has a distinct row, but order breaks at each seam until the model "
    "is trained",
    when="you fine-tune briefly at many times the old length; n rows extend to at most n times n",
    max_rows=lambda learned: learned**2,
)
def hierarchical(table: Rows, rows: int, *, alpha: float = 0.4) -> Rows:
    """Combine two learned rows per position, one for each base-n digit.

    Row i·n + j is a·u_i + (1-a)·u_j, where u = (p - a·p_0) / (1-a), and p are the source rows.

    Source: Su Jianlin 2020, kexue.fm/archives/7947, and bert4keras.
    """
    units = (table - alpha * table[0]) / (1 - alpha)
    result = _extended(table, rows, table[0])
    for start in range(len(table), rows, BLOCK_ROWS):
        positions = np.arange(start, min(start + BLOCK_ROWS, rows))
        first, second = np.divmod(positions, len(table))
        result[start : start + BLOCK_ROWS] = alpha * units[first] + (1 - alpha) * units[second]
    return result


@method(
    convention="row t is source row min(t, n - 1)",
    long_inputs="all new positions share one row",
    when="you need a baseline without order beyond the old length",
    keep_first=None,
    repeats_rows=True,
)
def last(table: Rows, rows: int) -> Rows:
    """Repeat the last learned row. Source: ctxextend, as `numpy.pad` with mode "edge"."""
    return table[np.minimum(np.arange(rows), len(table) - 1)]


@method(
    convention="the mean of the source rows, in float64",
    long_inputs="all new positions share one row",
    when="you need a baseline with uninformative new rows",
)
def mean(table: Rows, rows: int) -> Rows:
    """Fill the new rows with the mean of the learned rows.

    Source: after Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models"
    (for words).
    """
    return _extended(table, rows, table.mean(axis=0))


@method(
    settings={"scope": named_setting("rows to fill", ("new", "all"), default="new")},
    convention="0 in every column",
    long_inputs=UNINFORMATIVE,
    when="you train a model without positions (scope=all), or need a baseline",
)
def zero(table: Rows, rows: int, *, scope: str = "new") -> Rows:
    """Fill the new rows with zeros; scope=all removes all positions.

    Source: ctxextend; scope=all after Gelberg et al. 2025, DroPE, arXiv:2512.12167 (rotary
    positions).
    """
    return _extended(_kept(table, scope), rows, np.zeros(table.shape[1]))


@method(
    settings={"seed": count_setting("random seed")},
    convention="mean + std·z per column, with z in row order from "
    "numpy.random.default_rng(seed).standard_normal",
    long_inputs=UNINFORMATIVE,
    when="you need a baseline that trains the new positions from scratch",
)
def random(table: Rows, rows: int, *, seed: int = 0) -> Rows:
    """Sample random rows with the statistics of the learned rows.

    Source: ctxextend; mean and standard deviation per column after Hewitt 2021, as for `mean`.
    """
    samples = np.random.default_rng(seed).standard_normal((rows - len(table), table.shape[1]))
    return _extended(table, rows, samples * table.std(axis=0) + table.mean(axis=0))


method(
    settings={
        "sigma": Setting(
            "width in rows of the low-pass filter; 0 disables the high-frequency part",
            must="0 or at least 0.5",
            default=None,
            read=float,
            allows=lambda sigma: sigma == 0 or 0.5 <= sigma < math.inf,
        ),
        "repeat": range_setting("rows A to B-1 of the high-frequency part to tile"),
        "gain": positive_setting("factor that scales rows around their mean"),
        "high_gain": positive_setting("gain of the high-frequency part"),
        "within": range_setting("rows A to B-1 to split, excluding end outliers"),
    },
    keeps_learned_rows=False,
    convention="low-pass: local linear regression with Gaussian weights, interpolated; residual: "
    "tiled, cross-faded over 16 rows; each is scaled around the mean by its gain; unset values are "
    "chosen from the table",
    long_inputs=SIMILAR,
    when="long inputs must work without training, and outputs for short ones may change",
    reads_kept_rows=True,
    choose=choose_bands,
    tolerance=BLAS_TOLERANCE,
)(bands)


# The method of a shorter table. It is not listed, because no other one applies.
TRUNCATION = Method(
    name=TRUNCATE,
    summary="keep the first rows",
    when="the table becomes shorter",
    source="ctxextend",
    convention="row t is source row t",
    short_inputs=UNCHANGED,
    long_inputs="there are none",
    function=lambda table, rows: table[:rows],
)


# ---- steps of several methods


def _kept(table: Rows, scope: str) -> Rows:
    """Return the learned rows that a method with a ``scope`` keeps."""
    return table[:0] if scope == "all" else table


def _extended(table: Rows, rows: int, fill: Rows) -> Rows:
    """Return learned rows, shape (n, d), followed by new rows.

    `fill` is the new rows, shape (m - n, d), or one row for all, shape (d,).
    """
    result = np.empty((rows, table.shape[1]))
    result[: len(table)] = table
    result[len(table) :] = fill
    return result


def _aligned_ends(learned: int, rows: int) -> tuple[Indices, Rows]:
    """Return where each row of the longer table reads, with both ends aligned.

    Returns:
        The lower of two source rows, and the distance to it, shape (rows,) each.
    """
    steps = max(rows - 1, 1)
    # Exact: integers decide which rows coincide.
    lower, remainder = np.divmod(np.arange(rows) * (learned - 1), steps)
    return lower, remainder / steps


def _second_derivatives(table: Rows, degree: int) -> Rows:
    """Return the second derivatives, at the rows, of the not-a-knot spline through them.

    They solve D[i-1] + c·D[i] + D[i+1] = (c + 2)·(second difference), with c = 4 for degree 3 and 6
    for degree 2. As no knot is near the ends, D[0] is 2·D[1] - D[2] for degree 3 and D[1] for
    degree 2.
    """
    slope = degree - 2
    count = len(table) - 2
    result = np.zeros_like(table)
    inner = result[1:-1]
    diagonal = np.full(count, 10.0 - 2 * degree)
    above = np.ones(count)
    inner[:] = (12 - 2 * degree) * np.diff(table, 2, axis=0)
    np.add.at(diagonal, [0, -1], 1 + slope)  # twice, if there is one row
    above[0] -= slope
    for row in range(1, count):
        factor = above[-1 - row] / diagonal[row - 1]  # the system is the same from both ends
        diagonal[row] -= factor * above[row - 1]
        inner[row] -= factor * inner[row - 1]
    inner /= diagonal[:, None]
    for row in reversed(range(count - 1)):
        inner[row] -= above[row] / diagonal[row] * inner[row + 1]
    result[0] = inner[0] + slope * (inner[0] - result[2])
    result[-1] = inner[-1] + slope * (inner[-1] - result[-3])
    return result


def _interpolated(table: Rows, start: Indices, weight: Rows, step: Indices) -> Rows:
    """Return source rows, each plus a weighted step between two source rows, shape (m,) each.

    Row t is source row `start[t]`, plus `weight[t]` times the step from source row `step[t]` to the
    next. If the weight is 0, it reads only `start[t]`, because its neighbours may contain NaN.
    """
    last = len(table) - 1
    result = np.empty((len(start), table.shape[1]))
    for first in range(0, len(start), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        source = table[start[block]]
        steps = table[(step[block] + 1).clip(0, last)] - table[step[block]]
        moved = source + weight[block, None] * steps
        result[block] = np.where(weight[block, None] > 0, moved, source)
    return result


# ---- lists of methods


def find_methods(name: str) -> list[Method]:
    """Return the methods of tables and of rotary positions with a name.

    Raises:
        ResizeError: There are none.
    """
    found = [methods[name] for methods in (METHODS, ROTARY_METHODS) if name in methods]
    if found:
        return found
    names = dict.fromkeys((*METHODS, *ROTARY_METHODS))
    hint = did_you_mean(name, names)
    if not hint:
        hint = f"Methods: {', '.join(names)}; add one with ctxextend.register_method."
    raise ResizeError(f"Unknown method {name!r:.60}.", hint)


def list_methods() -> list[Method]:
    """Return all methods of position tables, the default first."""
    return list(METHODS.values())


def register_method(name: str, function: Callable[..., Any]) -> None:
    """Register a function as a method that `resize`, `extend_model` and `compare` accept by name.

    A rule that is not built in, such as grouped, reflected or rotated rows, takes a few lines.

        def fade(rows, length, *, power=1.0):
            new = np.arange(len(rows), length)[:, None] / len(rows)
            mean = rows.mean(axis=0)
            return np.vstack([rows, mean + (rows[-1] - mean) / new**power])

        ctxextend.register_method("fade", fade)
        ctxextend.resize("gpt2", 4096, "fade:power=2")

    The registration lasts for this process. Recipes store only the name: register it again to run
    or verify them.

    Args:
        name: Lower-case letters, digits, ``-`` and ``_``, starting with a letter, and not yet in
            use.
        function: Called with the learned rows, shape (n, d), float64, a copy without reserved rows
            and those that ``keep_first`` excludes, and the number of rows to return, m > n. Returns
            all rows, shape (m, d), finite, which are cast to the table's dtype once. Keyword-only
            arguments with int, float or str defaults are its settings; text must not contain commas
            or start or end with whitespace.

    Raises:
        ResizeError: The name is in use or invalid. Also raised when the method is used, if the
            function returns another shape or non-finite values.
    """
    is_in_use = name in (*METHODS, *ROTARY_METHODS, TRUNCATE, "all")
    if is_in_use or not re.fullmatch("[a-z][a-z0-9_-]*", name):
        message = f"The method name {name!r} is in use or invalid."
        raise ResizeError(message, "Choose another, such as my-method.")

    def checked(table: Rows, rows: int, **settings: Any) -> Rows:
        result = np.asarray(function(table, rows, **settings), np.float64)
        expected = (rows, table.shape[1])
        if result.shape != expected:
            raise ResizeError(f"Method {name} returned shape {result.shape}, not {expected}.")
        if not np.isfinite(result).all():
            raise ResizeError(f"Method {name} returned NaN or infinity.")
        return result

    METHODS[name] = Method(
        name=name,
        summary="a user-defined function",
        keeps_learned_rows=False,
        settings=_settings_of(function),
        when="you experiment with your own method",
        source="ctxextend.register_method",
        convention="a user-defined function",
        short_inputs="outputs for short inputs may change too",
        long_inputs="the effect is unknown",
        tolerance=BLAS_TOLERANCE,
        function=checked,
    )


def _settings_of(function: Callable[..., Any]) -> dict[str, Setting]:
    """Return the keyword-only arguments of a user-defined method as settings."""
    kinds = {int: "an integer", float: "a number", str: "text"}
    settings = dict[str, Setting]()
    for argument in inspect.signature(function).parameters.values():
        if argument.kind is not argument.KEYWORD_ONLY:
            continue
        default = argument.default
        kind = type(default)
        if kind in kinds:
            settings[argument.name] = Setting(
                "an argument of your function", must=kinds[kind], default=default, read=kind
            )
    return settings


# Methods with their settings, as text


def parse_method(text: str) -> MethodChoice:
    """Parse a method with its settings; those that are not given have their defaults.

    Methods of tables and of rotary positions can have the same name: the text then means the one
    that accepts all settings, first that of tables.

    Raises:
        ResizeError: The method or a setting is unknown, or a value is invalid; `others` has
            further errors.
    """
    name, _, settings = (part.strip() for part in text.partition(":"))
    methods = [TRUNCATION] if name == TRUNCATE else find_methods(name)
    readings = [(method, *_read_settings(method, settings)) for method in methods]
    method, given, errors = min(readings, key=lambda reading: len(reading[2]))
    raise_first(ResizeError(message, hint) for message, hint in errors)
    return method.choice(**given)


def _read_settings(method: Method, text: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Read the settings of a method; return the valid ones, and messages with hints."""
    accepted = dict(method.settings)
    if method is not TRUNCATION and method.keep_first is not None:
        accepted["keep_first"] = COUNT
    names = [key.replace("_", "-") for key in accepted]
    known = f"Settings of {method.name}: {', '.join(names) or 'none'}."
    settings = dict[str, Any]()
    errors = list[tuple[str, str]]()
    for part in text.split(",") if text else ():
        typed, _, value = (word.strip() for word in part.partition("="))
        key = typed.replace("-", "_")
        if key in settings:
            errors.append(
                (f"--method {method.name}: {typed} is given twice.", "Remove one of them.")
            )
        elif key not in accepted:
            near = did_you_mean(typed.replace("_", "-"), names)
            message = f"--method {method.name} has no setting {typed!r:.60}."
            errors.append((message, f"{near} {known}".strip()))
        else:
            try:
                settings[key] = accepted[key].parse(value)
            except ValueError:
                must = accepted[key].must
                message = f"--method {method.name}: {typed} must be {must}, got {value!r:.60}."
                errors.append((message, known))
    if method.name == "bands" and settings.get("sigma") == 0:
        for key in ("repeat", "high_gain"):  # of the high-frequency part, which there is none of
            if key in settings:
                message = f"--method bands: {key.replace('_', '-')} has no effect with sigma=0."
                errors.append((message, "Remove one of them."))
    return settings, errors


TRUNCATION_CHOICE = TRUNCATION.choice()  # of a shorter table
