"""Bands: a table as a slow curve, where in the text a row stands, and a fast one, which neighbour it is.

Interpolation keeps the slow band and ruins the fast one, by which heads find the previous token; copying keeps the
fast band and breaks the slow one at every seam. `bands` stretches the one and repeats the other. `auto` is `bands`
with all its defaults, or linear interpolation for a table that is too short to split.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.sinusoids import BLOCK_ROWS
from ctxextend.tables.stats import find_outliers, norms_and_neighbours

__all__ = [
    "SEAM",
    "SHORTEST",
    "Split",
    "auto",
    "bands",
    "choose_split",
    "default_gain",
    "explain_auto",
    "explain_bands",
    "find_repeats",
    "smoothed",
]

Rows = NDArray[np.float64]

# Standard deviations of the narrowest and the widest Gaussian that are tried, in rows, and the share of the table that
# the widest may have.
NARROWEST, WIDEST, WIDEST_SHARE = 4.5, 16.0, 1 / 8
# Of a Gaussian of sigma rows, the frequency of which half the amplitude is left, in cycles a row times sigma.
CUT = float(np.sqrt(np.log(2) / 2) / np.pi)
# A valley is as wide as its power stays below so many times its lowest, or below such a share of all.
FLAT, NOTHING = 1.5, 0.002
# Standard deviations beyond which a Gaussian is nothing.
REACH = 6
# How far the autocorrelation of what is left must be from that of noise for it to be more, over so many lags, and which
# share of the rows' variance it must be.
GRAIN, LAGS, LEAST_FAST = 0.1, 32, 0.1
# How alike the ends of what repeats must be for as much as possible to repeat: then it costs nothing.
GOOD_MATCH = 0.5
# What repeats is at least so large a share of the table, and is looked for among so many lengths.
LEAST_SHARE, LENGTHS = 1 / 2, 512
# Rows on either side of a seam that are compared, and blended.
SEAM = 8
# The share of the table within which rows must grow apart for near ones to be told from far ones by them.
NEAR = 1 / 8
# By how much a table is widened around its mean for each doubling: where near rows are told apart, and elsewhere; and
# at most.
GAIN, FAR_GAIN, MOST_GAIN = 0.2, 0.1, 1.6
# The share of the median norm below which a row was never trained.
LEAST_NORM = 0.2
# Columns whose spectra are held at once.
COLUMNS = 64
# Rows below which a table is too short to be parted.
SHORTEST = 4 * SEAM


@dataclass(frozen=True)
class Split:
    """How a table is parted.

    Attributes:
        head: Rows at the start that are unlike the others, such as an attention sink; they stay.
        stop: One behind the last row that is like the others.
        is_local: Whether rows an eighth of the table apart have less than half in common of what neighbours have.
        sigma: Standard deviation of the Gaussian that leaves the slow band, in rows; 0 where nothing is repeated.
        grain: How far from noise that is what such a Gaussian leaves: the sum, over lags of up to 32 rows, of squared
            differences of its autocorrelation from that of noise.
        share: The share of the variance of the rows that it leaves, 0 to 1.
        repeat: The rows of the fast band that repeat, from the first to one behind the last; none where sigma is 0.
        match: How alike the rows around both ends of these are, -1 to 1.
    """

    head: int
    stop: int
    is_local: bool = False
    sigma: float = 0.0
    grain: float = 0.0
    share: float = 0.0
    repeat: tuple[int, int] = (0, 0)
    match: float = 0.0


def choose_split(
    table: Rows, *, keep: int = 0, sigma: float | None = None, repeat: tuple[int, int] | None = None
) -> Split:
    """Choose from a table alone how it is parted.

    Sigma is where the valley begins that the spectrum of the rows has between what changes over the whole table and
    what changes from row to row. Where what it leaves is little, or has the autocorrelation of noise, sigma is 0. Of
    the stretches of half the table, and up to 511 rows more, that one repeats whose ends are most alike; where they are
    much alike, sigma is an eighth of the table, so that all repeats but its trend.

    Args:
        table: Learned rows, shape (n, d), float64.
        keep: Rows at the start that will stay as they are: the first repetition begins behind them.
        sigma: Rows, ≥ 0, in place of what would be chosen.
        repeat: The first row that repeats and one behind the last, in place of what would be chosen.
    """
    split = _alike(table)
    source = table[split.head : split.stop]
    if len(source) < SHORTEST or not np.isfinite(source).all():
        return split
    split = replace(split, is_local=_is_local(source))
    wanted = _valley(source) if sigma is None else sigma
    if not wanted:
        return split
    ends = max(min(keep, split.stop) - split.head, 0), _within(split, repeat)
    found = _parted(split, source, wanted, *ends)
    if sigma is None and repeat is None and (found.grain < GRAIN or found.share < LEAST_FAST):
        return replace(split, grain=found.grain, share=found.share)
    if sigma is None and found.match >= GOOD_MATCH:
        found = max(found, _parted(split, source, WIDEST_SHARE * len(source), *ends), key=_is_good)
    return found


def _is_good(split: Split) -> tuple[bool, float]:
    return split.match >= GOOD_MATCH, split.sigma


def find_repeats(table: Rows, sigma: float, most: int, *, keep: int = 0) -> list[tuple[int, int]]:
    """Return the stretches whose ends are most alike, the best first, and behind them all rows that are alike.

    Args:
        table: Learned rows, shape (n, d), float64.
        sigma: Rows of the Gaussian that leaves the slow band, above 0.
        most: Stretches wanted; no two are nearly of one length, since those would differ in little.
        keep: As in `choose_split`.
    """
    split = _alike(table)
    source = table[split.head : split.stop]
    if len(source) < SHORTEST or not np.isfinite(source).all():
        return []
    fast = _left(source, sigma)
    found = list[tuple[int, int]]()
    loops = _loops(fast, max(min(keep, split.stop) - split.head, 0))
    for (first, last), _ in sorted(loops, key=lambda loop: -loop[1]):
        if len(found) < most and all(abs((stop - start) - (last - first)) >= SEAM for start, stop in found):
            found.append((first + split.head, last + split.head))
    return [*found, (split.head, split.stop)]


def default_gain(split: Split, learned: int, rows: int) -> float:
    """Return by how much a table is widened that grows from so many rows to so many."""
    doublings = np.log2(max(rows / max(learned, 1), 1))
    return float(min(1 + (GAIN if split.is_local else FAR_GAIN) * doublings, MOST_GAIN))


def smoothed(rows: Rows, sigma: float) -> Rows:
    """Return rows smoothed by lines that are fitted around each by least squares, with Gaussian weights.

    Args:
        rows: Shape (n, d), float64.
        sigma: Standard deviation of the Gaussian, in rows, above 0.

    Returns:
        Shape (n, d), float64. A line stays what it is, up to its ends.

    Source: local linear regression, Fan & Gijbels 1996, "Local Polynomial Modelling and Its Applications", section 2.3.
    """
    count, reach = len(rows), int(REACH * sigma) + 1
    result = np.empty_like(rows)
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        low, high = max(start - reach, 0), min(stop + reach, count)
        steps = np.arange(low, high)[None] - np.arange(start, stop)[:, None]
        weights = np.exp(-0.5 * (steps / sigma) ** 2)
        zeroth, first, second = ((weights * steps**power).sum(axis=1, keepdims=True) for power in range(3))
        weights *= (second - first * steps) / (zeroth * second - first**2)
        result[start:stop] = weights @ rows[low:high]
    return result


def _alike(table: Rows) -> Split:
    """Return the split whose ends are the rows that are like those around them."""
    if len(table) < SHORTEST:
        return Split(0, len(table))
    norms, cosines, _ = norms_and_neighbours(table)
    outliers = find_outliers(norms, cosines)
    # Where many rows at the end were never trained, none of them stands out from those around it.
    finite = norms[np.isfinite(norms)]
    if finite.size:
        outliers |= dict.fromkeys(np.flatnonzero(norms < LEAST_NORM * np.median(finite)).tolist(), "")
    head, stop = 0, len(table)
    while head in outliers and head < len(table) // 4:
        head += 1
    while stop - 1 in outliers and stop > 3 * len(table) // 4:
        stop -= 1
    return Split(head, stop)


def _valley(rows: Rows) -> float:
    """Return the sigma that parts a table where the valley of its spectrum begins, between slow and fast."""
    widest = min(WIDEST, WIDEST_SHARE * len(rows))
    line = np.linspace(0, 1, len(rows))[:, None]
    taper = np.hanning(len(rows) + 2)[1:-1, None]
    levelled = (
        (block - (1 - line) * block[:SEAM].mean(axis=0) - line * block[-SEAM:].mean(axis=0)) * taper
        for block in _columns(rows)
    )
    power = _power(levelled, len(rows))
    frequencies = np.fft.rfftfreq(len(rows))
    tried = np.flatnonzero((frequencies >= CUT / widest) & (frequencies <= CUT / NARROWEST))
    if not len(tried):  # few rows have few frequencies
        return widest
    floor = max(FLAT * power[tried].min(), NOTHING * power.sum())
    return float(CUT / frequencies[tried[power[tried] <= floor][0]])


def _is_local(rows: Rows) -> bool:
    """Whether rows an eighth of the table apart have less than half in common of what neighbours have."""
    common = _autocorrelation((block - block.mean(axis=0) for block in _columns(rows)), len(rows), NEAR)
    return bool((common < common[0] / 2).any())


def _parted(split: Split, rows: Rows, sigma: float, least_stop: int, given: tuple[int, int] | None) -> Split:
    """Return the split with what can be said of the part of some rows that a Gaussian leaves; see `_loop`."""
    fast = _left(rows, sigma)
    variance = sum(float(np.square(block - block.mean(axis=0)).sum()) for block in _columns(rows))
    share = float(np.einsum("td,td->", fast, fast)) / variance if variance > 0 else 0.0
    found = _autocorrelation(_columns(fast), len(rows), min(LAGS / len(rows), 1 / 2))
    apart = found - _noise_autocorrelation(min(sigma, float(len(rows))), len(found))
    grain = float(np.square(apart).sum()) if share > 0 else 0.0
    repeat, match = _loop(fast, least_stop, given)
    repeat = repeat[0] + split.head, repeat[1] + split.head
    return replace(split, sigma=sigma, grain=grain, share=share, repeat=repeat, match=match)


def _left(rows: Rows, sigma: float) -> Rows:
    """Return what a Gaussian leaves of rows."""
    slow = smoothed(rows, sigma)
    return np.subtract(rows, slow, out=slow)


def _columns(rows: Rows) -> Iterator[Rows]:
    """Yield some columns at a time, so that no second table is held."""
    for start in range(0, rows.shape[1], COLUMNS):
        yield rows[:, start : start + COLUMNS]


def _power(blocks: Iterable[Rows], length: int) -> Rows:
    """Return the power at each frequency of rows, padded to a length, all columns together."""
    return sum((np.square(np.abs(np.fft.rfft(block, length, axis=0))).sum(axis=1) for block in blocks), np.zeros(1))


def _autocorrelation(blocks: Iterable[Rows], count: int, most: float) -> Rows:
    """Return how much rows have in common with those 1, 2, … behind them, -1 to 1 each, shape (lags,).

    Args:
        blocks: The rows, some columns at a time.
        count: How many rows there are.
        most: The largest lag, as a share of them.
    """
    steps = np.arange(1, max(round(most * count), 1) + 1)
    power, squares = np.zeros(count + 1), np.zeros(count)
    for block in blocks:
        power += _power([block], 2 * count)
        squares += np.einsum("td,td->t", block, block)
    products, sums = np.fft.irfft(power)[steps], np.concatenate([[0], np.cumsum(squares)])
    norms = np.sqrt(sums[count - steps] * (sums[-1] - sums[steps]))
    found: Rows = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return found


def _noise_autocorrelation(sigma: float, lags: int) -> Rows:
    """Return the same of what a Gaussian leaves of noise, away from the ends: each row loses a bit of those near."""
    reach = int(REACH * sigma) + 1
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    left = -weights / weights.sum()
    left[reach] += 1
    products = np.correlate(np.concatenate([left, np.zeros(lags)]), left, "valid")
    return np.asarray(products[1:] / products[0], np.float64)


def _within(split: Split, repeat: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return what shall repeat as rows behind the head, as far as they are there."""
    if repeat is None:
        return None
    first = min(max(repeat[0], split.head), split.stop - 1) - split.head
    return first, max(min(repeat[1], split.stop) - split.head, first + 1)


