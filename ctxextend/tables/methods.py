"""The methods that create the rows of a longer position table: one function each, with its facts beside it.

A method sees only the source rows, shape (n, d), float64, without reserved rows and without those that ``--keep-first``
and ``--drop-last`` leave out, and returns as many rows as it is asked for, shape (m, d), float64, m ≥ n. Those that
keep learned rows return them first, exactly. `bands` and `auto` have a module of their own.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ctxextend.tables.bands  # noqa: F401  (whose methods belong to METHODS)
from ctxextend.errors import ResizeError, did_you_mean
from ctxextend.tables.method_facts import FACTS, METHOD_NAMES, TOLERANCE, TRUNCATE, WHOLE, Method, Setting, method
from ctxextend.tables.sinusoids import BLOCK_ROWS, fit_sinusoids, principal_components, sinusoidal_rows

Rows = NDArray[np.float64]
Indices = NDArray[np.int64]

# What several methods cost texts that did not fit before.
CLOSER = "order is kept, but neighbours stand closer together than any it has seen"
UNTRAINED = "the new positions mean nothing to it until it is trained"
# The components that `spectral` continues, the sinusoids that fit them, and how far from the mean row its new rows may
# lie, in distances of the farthest learned row.
SPECTRAL_COMPONENTS, SINUSOIDS, MAX_DISTANCE = 64, 16, 2.0
# The components that `rotation` turns.
ROTATION_COMPONENTS = 512


@method(
    summary="repeat the learned rows",
    convention="row t is source row t mod the number of source rows",
    long_inputs="positions whole table lengths apart look the same to it, and order breaks at each seam",
    when="training follows, and short texts must stay exactly as they are until then",
    repeats_rows=True,
)
def copy(table: Rows, rows: int) -> Rows:
    """Fill the new rows by repeating the learned ones, as Longformer's `convert_model_to_long.ipynb` does.

    Source: Beltagy et al. 2020, Longformer, section 5, arXiv:2004.05150.
    """
    return table[np.arange(rows) % len(table)]


@method(
    summary="stretch the table by linear interpolation",
    keeps_learned_rows=False,
    convention="both ends kept (align_corners=True), in float64",
    long_inputs=CLOSER,
    when="long texts must work at once, and short ones may change",
)
def linear(table: Rows, rows: int) -> Rows:
    """Read row t at source position t·(n-1)/(m-1), linearly: torch's ``align_corners=True``; both ends stay.

    Source: Dosovitskiy et al. 2020, section 3.2, arXiv:2010.11929 (2-D),
        and Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378 (text).
    """
    lower, weight = _ends_kept(len(table), rows)
    return _interpolated(table, lower, weight > 0, [(weight, lower + 1, lower)])


@method(
    summary="continue with sinusoids; scope=all replaces the whole table",
    settings={"scope": Setting("which rows are sinusoids", "new or all", "new", str, ("new", "all").__contains__)},
    convention="sin and cos interleaved; scope new: mean + s·PE(t), s = median‖p - mean‖ / ‖PE(t)‖",
    long_inputs=UNTRAINED,
    when="training follows, and no two positions may look the same to it",
    takes_start=True,
)
def sinusoidal(table: Rows, rows: int, *, scope: str = "new", start: int = 0) -> Rows:
    """Continue the table with Vaswani's sinusoids, or replace it by them.

    ``new``: row i ≥ n is mean + s·PE(t), with PE(t) the sinusoid of the absolute position t = start + i and s such that
    it is as far from the rows' mean as the median row. ``all``: every row is PE(t), unscaled; `table` is not read.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    width = table.shape[1]
    if scope == "all":
        return sinusoidal_rows(np.arange(start, start + rows), width)
    mean = table.mean(axis=0)
    radius = np.median(np.linalg.norm(table - mean, axis=1))
    waves = sinusoidal_rows(np.arange(start + len(table), start + rows), width)
    waves *= (radius / np.linalg.norm(waves, axis=1))[:, None]
    waves += mean
    return _extended(table, rows, waves)


@method(
    summary="stretch the table by cubic convolution",
    keeps_learned_rows=False,
    convention="both ends kept (align_corners=True), a = -0.75, end rows repeated beyond the ends, in float64",
    long_inputs=CLOSER,
    when="as linear, where the table is smooth and its norms must not shrink between rows",
)
def cubic(table: Rows, rows: int) -> Rows:
    """Read row t at source position t·(n-1)/(m-1), from the four rows around it; both ends stay.

    The kernel is Keys' with a = -0.75, as of `torch.nn.functional.interpolate` in mode ``bicubic``.

    Source: Keys 1981, IEEE Transactions on Acoustics, Speech, and Signal Processing 29(6), pages 1153-1160.
    """
    lower, distance = _ends_kept(len(table), rows)
    # The weights add up to 1, so the row's own is not needed.
    steps = [(_keys(np.abs(offset - distance)), lower + offset, lower) for offset in (-1, 1, 2)]
    return _interpolated(table, lower, distance > 0, steps)


