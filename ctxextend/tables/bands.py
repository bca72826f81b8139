"""The methods `bands` and `auto`, which split a table into a low-frequency and a high-frequency
part.

The low-frequency part, a smooth curve, encodes the absolute position; the high-frequency part, the
residual, encodes local order. Interpolation keeps the former but distorts the latter, which
attention heads use to find the previous token; tiling keeps the latter but breaks the former at
every seam. `bands` interpolates the former, tiles the latter.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import (
    COPY,
    FACTS,
    POSITIVE,
    TOLERANCE,
    Setting,
    method,
    read_rows,
)
from ctxextend.tables.sinusoids import BLOCK_ROWS
from ctxextend.tables.stats import find_outliers, median, norms_and_neighbours

Rows = NDArray[np.float64]
Indices = NDArray[np.int64]
Range = tuple[int, int]  # half-open, of rows

SEAM = 8  # rows on either side of a seam that are compared and blended
MIN_ROWS = 4 * SEAM  # the fewest rows that can be split
# The least and the greatest sigma of the Gaussian filter that are tried, in rows, and the greatest
# as a share of them.
MIN_SIGMA = 4.5
MAX_SIGMA = 16.0
MAX_SIGMA_SHARE = 1 / 8
# The half-amplitude cutoff frequency of a Gaussian filter, in cycles per row, times its sigma in
# rows.
HALF_AMPLITUDE = float(np.sqrt(np.log(2) / 2) / np.pi)
# A valley of the spectrum extends while its power is below this multiple of its minimum, or this
# share of the total.
VALLEY_FACTOR, VALLEY_SHARE = 1.5, 0.002
REACH = 6  # standard deviations at which the Gaussian is truncated
# The high-frequency part is tiled only if its autocorrelation over this many lags differs from that
# of noise by this much, and its share of the variance is this large.
MIN_NOISE_DISTANCE, LAGS, MIN_HIGH_SHARE = 0.1, 32, 0.1
# correlation of the ends of the tiled range from which seams cost nothing: the filter is widened
GOOD_MATCH = 0.5
# minimum of the tiled range, as a share of the table, and lengths tried
MIN_REPEAT_SHARE = 1 / 2
LENGTHS = 512
LOCAL_SHARE = 1 / 8  # of the table, within which the autocorrelation of local rows falls by half
GAIN, FAR_GAIN, MAX_GAIN = (
    0.2,
    0.1,
    1.6,
)  # per doubling of the length, for local rows and for others; maximum
# Standard deviation of the low-frequency part, as a multiple of the high-frequency part's, that its
# gain restores; the powers of the ratio of the lengths by which this, the least and the greatest
# gain, and the high-frequency gain grow.
LOW_TO_HIGH = 2 / 3
LOW_POWER = 1 / 3
LOW_POWERS = (1 / 4, 3 / 4)
HIGH_POWER = 1 / 6
MAX_RATIO = 8  # of the lengths, up to which gains grow
# The same if all learned rows are kept, so that new ones differ by their high-frequency part only.
KEPT_HIGH_POWER = 1 / 2
MAX_KEPT_RATIO = 2
MIN_NORM = 0.2  # rows at the ends whose norm is below this share of the median are untrained
COLUMNS = 64  # columns whose spectra are computed at once, to limit memory
SIGMA: tuple[str, None, Any, Any] = (
    "0 or at least 0.5",
    None,
    float,
    lambda sigma: sigma == 0 or 0.5 <= sigma < np.inf,
)
# Effect of both methods on inputs beyond the old length.
SIMILAR = "order is kept, but rows are more similar to each other than learned ones"


def has_free_settings(settings: Mapping[str, Any]) -> bool:
    """Whether settings of `bands` are unset that others do not determine."""
    if settings["gain"] is None:
        return True
    if settings["sigma"] == 0:  # nothing is repeated
        return False
    return settings["sigma"] is None or settings["repeat"] is None


def choose_bands(table: Rows, rows: int, choice: MethodChoice, no_lm: str = "") -> MethodChoice:
    """Choose the unset settings of `bands` for a table; see `choose_split` and `default_gains`.

    Args:
        table: The learned rows, shape (n, d), float64, also those that are kept.
        rows: The new number of rows.
        choice: The method `bands`; settings that are None are chosen.
        no_lm: Not used.
    """
    given = choice.settings
    keep = choice.keep_first
    split = choose_split(
        table, keep=keep, sigma=given["sigma"], repeat=given["repeat"], within=given["within"]
    )
    if given["gain"] is None:
        gain, high_gain = default_gains(split, len(table), rows, keep)
    else:
        gain, high_gain = given["gain"], given["high_gain"]
    chosen: dict[str, Any] = {
        "sigma": split.sigma,
        "repeat": None,
        "gain": gain,
        "high_gain": None,
        "within": (split.head, split.stop),
    }
    if split.sigma:
        chosen["repeat"] = given["repeat"] or split.repeat
        chosen["high_gain"] = given["high_gain"] or high_gain
    reason = ""
    if has_free_settings(given):
        reason = _reason(split, gain, chosen["high_gain"])
    return replace(choice, settings=chosen, reason=reason)


def _reason(split: "BandSplit", gain: float, high_gain: float | None) -> str:
    """Say which settings were chosen."""
    gains = f"gain {gain:.3g}"
    if high_gain:
        gains += f", high-gain {high_gain:.3g}"
    if not split.sigma:
        return f"bands, as interpolation with {gains}: the table has no high-frequency part"
    start, stop = split.repeat
    return f"bands with sigma {split.sigma:.3g}, repeat {start}:{stop}, {gains}"


@method(
    settings={
        "sigma": Setting(
            "width in rows of the low-pass filter; 0 disables the high-frequency part", *SIGMA
        ),
        "repeat": Setting(
            "rows A to B-1 of the high-frequency part to tile",
            "A:B with 0 <= A < B",
            None,
            read_rows,
        ),
        "gain": Setting("factor that scales rows around their mean", *POSITIVE),
        "high_gain": Setting("gain of the high-frequency part", *POSITIVE),
        "within": Setting(
            "rows A to B-1 to split, excluding end outliers", "A:B with 0 <= A < B", None, read_rows
        ),
    },
    keeps_learned_rows=False,
    convention="low-pass: local linear regression with Gaussian weights, "
    "interpolated; residual: tiled, "
    "cross-faded "
    "over 16 rows; each is scaled around the mean by its gain; unset values are chosen from the "
    "table",
    long_inputs=SIMILAR,
    when="long inputs must work without training, and outputs for short ones may change",
    reads_kept_rows=True,
    choose=choose_bands,
    tolerance=TOLERANCE,
)
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
    if (
        within and sigma == 0 and gain is not None
    ):  # nothing to choose, and measuring a large table takes seconds
        split = BandSplit(*within)
    else:
        split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat, within=within)
    source = table[split.head : split.stop]
    low = smoothed(source, split.sigma) if split.sigma else source
    finite = np.isfinite(low).all(axis=1)  # one non-finite row must not make the mean NaN
    mean = low[finite].mean(axis=0) if finite.any() else np.zeros(table.shape[1])
    low_gain, default = (
        default_gains(split, len(table), rows, keep) if gain is None else (gain, gain)
    )
    more = (
        default if high_gain is None else high_gain
    ) - low_gain  # gain of the high-frequency part beyond `low_gain`
    # Rows up to `fixed` keep their position in the low-frequency part; later ones are spread evenly
    # up to its last row.
    first = max(split.head, keep)
    fixed = max(split.head, keep - 1)
    last = split.stop - 1
    steps = np.maximum(np.arange(rows) - fixed, 0)
    position = np.minimum(np.arange(rows), fixed) + steps * (
        max(last - fixed, 0) / max(rows - 1 - fixed, 1)
    )
    position = np.minimum(position - split.head, len(low) - 1)
    lower = np.floor(position).astype(np.int64).clip(0, max(len(low) - 2, 0))
    upper = np.minimum(lower + 1, len(low) - 1)
    weight = (position - lower)[:, None]
    result = np.empty((rows, table.shape[1]))
    result[:first] = table[:first]
    for start in range(first, rows, BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, rows))
        lows = values = (1 - weight[block]) * low[lower[block]] + weight[block] * low[upper[block]]
        if split.sigma:
            before, after, share = _tiled_rows(split, block)
            values = lows + (1 - share[:, None]) * (source[before] - low[before])
            values += share[:, None] * (source[after] - low[after])
        result[block] = values + (low_gain - 1) * (values - mean)
        if split.sigma and more:
            result[block] += more * (values - lows)
    return result


def _tiled_rows(split: "BandSplit", rows: Indices) -> tuple[Indices, Indices, Rows]:
    """Return for each row its high-frequency source row, the row it fades into at a seam, and the
    latter's weight.
    """
    start, stop = (end - split.head for end in split.repeat)
    last = split.stop - split.head - 1
    length = max(stop - start, 1)
    beyond = rows - split.head - stop
    offset = beyond % length
    step = np.where(
        length - offset <= SEAM, offset - length, offset
    )  # signed distance to a seam, if one is near
    is_near = (beyond >= -SEAM) & (step < SEAM)
    before = np.where(is_near, stop + step, np.where(beyond < 0, rows - split.head, start + offset))
    after = np.where(is_near, start + step, before)
    share = np.where(before > last, 1.0, np.where(is_near, (step + SEAM + 0.5) / (2 * SEAM), 0.0))
    return before.clip(0, last), after.clip(0, last), share


def choose_auto(table: Rows, rows: int, choice: MethodChoice, no_lm: str = "") -> MethodChoice:
    """Choose `copy` or `bands` for a table.

    Args:
        table: The learned rows, shape (n, d), float64, also those that are kept.
        rows: The new number of rows.
        choice: The method `auto`.
        no_lm: Why the checkpoint is not a language model; see `checkpoints.folder.no_lm`.
    """
    if no_lm or len(table) < MIN_ROWS:
        why = no_lm or f"{len(table)} rows are too few to judge"
        reason = f"auto chose copy, which keeps the learned rows: {why}"
        return replace(choice, facts=FACTS[COPY], settings={}, reason=reason)
    facts = FACTS["bands"]
    choice = replace(choice, facts=facts, settings=dict.fromkeys(facts.settings))
    chosen = choose_bands(table, rows, choice)
    return replace(chosen, reason=f"auto chose {chosen.reason}")


@method(
    keeps_learned_rows=False,
    convention="as formula for a table of sinusoids; as copy for sentence encoders, "
    "models without an "
    "LM head, and "
    "tables of fewer than 32 rows; else as bands with settings chosen from the table, or tuned "
    "on --data",
    long_inputs=SIMILAR,
    when="you do not know which method is best for the model",
    reads_kept_rows=True,
    choose=choose_auto,
    tolerance=TOLERANCE,
)
def auto(table: Rows, rows: int, *, keep: int = 0) -> Rows:
    """Bands for language models, copy for other models. Source: ctxextend."""
    return (
        table[np.arange(rows) % len(table)]
        if len(table) < MIN_ROWS
        else bands(table, rows, keep=keep)
    )


@dataclass(frozen=True)
class BandSplit:
    """How a table is split into a low-frequency and a high-frequency part."""

    head: int  # outlier rows at the start, such as an attention sink, which are kept
    stop: int  # end of the rows to split; later ones are outliers or untrained
    # within an eighth of the table, the autocorrelation falls below half of that at lag 1
    is_local: bool = False
    sigma: float = (
        0.0  # standard deviation of the low-pass filter, in rows; 0: no high-frequency part
    )
    noise_distance: float = (
        0.0  # squared distance of the high-frequency part's autocorrelation from that of noise
    )
    high_share: float = 0.0  # share of the high-frequency part in the variance, 0 to 1
    repeat: Range = (0, 0)  # half-open range of rows whose high-frequency part is tiled
    match: float = 0.0  # correlation of the rows around both ends of the range, -1 to 1


def choose_split(
    table: Rows,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: Range | None = None,
    within: Range | None = None,
) -> BandSplit:
    """Choose how to split a table, shape (n, d), float64; settings that are passed are used as they
    are.

    Sigma puts the cutoff at the start of the valley between low and high frequencies in the
    spectrum; it is 0 if the high-frequency part is small or has the autocorrelation of noise. Among
    the ranges of half the table and up to 511 rows more that end at row `keep` or later, the one
    whose ends correlate best is tiled. If they correlate well, sigma is raised to an eighth of the
    table, so that everything except the trend is tiled.
    """
    split = _typical_rows(table) if within is None else BandSplit(*within)
    source = table[split.head : split.stop]
    if not _can_be_split(source):
        return split
    correlation = _autocorrelation(
        (block - block.mean(axis=0) for block in _columns(source)), len(source), LOCAL_SHARE
    )
    split = replace(split, is_local=bool((correlation < correlation[0] / 2).any()))
    cutoff_sigma = _valley_sigma(source) if sigma is None else sigma
    if not cutoff_sigma:
        return split
    given = None
    if repeat is not None:  # clipped to `source`
        first = min(max(repeat[0], split.head), split.stop - 1) - split.head
        given = first, max(min(repeat[1], split.stop) - split.head, first + 1)
    min_stop = max(min(keep, split.stop) - split.head, 0)
    best = _split_at(split, source, cutoff_sigma, min_stop, given)
    is_noise = best.noise_distance < MIN_NOISE_DISTANCE or best.high_share < MIN_HIGH_SHARE
    if sigma is None and repeat is None and is_noise:
        return replace(split, noise_distance=best.noise_distance, high_share=best.high_share)
    if sigma is None and best.match >= GOOD_MATCH:
        wider = _split_at(split, source, MAX_SIGMA_SHARE * len(source), min_stop, given)
        best = max(best, wider, key=lambda item: (item.match >= GOOD_MATCH, item.sigma))
    return best


def find_repeats(table: Rows, sigma: float, maximum: int, *, keep: int = 0) -> list[Range]:
    """Return up to `maximum` ranges to tile, of lengths 8 rows apart, best matching ends first,
    then all split rows.
    """
    split = _typical_rows(table)
    source = table[split.head : split.stop]
    if not _can_be_split(source):
        return []
    ranges = _best_ranges(
        source - smoothed(source, sigma), max(min(keep, split.stop) - split.head, 0)
    )
    chosen = list[Range]()
    for (first, last), _ in sorted(ranges, key=lambda item: -item[1]):
        if len(chosen) < maximum and all(
            abs((stop - start) - (last - first)) >= SEAM for start, stop in chosen
        ):
            chosen.append((first + split.head, last + split.head))
    return [*chosen, (split.head, split.stop)]


def default_gains(split: BandSplit, learned: int, rows: int, keep: int = 0) -> tuple[float, float]:
    """Return the gains of the low-frequency and of the high-frequency part.

    Interpolation flattens the low-frequency part, whose differences tell repeats of the
    high-frequency part apart. Its gain therefore restores a ratio of the standard deviations of
    both parts, 2/3 times the cube root of r = rows / learned, but is between r^(1/4) and r^(3/4).
    The other gain is r^(1/6): as in YaRN, attention sharpens with the length. From r = 8 on, both
    stay. If all learned rows are kept, new ones differ only by this part; the gains are then
    r^(1/4) and r^(1/2) up to r = 2. Without a high-frequency part, or if rows are not local, both
    are 1 plus `GAIN` (`FAR_GAIN` if rows are not local) per doubling of the length, at most
    `MAX_GAIN`.

    Source: ctxextend; after YaRN, Peng et al. 2023, section 3.4, arXiv:2309.00071 (attention
    temperature).
    """
    ratio = max(rows / max(learned, 1), 1.0)
    if not split.is_local or not 0 < split.high_share < 1 or not split.sigma:
        both = float(min(1 + (GAIN if split.is_local else FAR_GAIN) * np.log2(ratio), MAX_GAIN))
        return both, both
    if keep >= split.stop:
        ratio = min(ratio, MAX_KEPT_RATIO)
        return ratio ** LOW_POWERS[0], ratio**KEPT_HIGH_POWER
    ratio = min(ratio, MAX_RATIO)
    restored = LOW_TO_HIGH * ratio**LOW_POWER * np.sqrt(split.high_share / (1 - split.high_share))
    least, greatest = (ratio**power for power in LOW_POWERS)
    return float(np.clip(restored, least, greatest)), ratio**HIGH_POWER


def smoothed(rows: Rows, sigma: float) -> Rows:
    """Low-pass filter rows: local linear least-squares fits with Gaussian weights of `sigma` rows.

    Source: local linear regression, Fan & Gijbels 1996, "Local Polynomial Modelling and Its
    Applications", section 2.3.
    """
    count = len(rows)
    reach = int(REACH * sigma) + 1
    result = np.empty_like(rows)
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        low, high = max(start - reach, 0), min(stop + reach, count)
        steps = np.arange(low, high)[None] - np.arange(start, stop)[:, None]
        weights = np.exp(-0.5 * (steps / sigma) ** 2)
        zeroth, first, second = (
            (weights * steps**power).sum(axis=1, keepdims=True) for power in range(3)
        )
        weights *= (second - first * steps) / (zeroth * second - first**2)
        result[start:stop] = weights @ rows[low:high]
    return result


def _can_be_split(rows: Rows) -> bool:
    return len(rows) >= MIN_ROWS and bool(np.isfinite(rows).all())


def _typical_rows(table: Rows) -> BandSplit:
    """Return a split that excludes outlier and untrained rows at both ends."""
    if len(table) < MIN_ROWS:
        return BandSplit(0, len(table))
    norms, cosines, _ = norms_and_neighbours(table)
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
    return BandSplit(head, stop)


def _valley_sigma(rows: Rows) -> float:
    """Return the sigma whose cutoff is at the start of the valley between low and high
    frequencies.
    """
    widest = min(MAX_SIGMA, MAX_SIGMA_SHARE * len(rows))
    line = np.linspace(0, 1, len(rows))[:, None]
    taper = np.hanning(len(rows) + 2)[1:-1, None]
    detrended = (
        (block - (1 - line) * block[:SEAM].mean(axis=0) - line * block[-SEAM:].mean(axis=0)) * taper
        for block in _columns(rows)
    )
    power = _power(detrended, len(rows))
    frequencies = np.fft.rfftfreq(len(rows))
    tried = np.flatnonzero(
        (frequencies >= HALF_AMPLITUDE / widest) & (frequencies <= HALF_AMPLITUDE / MIN_SIGMA)
    )
    if not len(tried):  # too few rows for a frequency in this range
        return widest
    floor = max(VALLEY_FACTOR * power[tried].min(), VALLEY_SHARE * power.sum())
    return float(HALF_AMPLITUDE / frequencies[tried[power[tried] <= floor][0]])


def _split_at(
    split: BandSplit, rows: Rows, sigma: float, min_stop: int, given: Range | None
) -> BandSplit:
    """Split rows at one sigma; the tiled range is `given`, or the best one that ends at `min_stop`
    or later.
    """
    high = smoothed(rows, sigma)
    np.subtract(rows, high, out=high)
    variance = sum(float(np.square(block - block.mean(axis=0)).sum()) for block in _columns(rows))
    share = float(np.einsum("td,td->", high, high)) / variance if variance > 0 else 0.0
    autocorrelation = _autocorrelation(_columns(high), len(rows), min(LAGS / len(rows), 1 / 2))
    difference = autocorrelation - _noise_autocorrelation(
        min(sigma, float(len(rows))), len(autocorrelation)
    )
    distance = float(np.square(difference).sum()) if share > 0 else 0.0
    if given is None:
        ranges = _best_ranges(high, min_stop)
        (first, stop), match = max(ranges, key=lambda item: item[1], default=((0, len(high)), -1.0))
    else:
        (first, stop), length = given, given[1] - given[0]
        # No rows follow a range of the whole table, so there is nothing to correlate.
        match = (
            0.0
            if length == len(high)
            else float(next(_matches(high, range(length, length + 1)))[first])
        )
    repeat = first + split.head, stop + split.head
    return replace(
        split, sigma=sigma, noise_distance=distance, high_share=share, repeat=repeat, match=match
    )


def _columns(rows: Rows) -> Iterator[Rows]:
    """Yield blocks of columns, to avoid a second table in memory."""
    for start in range(0, rows.shape[1], COLUMNS):
        yield rows[:, start : start + COLUMNS]


def _power(blocks: Iterable[Rows], length: int) -> Rows:
    """Return the power spectrum of rows, zero-padded to a length and summed over all columns."""
    return sum(
        (np.square(np.abs(np.fft.rfft(block, length, axis=0))).sum(axis=1) for block in blocks),
        np.zeros(1),
    )


def _autocorrelation(blocks: Iterable[Rows], count: int, maximum: float) -> Rows:
    """Return the autocorrelation of rows at lags 1, 2, …, `maximum`·`count`; -1 to 1."""
    lags = np.arange(1, max(round(maximum * count), 1) + 1)
    power, squares = np.zeros(count + 1), np.zeros(count)
    for block in blocks:
        power += _power([block], 2 * count)
        squares += np.einsum("td,td->t", block, block)
    products = np.fft.irfft(power)[lags]
    sums = np.concatenate([[0], np.cumsum(squares)])
    norms = np.sqrt(sums[count - lags] * (sums[-1] - sums[lags]))
    return np.asarray(np.divide(products, norms, out=np.zeros_like(products), where=norms > 0))


def _noise_autocorrelation(sigma: float, lags: int) -> Rows:
    """Return the autocorrelation of high-pass filtered white noise, shape (lags,), ignoring the
    ends.
    """
    reach = int(REACH * sigma) + 1
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    residual = -weights / weights.sum()
    residual[reach] += 1
    products = np.correlate(np.concatenate([residual, np.zeros(lags)]), residual, "valid")
    return np.asarray(products[1:] / products[0], np.float64)


def _best_ranges(high: Rows, min_stop: int) -> Iterator[tuple[Range, float]]:
    """Yield for each length the range with the best correlated ends that ends at `min_stop` or
    later, and its match.
    """
    shortest = max(int(MIN_REPEAT_SHARE * len(high)), SEAM)
    lengths = range(shortest, min(shortest + LENGTHS, len(high) - SEAM + 1))
    for length, matches in zip(lengths, _matches(high, lengths), strict=True):
        # Both sides need rows to compare, unless all learned rows are kept: the seam then follows
        # the last one.
        starts = np.arange(
            max(SEAM, min_stop - length), max(len(high) - SEAM, min_stop) - length + 1
        )
        if len(starts):
            start = int(starts[np.argmax(matches[starts])])
            yield (start, start + length), float(matches[start])


def _matches(high: Rows, lengths: range) -> Iterator[Rows]:
    """Yield for each length the windowed correlation of rows with those `length` rows later, -1 to
    1.

    Each has shape (n - length + 1,): item i uses the 16 rows around the boundary before row i.
    """
    window = np.hanning(2 * SEAM + 2)[1:-1]
    squares = np.einsum("td,td->t", high, high)
    # Dot products of each row with the one `length` rows later, shape (lengths, n); 0 past the last
    # row.
    products = np.zeros((len(lengths), len(high)))
    for start in range(0, len(high) - lengths[0], BLOCK_ROWS):
        block = high[start : start + BLOCK_ROWS]
        dots = block @ high[start + lengths[0] : start + BLOCK_ROWS + lengths[-1]].T
        for row in range(len(block)):
            values = dots[row, row : row + len(lengths)]
            products[: len(values), start + row] = values
    for length in lengths:
        count = len(high) - length
        paired, later, earlier = (
            np.convolve(values, window)[SEAM - 1 : SEAM + count]
            for values in (products[length - lengths[0], :count], squares[length:], squares[:count])
        )
        norms = np.sqrt(later * earlier)
        yield np.divide(paired, norms, out=np.zeros_like(paired), where=norms > 0)
