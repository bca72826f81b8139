"""Split a table into a low-frequency and a high-frequency part, for the method `bands`.

The low-frequency part, a smooth curve, encodes the absolute position; the high-frequency part, the
residual, encodes local order. Interpolation keeps the former but distorts the latter, which
attention heads use to find the previous token; tiling keeps the latter but breaks the former at
every seam. `bands` interpolates the former, tiles the latter.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.layouts import BLOCK_ROWS
from ctxextend.tables.method_facts import MethodChoice
from ctxextend.tables.stats import find_outliers, median, norms_and_cosines

Rows = NDArray[np.float64]
Indices = NDArray[np.int64]
Range = tuple[int, int]  # half-open, of rows

SEAM = 8  # rows on either side of a seam that are compared and blended
MIN_ROWS = 4 * SEAM  # the fewest rows that can be split
BLOCK_COLUMNS = 64  # columns whose spectra are computed at once, to limit memory

# The filter. Sigmas that are tried, in rows; the greatest also as a share of the rows.
MIN_SIGMA = 4.5
MAX_SIGMA = 16.0
MAX_SIGMA_SHARE = 1 / 8
REACH = 6  # standard deviations at which the Gaussian is truncated
# The half-amplitude cutoff frequency of a Gaussian filter, in cycles per row, times its sigma.
HALF_AMPLITUDE = math.sqrt(math.log(2) / 2) / math.pi
# A valley of the spectrum extends while its power is below this multiple of its minimum, or this
# share of the total.
VALLEY_FACTOR = 1.5
VALLEY_SHARE = 0.002
MIN_NORM = 0.2  # rows at the ends whose norm is below this share of the median are untrained

# The high-frequency part is tiled only if its autocorrelation over this many lags differs from that
# of noise by this much, and its share of the variance is this large.
LAGS = 32
MIN_NOISE_DISTANCE = 0.1
MIN_HIGH_SHARE = 0.1
# Correlation of the ends of the tiled range from which seams cost nothing: the filter is widened.
GOOD_MATCH = 0.5
MIN_REPEAT_SHARE = 1 / 2  # minimum of the tiled range, as a share of the table
LENGTHS = 512  # lengths of the tiled range that are tried
LOCAL_SHARE = 1 / 8  # of the table, within which the autocorrelation of local rows falls by half

# Gains without a high-frequency part: per doubling of the length, and at most.
LOCAL_GAIN = 0.2
FAR_GAIN = 0.1
MAX_GAIN = 1.6
# The gain of the low-frequency part restores this multiple of the high-frequency part's standard
# deviation, times a power of the ratio of the lengths, between two other powers.
LOW_TO_HIGH = 2 / 3
LOW_POWER = 1 / 3
LEAST_LOW_POWER = 1 / 4
GREATEST_LOW_POWER = 3 / 4
HIGH_POWER = 1 / 6  # of the ratio of the lengths: the gain of the high-frequency part
MAX_RATIO = 8  # of the lengths, up to which gains grow
# The same if all learned rows are kept, so that new ones differ by their high-frequency part only.
KEPT_HIGH_POWER = 1 / 2
MAX_KEPT_RATIO = 2


class BandSplit(NamedTuple):
    """How a table is split into a low-frequency and a high-frequency part."""

    head: int  # outlier rows at the start, such as an attention sink, which are kept
    stop: int  # end of the rows to split; later ones are outliers or untrained
    # Within an eighth of the table, the autocorrelation falls below half of that at lag 1.
    is_local: bool = False
    # Standard deviation of the low-pass filter, in rows; 0: no high-frequency part.
    sigma: float = 0.0
    # Squared distance of the high-frequency part's autocorrelation from that of noise.
    noise_distance: float = 0.0
    high_share: float = 0.0  # share of the high-frequency part in the variance, 0 to 1
    repeat: Range = (0, 0)  # rows whose high-frequency part is tiled
    match: float = 0.0  # correlation of the rows around both ends of the range, -1 to 1


# ---- settings


def choose_bands(table: Rows, rows: int, choice: MethodChoice) -> MethodChoice:
    """Choose the unset settings of `bands` for a table; see `choose_split` and `default_gains`.

    Args:
        table: The learned rows, shape (n, d), float64, also those that are kept.
        rows: The new number of rows.
        choice: The method `bands`; settings that are None are chosen.
    """
    given = choice.settings
    keep = choice.keep_first
    within = given["within"] or typical_rows(table)
    split = choose_split(table, within, keep=keep, sigma=given["sigma"], repeat=given["repeat"])
    gain = given["gain"]
    high_gain = given["high_gain"]
    if gain is None:
        gain, default = default_gains(split, len(table), rows, keep)
        high_gain = high_gain or default
    repeat = given["repeat"] or split.repeat
    if not split.sigma:
        repeat = None
        high_gain = None
    settings = {
        "sigma": split.sigma,
        "repeat": repeat,
        "gain": gain,
        "high_gain": high_gain,
        "within": (split.head, split.stop),
    }
    # With sigma 0 nothing is repeated, so that only the gain can be free.
    is_repeat_free = given["sigma"] != 0 and None in (given["sigma"], given["repeat"])
    if given["gain"] is not None and not is_repeat_free:
        return replace(choice, settings=settings, reason="")
    gains = f"gain {gain:.3g}"
    if high_gain:
        gains += f", high-gain {high_gain:.3g}"
    if not split.sigma:
        reason = f"bands, as interpolation with {gains}: the table has no high-frequency part"
    else:
        start, stop = split.repeat
        reason = f"bands with sigma {split.sigma:.3g}, repeat {start}:{stop}, {gains}"
    return replace(choice, settings=settings, reason=reason)


def choose_split(
    table: Rows,
    within: Range,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: Range | None = None,
    is_measured: bool = True,
) -> BandSplit:
    """Choose how to split a table; settings that are passed are used as they are.

    Sigma puts the cutoff at the start of the valley between low and high frequencies in the
    spectrum; it is 0 if the high-frequency part is small or has the autocorrelation of noise. Among
    the ranges of half the table and up to 511 rows more that end at row `keep` or later, the one
    whose ends correlate best is tiled. If they correlate well, sigma is raised to an eighth of the
    table, so that everything except the trend is tiled.

    Args:
        table: The learned rows, shape (n, d), float64.
        within: The rows to split; see `typical_rows`.
        keep: The number of rows at the start that are kept.
        sigma: The standard deviation of the low-pass filter, in rows; 0 splits nothing.
        repeat: The rows whose high-frequency part is tiled.
        is_measured: Whether gains are chosen too. If not, and `sigma` and `repeat` are passed, the
            table is not measured, which takes seconds if it is large.
    """
    head, stop = within
    split = BandSplit(head=head, stop=stop)
    source = table[split.head : split.stop]
    if len(source) < MIN_ROWS or not np.isfinite(source).all():
        return split
    if is_measured:
        centred = (block - block.mean(axis=0) for block in _columns(source))
        correlation = _autocorrelation(centred, len(source), LOCAL_SHARE)
        is_local = bool((correlation < correlation[0] / 2).any())
        split = split._replace(is_local=is_local)
    cutoff_sigma = _valley_sigma(source) if sigma is None else sigma
    if not cutoff_sigma:
        return split
    given = None
    if repeat is not None:
        first = min(max(repeat[0], split.head), split.stop - 1) - split.head
        given = (first, max(min(repeat[1], split.stop) - split.head, first + 1))
        if not is_measured:
            tiled = (given[0] + split.head, given[1] + split.head)
            return split._replace(sigma=cutoff_sigma, repeat=tiled)
    min_stop = max(min(keep, split.stop) - split.head, 0)
    best = _split_at(split, source, cutoff_sigma, min_stop, given)
    is_noise = best.noise_distance < MIN_NOISE_DISTANCE or best.high_share < MIN_HIGH_SHARE
    if sigma is None and repeat is None and is_noise:
        return split._replace(noise_distance=best.noise_distance, high_share=best.high_share)
    if sigma is None and best.match >= GOOD_MATCH:
        wider = _split_at(split, source, MAX_SIGMA_SHARE * len(source), min_stop, given)
        if wider.match >= GOOD_MATCH and wider.sigma > best.sigma:
            return wider
    return best


def default_gains(split: BandSplit, learned: int, rows: int, keep: int = 0) -> tuple[float, float]:
    """Return the gains of the low-frequency and of the high-frequency part.

    Interpolation flattens the low-frequency part, whose differences tell repeats of the
    high-frequency part apart. Its gain therefore restores a ratio of the standard deviations of
    both parts, 2/3 times the cube root of r = rows / learned, but is between r^(1/4) and r^(3/4).
    The other gain is r^(1/6): as in YaRN, attention sharpens with the length. From r = 8 on, both
    stay. If all learned rows are kept, new ones differ only by this part; the gains are then
    r^(1/4) and r^(1/2) up to r = 2. Without a high-frequency part, or if rows are not local, both
    are 1 plus `LOCAL_GAIN` (`FAR_GAIN` if rows are not local) per doubling of the length, at most
    `MAX_GAIN`.

    Source: ctxextend; after YaRN, Peng et al. 2023, section 3.4, arXiv:2309.00071 (attention
    temperature).
    """
    ratio = max(rows / max(learned, 1), 1.0)
    if not split.is_local or not 0 < split.high_share < 1 or not split.sigma:
        per_doubling = LOCAL_GAIN if split.is_local else FAR_GAIN
        both = float(min(1 + per_doubling * np.log2(ratio), MAX_GAIN))
        return both, both
    if keep >= split.stop:
        ratio = min(ratio, MAX_KEPT_RATIO)
        return ratio**LEAST_LOW_POWER, ratio**KEPT_HIGH_POWER
    ratio = min(ratio, MAX_RATIO)
    restored = LOW_TO_HIGH * ratio**LOW_POWER * np.sqrt(split.high_share / (1 - split.high_share))
    gain = np.clip(restored, ratio**LEAST_LOW_POWER, ratio**GREATEST_LOW_POWER)
    return float(gain), ratio**HIGH_POWER


# ---- rows


def bands(
    table: Rows,
    rows: int,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: Range | None = None,
    gain: float | None = None,
    high_gain: float | None = None,
    within: Range | None = None,
) -> Rows:
    """Interpolate the low frequencies of the table, tile the high ones.

    The low-frequency part L is the output of a Gaussian low-pass filter of `sigma` rows (local
    linear regression, which is unbiased at the ends); the high-frequency part H is the residual.
    Row t is mean + gain·(L(u) - mean) + high_gain·H(v): u is the position that linear interpolation
    with aligned ends reads, v advances row by row and jumps from the end of `repeat` back to its
    start, cross-faded over 8 rows on either side. Rows outside `within` are not used; rows before
    it and the first `keep` rows are kept, and interpolation starts at the last of them. At sigma 0
    this is linear interpolation, scaled by `gain`. Like YaRN, it interpolates low frequencies and
    keeps high ones. See `choose_split` and `default_gains` for settings that are None; with only
    `gain` given, `high_gain` equals it.

    Source: ctxextend; after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (rotary
    positions).
    """
    if rows == len(table):
        return table.copy()
    is_complete = gain is not None and sigma is not None and (repeat is not None or sigma == 0)
    split = choose_split(
        table,
        within or typical_rows(table),
        keep=keep,
        sigma=sigma,
        repeat=repeat,
        is_measured=not is_complete,
    )
    default = gain
    if gain is None:
        gain, default = default_gains(split, len(table), rows, keep)
    if high_gain is None:
        high_gain = default
    assert high_gain is not None
    source = table[split.head : split.stop]
    low = smoothed(source, split.sigma) if split.sigma else source
    finite = low[np.isfinite(low).all(axis=1)]  # one other row would make the mean NaN
    mean = finite.mean(axis=0) if len(finite) else np.zeros(low.shape[1])

    # Where each row reads the low-frequency part: rows up to the last kept one keep their position;
    # later ones are spread evenly up to the last row of the part.
    fixed = max(split.head, keep - 1)
    step = max(split.stop - 1 - fixed, 0) / max(rows - 1 - fixed, 1)
    targets = np.arange(rows)
    position = np.minimum(targets, fixed) + np.maximum(targets - fixed, 0) * step
    position = np.minimum(position - split.head, len(source) - 1)
    lower = np.floor(position).astype(np.int64).clip(0, max(len(source) - 2, 0))
    upper = np.minimum(lower + 1, len(source) - 1)
    weight = (position - lower)[:, None]
    result = np.empty((rows, table.shape[1]))
    first = max(split.head, keep)
    result[:first] = table[:first]
    for start in range(first, rows, BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, rows))
        lows = (1 - weight[block]) * low[lower[block]] + weight[block] * low[upper[block]]
        values = lows
        if split.sigma:
            before, after, share = _tiled_rows(split, block)
            values = lows + (1 - share[:, None]) * (source[before] - low[before])
            values += share[:, None] * (source[after] - low[after])
        result[block] = values + (gain - 1) * (values - mean)
        if split.sigma and high_gain != gain:
            result[block] += (high_gain - gain) * (values - lows)
    return result


def _tiled_rows(split: BandSplit, rows: Indices) -> tuple[Indices, Indices, Rows]:
    """Return where each row reads the high-frequency part.

    Returns:
        Its source row, the row that it fades into at a seam, and the weight of the latter, shape
        (m,) each.
    """
    start, stop = (end - split.head for end in split.repeat)
    last = split.stop - split.head - 1
    length = max(stop - start, 1)
    beyond = rows - split.head - stop
    offset = beyond % length
    # The signed distance to a seam, if one is near.
    step = np.where(length - offset <= SEAM, offset - length, offset)
    is_near = (beyond >= -SEAM) & (step < SEAM)
    away = np.where(beyond < 0, rows - split.head, start + offset)
    before = np.where(is_near, stop + step, away)
    after = np.where(is_near, start + step, before)
    faded = np.where(is_near, (step + SEAM + 0.5) / (2 * SEAM), 0.0)
    share = np.where(before > last, 1.0, faded)
    return before.clip(0, last), after.clip(0, last), share


# ---- measures


def smoothed(rows: Rows, sigma: float) -> Rows:
    """Low-pass filter rows, shape (n, d): local linear fits with Gaussian weights.

    `sigma` is the standard deviation of the weights, in rows.

    Source: local linear regression, Fan & Gijbels 1996, "Local Polynomial Modelling and Its
    Applications", section 2.3.
    """
    count = len(rows)
    reach = int(REACH * sigma) + 1
    result = np.empty_like(rows)
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        low = max(start - reach, 0)
        high = min(stop + reach, count)
        steps = np.arange(low, high)[None] - np.arange(start, stop)[:, None]
        weights = np.exp(-0.5 * (steps / sigma) ** 2)
        zeroth, first, second = (
            (weights * steps**power).sum(axis=1, keepdims=True) for power in range(3)
        )
        weights *= (second - first * steps) / (zeroth * second - first**2)
        result[start:stop] = weights @ rows[low:high]
    return result


def typical_rows(table: Rows) -> Range:
    """Return the rows without outlier and untrained ones at both ends."""
    if len(table) < MIN_ROWS:
        return 0, len(table)
    norms, cosines = norms_and_cosines(table)
    outliers = set(find_outliers(norms, cosines))
    finite = norms[np.isfinite(norms)]
    if finite.size:  # many untrained rows in sequence are not outliers among each other
        outliers.update(np.flatnonzero(norms < MIN_NORM * median(finite)).tolist())
    head = 0
    stop = len(table)
    while head in outliers and head < len(table) // 4:
        head += 1
    while stop - 1 in outliers and stop > 3 * len(table) // 4:
        stop -= 1
    return head, stop


def _valley_sigma(rows: Rows) -> float:
    """Return the sigma whose cutoff starts the valley between low and high frequencies."""
    widest = min(MAX_SIGMA, MAX_SIGMA_SHARE * len(rows))
    power = np.zeros(1)
    line = np.linspace(0, 1, len(rows))[:, None]
    taper = np.hanning(len(rows) + 2)[1:-1, None]
    for block in _columns(rows):  # minus the line between both ends, tapered
        start = block[:SEAM].mean(axis=0)
        end = block[-SEAM:].mean(axis=0)
        spectrum = np.fft.rfft((block - (1 - line) * start - line * end) * taper, axis=0)
        power = power + np.square(np.abs(spectrum)).sum(axis=1)
    frequencies = np.fft.rfftfreq(len(rows))
    is_above = frequencies >= HALF_AMPLITUDE / widest
    is_below = frequencies <= HALF_AMPLITUDE / MIN_SIGMA
    tried = np.flatnonzero(is_above & is_below)
    if not len(tried):  # too few rows for a frequency in this range
        return widest
    floor = max(VALLEY_FACTOR * power[tried].min(), VALLEY_SHARE * power.sum())
    valley = tried[power[tried] <= floor][0]
    return float(HALF_AMPLITUDE / frequencies[valley])


def _split_at(
    split: BandSplit, rows: Rows, sigma: float, min_stop: int, given: Range | None
) -> BandSplit:
    """Split rows at one sigma.

    Args:
        split: The rows of the table that are split.
        rows: These rows.
        sigma: The standard deviation of the low-pass filter, in rows.
        min_stop: The first row at which a tiled range may end.
        given: The range to tile, of `rows`; None for the one whose ends match best.
    """
    high = smoothed(rows, sigma)
    np.subtract(rows, high, out=high)
    variance = sum(float(np.square(block - block.mean(axis=0)).sum()) for block in _columns(rows))
    share = float(np.einsum("td,td->", high, high)) / variance if variance > 0 else 0.0
    count = len(high)
    noise_distance = 0.0
    if share > 0:
        correlation = _autocorrelation(_columns(high), count, min(LAGS / count, 1 / 2))
        # Of white noise that was filtered in the same way; the ends are ignored.
        width = min(sigma, float(count))
        reach = int(REACH * width) + 1
        weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
        residual = -weights / weights.sum()
        residual[reach] += 1
        padded = np.concatenate([residual, np.zeros(len(correlation))])
        products = np.correlate(padded, residual, "valid")
        distances = correlation - products[1:] / products[0]
        noise_distance = float(np.square(distances).sum())
    (first, stop), match = _best_range(high, min_stop, given)
    return split._replace(
        sigma=sigma,
        noise_distance=noise_distance,
        high_share=share,
        repeat=(first + split.head, stop + split.head),
        match=match,
    )


def _columns(rows: Rows) -> list[Rows]:
    """Return views of blocks of columns, to avoid a second table in memory."""
    return np.split(rows, range(BLOCK_COLUMNS, rows.shape[1], BLOCK_COLUMNS), axis=1)


def _autocorrelation(blocks: Iterable[Rows], count: int, maximum: float) -> Rows:
    """Return the autocorrelation of rows at lags 1, 2, …, `maximum`·`count`; -1 to 1."""
    lags = np.arange(1, max(round(maximum * count), 1) + 1)
    power = np.zeros(count + 1)
    squares = np.zeros(count)
    for block in blocks:
        spectrum = np.fft.rfft(block, 2 * count, axis=0)  # padded with zeros
        power += np.square(np.abs(spectrum)).sum(axis=1)
        squares += np.einsum("td,td->t", block, block)
    products = np.fft.irfft(power)[lags]
    sums = np.concatenate([[0], np.cumsum(squares)])
    norms = np.sqrt(sums[count - lags] * (sums[-1] - sums[lags]))
    return np.asarray(np.divide(products, norms, out=np.zeros_like(products), where=norms > 0))


def _best_range(high: Rows, min_stop: int, given: Range | None) -> tuple[Range, float]:
    """Return the range whose ends correlate best, and the correlation of the 16 rows around them.

    It is `given`, or one of at least half the rows that ends at `min_stop` or later.
    """
    count = len(high)
    shortest = max(int(MIN_REPEAT_SHARE * count), SEAM)
    lengths = range(shortest, min(shortest + LENGTHS, count - SEAM + 1))
    if given is not None:
        length = given[1] - given[0]
        if length == count:  # no rows follow it, so there is nothing to correlate
            return given, 0.0
        lengths = range(length, length + 1)

    # Dot products of each row with the one `length` rows later, shape (lengths, n).
    products = np.zeros((len(lengths), count))
    for start in range(0, count - lengths[0], BLOCK_ROWS):
        block = high[start : start + BLOCK_ROWS]
        dots = block @ high[start + lengths[0] : start + BLOCK_ROWS + lengths[-1]].T
        for row in range(len(block)):
            values = dots[row, row : row + len(lengths)]
            products[: len(values), start + row] = values
    window = np.hanning(2 * SEAM + 2)[1:-1]
    squares = np.einsum("td,td->t", high, high)
    best: Range = (0, count)
    best_match = -math.inf
    for length in lengths:
        pairs = count - length
        # Item i uses the 16 rows around the boundary before row i, shape (pairs + 1,).
        at_boundaries = slice(SEAM - 1, SEAM + pairs)
        paired = np.convolve(products[length - lengths[0], :pairs], window)[at_boundaries]
        later = np.convolve(squares[length:], window)[at_boundaries]
        earlier = np.convolve(squares[:pairs], window)[at_boundaries]
        norms = np.sqrt(later * earlier)
        matches = np.divide(paired, norms, out=np.zeros_like(paired), where=norms > 0)
        if given is not None:
            return given, float(matches[given[0]])
        # Both sides need rows to compare, unless all learned rows are kept: the seam then follows
        # the last one.
        first_start = max(SEAM, min_stop - length)
        last_start = max(count - SEAM, min_stop) - length
        starts = np.arange(first_start, last_start + 1)
        if len(starts):
            start = int(starts[np.argmax(matches[starts])])
            if matches[start] > best_match:
                best = (start, start + length)
                best_match = float(matches[start])
    return best, max(best_match, -1.0)