@method(
    summary="let groups of neighbouring positions share a learned row",
    keeps_learned_rows=False,
    convention="row t is source row floor(t·n/m), of n source rows for m",
    long_inputs="it cannot tell the positions of a group apart",
    when="long texts must work at once, by learned rows alone",
    repeats_rows=True,
)
def nearest(table: Rows, rows: int) -> Rows:
    """Let groups of neighbouring positions share a row: where m = s·n, each row stands s times in a row.

    Source: Zhu et al. 2024, LongEmbed, grouped positions, arXiv:2404.12096.
    """
    return table[np.arange(rows) * len(table) // rows]


@method(
    summary="go back and forth through the learned rows",
    convention="numpy.pad's mode reflect: the rows at the turns are not repeated",
    long_inputs="order runs backwards in every other stretch, and positions at equal distance from a turn look "
    "the same to it",
    when="training follows, and neighbours must look like neighbours everywhere: there is no seam",
    repeats_rows=True,
)
def mirror(table: Rows, rows: int) -> Rows:
    """Go back and forth through the learned rows, so that neighbours stay neighbours.

    Source: our own, as numpy.pad does it in mode "reflect".
    """
    return table[np.pad(np.arange(len(table)), (0, rows - len(table)), "reflect")]


@method(
    summary="keep the first 20 rows and stretch the others, as Long-CLIP does",
    keeps_learned_rows=False,
    convention="row t is read at source position t·n/m, past the last row along the last step, in float64",
    long_inputs=CLOSER,
    when="long texts must work at once, and most texts are short, as in CLIP",
    keep_first=20,
)
def stretch(table: Rows, rows: int) -> Rows:
    """Read row t at source position t·n/m, linearly, and past the last row along the last step.

    Source: Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378; `load_from_clip`, 77 to 248.
    """
    lower, remainder = np.divmod(np.arange(rows) * len(table), rows)
    behind = np.minimum(lower, max(len(table) - 2, 0))
    return _interpolated(table, lower, remainder > 0, [(remainder / rows, behind + 1, behind)])


@method(
    summary="combine two learned rows for each position, one per digit",
    settings={
        "alpha": Setting(
            "the first digit's weight", "between 0 and 1, and not 0.5", 0.4, float, lambda a: 0 < a < 1 and a != 0.5
        )
    },
    convention="row i·n + j is alpha·u_i + (1 - alpha)·u_j, u = (p - alpha·p_0) / (1 - alpha), in float64",
    long_inputs="no two positions look the same to it, but order breaks at each seam until it is trained",
    when="a short training follows, to many times the length; n rows make n times n at most",
    max_rows=lambda learned: learned**2,
)
def hierarchical(table: Rows, rows: int, *, alpha: float = 0.4) -> Rows:
    """Write each position in two digits to the base n, and add a row for each digit: n² at most; the first n stay.

    Row i·n + j is a·u_i + (1-a)·u_j, with u = (p - a·p_0) / (1-a), p the source rows.

    Source: Su Jianlin 2020, kexue.fm/archives/7947, and his bert4keras.
    """
    units = (table - alpha * table[0]) / (1 - alpha)
    result = _extended(table, rows, table[0])
    for start in range(len(table), rows, BLOCK_ROWS):
        digits = np.divmod(np.arange(start, min(start + BLOCK_ROWS, rows)), len(table))
        result[start : start + BLOCK_ROWS] = alpha * units[digits[0]] + (1 - alpha) * units[digits[1]]
    return result


@method(
    summary="repeat the last learned row",
    convention="row t is source row min(t, n - 1)",
    long_inputs="all new positions look the same to it",
    when="a comparison needs it: it knows nothing of order past the old end",
    keep_first=None,
    repeats_rows=True,
)
def last(table: Rows, rows: int) -> Rows:
    """Fill the new rows with the last learned one.

    Source: our own, as numpy.pad does it in mode "edge".
    """
    return table[np.minimum(np.arange(rows), len(table) - 1)]


@method(
    summary="fill the new rows with the mean of the learned ones",
    convention="the mean of the source rows, in float64",
    long_inputs="all new positions look the same to it",
    when="a comparison needs it: new rows that say the least",
)
def mean(table: Rows, rows: int) -> Rows:
    """Fill the new rows with the mean of the learned ones.

    Source: after Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models" (for words).
    """
    return _extended(table, rows, table.mean(axis=0))


@method(
    summary="draw the new rows at random, like the learned ones",
    settings={"seed": Setting("the random seed", *WHOLE)},
    convention="mean + std·z by column, z row by row from numpy.random.default_rng(seed).standard_normal",
    long_inputs=UNTRAINED,
    when="a comparison needs a baseline, as if the new positions were trained from scratch",
)
def random(table: Rows, rows: int, *, seed: int = 0) -> Rows:
    """Draw the new rows, in order, with each column's mean and standard deviation in the learned ones.

    Source: our own, the baseline; each column's mean and deviation after Hewitt 2021, as for `mean`.
    """
    drawn = np.random.default_rng(seed).standard_normal((rows - len(table), table.shape[1]))
    return _extended(table, rows, drawn * table.std(axis=0) + table.mean(axis=0))


@method(
    summary="continue the leading components as fitted sinusoids",
    convention="64 components, up to 16 common frequencies; up to twice as far from the mean as learned rows",
    long_inputs="the waves that it has seen go on, but their small differences from the learned rows do not",
    when="training follows, and the table is smooth and periodic (inspect shows how much)",
    tolerance=TOLERANCE,
)
def spectral(table: Rows, rows: int) -> Rows:
    """Continue the leading components of the learned rows as sinusoids.

    The 64 leading principal components, as curves over the positions, are fitted together by a constant and up to 16
    sinusoids of common frequencies. No new row is farther from the mean row than twice the farthest learned one.

    Source: our own; frequencies after Zechmeister & Kuerster 2009, section 2, arXiv:0901.2573.
    """
    found = principal_components(table, SPECTRAL_COMPONENTS)
    result = _extended(table, rows, found.mean)
    if not found.coordinates.any():
        return result
    fit = fit_sinusoids(found.coordinates, SINUSOIDS)
    bound = MAX_DISTANCE * np.linalg.norm(found.coordinates, axis=1).max()
    for start in range(len(table), rows, BLOCK_ROWS):
        block = fit.at(np.arange(start, min(start + BLOCK_ROWS, rows)))
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True) / bound, 1)
        result[start : start + BLOCK_ROWS] = found.mean + block @ found.directions
    return result