def _loop(fast: Rows, least_stop: int, given: tuple[int, int] | None) -> tuple[tuple[int, int], float]:
    """Return the stretch whose ends are most alike, from its first row to one behind its last, and how alike they are.

    Args:
        fast: Shape (n, d).
        least_stop: It ends there or later.
        given: The one stretch that is tried; None is all of half the table or more.
    """
    if given is None:
        return max(_loops(fast, least_stop), key=lambda found: found[1], default=((0, len(fast)), -1.0))
    length = given[1] - given[0]
    if length == len(fast):
        return given, 0.0  # no row stands behind it that could be compared
    return given, float(next(_alike_after(fast, range(length, length + 1)))[given[0]])


def _loops(fast: Rows, least_stop: int) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield of each length the stretch whose ends are most alike, and how alike they are; arguments as of `_loop`."""
    shortest = max(int(LEAST_SHARE * len(fast)), SEAM)
    lengths = range(shortest, min(shortest + LENGTHS, len(fast) - SEAM + 1))
    for length, alike in zip(lengths, _alike_after(fast, lengths), strict=True):
        # Rows on both sides are compared, unless all learned rows stay, so that the seam lies behind the last.
        places = np.arange(max(SEAM, least_stop - length), max(len(fast) - SEAM, least_stop) - length + 1)
        if len(places):
            place = int(places[np.argmax(alike[places])])
            yield (place, place + length), float(alike[place])


def _alike_after(fast: Rows, lengths: range) -> Iterator[Rows]:
    """Yield for each length how alike the 16 rows around each row are to those so many rows behind, -1 to 1.

    Each is of shape (n - length + 1,): place i compares what stands around the boundary in front of row i.
    """
    window = np.hanning(2 * SEAM + 2)[1:-1]
    squares = np.einsum("td,td->t", fast, fast)
    products = _products(fast, lengths)
    for length in lengths:
        count = len(fast) - length
        both, one, other = (
            np.convolve(values, window)[SEAM - 1 : SEAM + count]
            for values in (products[length - lengths[0], :count], squares[length:], squares[:count])
        )
        norms = np.sqrt(one * other)
        yield np.divide(both, norms, out=np.zeros_like(both), where=norms > 0)


def _products(fast: Rows, lengths: range) -> Rows:
    """Return the products of each row and that so many rows behind it, shape (lengths, n); 0 where there is none."""
    result = np.zeros((len(lengths), len(fast)))
    for start in range(0, len(fast) - lengths[0], BLOCK_ROWS):
        block = fast[start : start + BLOCK_ROWS]
        behind = fast[start + lengths[0] : start + BLOCK_ROWS + lengths[-1]]
        found = block @ behind.T
        for row in range(len(block)):
            there = found[row, row : row + len(lengths)]
            result[: len(there), start + row] = there
    return result


Places = NDArray[np.int64]


def bands(
    table: Rows,
    rows: int,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
) -> Rows:
    """Stretch the slow band of the learned rows, and repeat the fast one as it was learned.

    The slow band S is the rows smoothed by a Gaussian of `sigma` rows (local linear, so that its ends do not bend), the
    fast band F what that leaves. Row t is mean + gain·(S(u) - mean + F(v)): u is where linear interpolation that keeps
    both ends reads the table, and v runs on row by row, from `repeat`'s end back to its start, blended over 8 rows on
    either side. Rows at either end that are unlike the others are no part of it; those in front stay.

    Args:
        table: Learned rows, shape (n, d), float64.
        rows: Rows wanted, m ≥ n.
        keep: Rows at the start that stay as they are; the slow band is stretched from the last of them on, and held
            where all stay.
        sigma: Rows, ≥ 0; at 0 nothing is fast, and it is linear interpolation, widened by `gain`. None is chosen from
            the table.
        repeat: The source rows that repeat, from the first to one behind the last. None is chosen from the table.
        gain: By how much rows lie farther from the mean than they were learned: longer texts have more to attend to.
            None is 1 + 0.2·log2(m / n), or where far rows are much like near ones 1 + 0.1·log2(m / n), at most 1.6.

    Returns:
        Shape (m, d), float64.

    Source: our own; after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (rotary positions), which
        stretches slow rotations, keeps fast ones, and sharpens attention with length.
    """
    if rows == len(table):
        return table.copy()
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat)
    source = table[split.head : split.stop]
    slow = smoothed(source, split.sigma) if split.sigma else source
    mean = _mean(slow)
    widened = default_gain(split, len(table), rows) if gain is None else gain
    first = max(split.head, keep)
    places = _places(max(split.head, keep - 1), split.stop - 1, rows) - split.head
    old, new, share = _turns(split, np.arange(rows)) if split.sigma else (places, places, places)
    result = np.empty((rows, table.shape[1]))
    result[:first] = table[:first]
    for start in range(first, rows, BLOCK_ROWS):
        block = slice(start, min(start + BLOCK_ROWS, rows))
        made = _read(slow, places[block])
        if split.sigma:
            weight = share[block, None]
            made += (1 - weight) * (source[old[block]] - slow[old[block]])
            made += weight * (source[new[block]] - slow[new[block]])
        result[block] = made + (widened - 1) * (made - mean)
    return result


def _mean(rows: Rows) -> Rows:
    """Return the mean of the rows that are numbers: one that is not must not spoil all others."""
    finite = np.isfinite(rows).all(axis=1)
    if finite.all():
        return np.asarray(rows.mean(axis=0), np.float64)
    return rows[finite].mean(axis=0) if finite.any() else np.zeros(rows.shape[1])


def _places(first: int, last: int, rows: int) -> Rows:
    """Return where each row of a longer table is read: to `first` in place, from there to `last` in equal steps."""
    steps = np.maximum(np.arange(rows) - first, 0)
    return np.minimum(np.arange(rows), first) + steps * (max(last - first, 0) / max(rows - 1 - first, 1))


def _read(rows: Rows, places: Rows) -> Rows:
    """Return rows between rows, linearly, and behind the last that."""
    places = np.minimum(places, len(rows) - 1)
    lower = np.clip(np.floor(places).astype(np.int64), 0, max(len(rows) - 2, 0))
    weight = (places - lower)[:, None]
    return (1 - weight) * rows[lower] + weight * rows[np.minimum(lower + 1, len(rows) - 1)]


def _turns(split: Split, rows: Places) -> tuple[Places, Places, Rows]:
    """Return for each row of a longer table its row of the fast band, the one that it fades into, and how far."""
    start, stop = (end - split.head for end in split.repeat)
    last, length = split.stop - split.head - 1, max(stop - start, 1)
    run = rows - split.head - stop
    since = run % length
    step = np.where(length - since <= SEAM, since - length, since)  # from the nearest seam, where one is near
    near = (run >= -SEAM) & (step < SEAM)
    old = np.where(near, stop + step, np.where(run < 0, rows - split.head, start + since))
    new = np.where(near, start + step, old)
    share = np.where(old > last, 1.0, np.where(near, (step + SEAM + 0.5) / (2 * SEAM), 0.0))
    return old.clip(0, last), new.clip(0, last), share


def auto(table: Rows, rows: int, *, keep: int = 0) -> Rows:
    """Make the new rows by `bands`, or of a table of fewer than 32 rows, which tell too little, by `linear`.

    Args:
        table: Learned rows, shape (n, d), float64.
        rows: Rows wanted, m ≥ n.
        keep: Rows at the start that stay as they are.

    Returns:
        Shape (m, d), float64.

    Source: our own.
    """
    return bands(table, rows, keep=keep, **_flags(table))


def _flags(table: Rows) -> dict[str, Any]:
    # bands without a fast part that widens nothing is linear interpolation
    return {"sigma": 0.0, "gain": 1.0} if len(table) < SHORTEST else {}


def explain_auto(table: Rows, rows: int, *, keep: int = 0) -> str:
    """Say which method `auto` takes, and why; arguments as there."""
    if _flags(table):
        return f"auto took linear: {len(table)} rows tell too little of themselves to part them"
    return f"auto took {explain_bands(table, rows, keep=keep)}"


def explain_bands(
    table: Rows,
    rows: int,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
) -> str:
    """Say what `bands` does with a table, and by which of its figures; arguments as there."""
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat)
    widened = default_gain(split, len(table), rows) if gain is None else gain
    if split.stop - split.head < SHORTEST or not np.isfinite(table[split.head : split.stop]).all():
        return f"bands without a fast part: the rows are too few to part, or no numbers; gain {widened:.3g}"
    near = "rows grow apart within an eighth of the table" if split.is_local else "far rows are much like near ones"
    why = f"gain {widened:.3g} ({'as given' if gain is not None else near})"
    if not split.sigma:
        left = f" (smoothing leaves {split.share:.0%} of the variance, {split.grain:.2g} from noise)"
        return f"bands without a fast part{left if sigma is None else ''}: the rows are stretched, {why}"
    first, stop = split.repeat
    left = f"it leaves {split.share:.0%} of the variance, {split.grain:.2g} from noise"
    what = f"bands with sigma {split.sigma:.3g} ({left}), --repeat {first}:{stop} (its ends match by {split.match:.2f})"
    return f"{what}, {why}"