@method(
    summary="continue by the rotation that best takes each row to the next",
    convention="orthogonal Procrustes in 512 components around the mean; as far from it as the median row",
    long_inputs="each step looks like a learned one to it, but errors of the rotation add up",
    when="training follows, and neighbours must be as far apart as learned ones are",
    tolerance=TOLERANCE,
)
def rotation(table: Rows, rows: int) -> Rows:
    """Continue the learned rows by the rotation that best takes each to the next.

    R is the orthogonal matrix for which the rows less their mean, times R, are nearest to those that follow them, in
    the 512 leading principal components. New row n-1+k is mean + s·(last row - mean)·R^k, with s such that it is as far
    from the mean as the median learned row.

    Source: our own; R by Golub & Van Loan 2013, "Matrix Computations", 4th edition, section 6.4.1.
    """
    found = principal_components(table, ROTATION_COMPONENTS)
    result = _extended(table, rows, found.mean)
    norms = np.linalg.norm(found.coordinates, axis=1)
    if not norms[-1] > 0:
        return result
    left, _, right = np.linalg.svd(found.coordinates[:-1].T @ found.coordinates[1:])
    power = left @ right
    block = found.coordinates[-1:] * (np.median(norms) / norms[-1]) @ power
    # Rows 1 … k times R^k are the next k rows; the block doubles until it is large enough.
    while len(block) < min(BLOCK_ROWS, rows - len(table)):
        block, power = np.vstack([block, block @ power]), power @ power
    for start in range(len(table), rows, len(block)):
        result[start : start + len(block)] = found.mean + (block @ found.directions)[: rows - start]
        block = block @ power
    return result


def _extended(table: Rows, rows: int, fill: Rows) -> Rows:
    """Return learned rows, shape (n, d), followed by new ones, shape (m - n, d), or one for all of them, shape (d,)."""
    result = np.empty((rows, table.shape[1]))
    result[: len(table)] = table
    result[len(table) :] = fill
    return result


def _ends_kept(learned: int, rows: int) -> tuple[Indices, Rows]:
    """Return for each row of a table stretched to its ends the source row at or before it, and the distance to it."""
    steps = max(rows - 1, 1)
    lower, remainder = np.divmod(np.arange(rows) * (learned - 1), steps)  # integers decide which rows coincide
    return lower, remainder / steps


def _keys(distance: Rows) -> Rows:
    """Return Keys' kernel with a = -0.75 at distances of up to 2 rows."""
    near = (1.25 * distance - 2.25) * distance**2 + 1
    far = -0.75 * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, far)


def _interpolated(
    table: Rows, start: Indices, is_between: NDArray[np.bool_], steps: Sequence[tuple[Rows, Indices, Indices]]
) -> Rows:
    """Return source rows, each moved by shares of the differences between others; beyond its ends the table goes on.

    Row t starts from source row `start[t]`. Where it `is_between`, each step adds a share of the difference between two
    rows, of shape (m,) each; elsewhere no other row is read, since that may hold NaN.
    """
    result = np.empty((len(start), table.shape[1]))
    for first in range(0, len(start), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        moved = table[start[block]]
        for share, to, origin in steps:
            ends = (table[rows[block].clip(0, len(table) - 1)] for rows in (to, origin))
            moved += share[block, None] * np.subtract(*ends)
        result[block] = np.where(is_between[block, None], moved, table[start[block]])
    return result


METHODS: dict[str, Method] = {name: FACTS[name] for name in METHOD_NAMES}


def find_method(name: str) -> Method:
    """Return the method of a name; raise ResizeError where there is none, and say which is nearest."""
    if name in METHODS:
        return METHODS[name]
    hint = did_you_mean(name, METHODS) or f"Methods: {', '.join(METHODS)}; your own by ctxextend.register_method."
    raise ResizeError(f"There is no method {name!r:.60}.", hint)


def list_methods() -> list[Method]:
    """Return every method, the default first."""
    return list(METHODS.values())


def register_method(name: str, function: Callable[..., Any]) -> None:
    """Register a function as a method that `resize`, `extend_model` and `compare` take by its name.

        def fade(rows, length, *, power=1.0):
            new = np.arange(len(rows), length)[:, None] / len(rows)
            return np.vstack([rows, rows.mean(axis=0) + (rows[-1] - rows.mean(axis=0)) / new**power])

        ctxextend.register_method("fade", fade)
        ctxextend.resize("gpt2", 4096, "fade:power=2")

    It holds in this process. Recipes name the method and never hold its code: register it again to run or verify them.

    Args:
        name: Lower-case letters, digits, ``-`` and ``_``, a letter first; of no other method.
        function: Called with the learned rows, shape (n, d), float64, a copy, without reserved rows and those that
            ``keep_first`` and ``drop_last`` leave out, and with the number of rows wanted, m > n. It returns them all,
            shape (m, d), finite; they are cast to the table's dtype once. Its keyword-only arguments are its settings,
            if their defaults are int, float or str; text without commas and without space around it.

    Raises:
        ResizeError: There is a method of that name, or it can be none; a default is a bool, or text that no setting
            can be. Where the method is used: what the function returns has another shape, or is not finite.
    """
    if name in (*METHODS, TRUNCATE, "all") or not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise ResizeError(f"{name!r} is a method's name already, or can be none.", "Use another, such as my-method.")

    named = [one for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for one in named:
        if isinstance(one.default, bool) or (isinstance(one.default, str) and re.search(r"^\s|,|\s$", one.default)):
            hint = "Use 0 or 1 for a bool, and text without commas and without space around it."
            raise ResizeError(f"Method {name}: {one.name}={one.default!r} can be no setting.", hint)

    def checked(table: Rows, rows: int, **settings: Any) -> Rows:
        made = np.asarray(function(table, rows, **settings), np.float64)
        if made.shape != (rows, table.shape[1]):
            raise ResizeError(f"Method {name} returned shape {made.shape}, not {(rows, table.shape[1])}.")
        if not np.isfinite(made).all():
            raise ResizeError(f"Method {name} returned NaN or infinity.")
        return made

    kinds = {int: "a whole number", float: "a number", str: "text"}
    settings = {
        one.name: Setting("of your function", kinds[type(one.default)], one.default, type(one.default))
        for one in named
        if type(one.default) in kinds
    }
    METHODS[name] = Method(
        name=name,
        summary="a function of your own",
        keeps_learned_rows=False,
        settings=settings,
        when="you try it",
        source="ctxextend.register_method",
        convention="a function of the user's own",
        short_inputs="short texts may change too",
        long_inputs="what it makes of new positions is not known",
        tolerance=TOLERANCE,
        function=checked,
    )
