"""The methods `bands` and `auto`, and how they split a table into a slow and a fast band.

The slow band is a smooth curve that says where in the text a row stands; the fast band is what remains and says which
neighbour it is. Interpolation keeps the slow band and ruins the fast one, by which heads find the previous token;
copying keeps the fast band and breaks the slow one at every seam. `bands` stretches the one and repeats the other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.method_facts import TOLERANCE, Setting, method, method_text, read_rows
from ctxextend.tables.sinusoids import BLOCK_ROWS
from ctxextend.tables.stats import find_outliers, norms_and_neighbours

Rows = NDArray[np.float64]
Indices = NDArray[np.int64]

# Rows on either side of a seam that are compared and blended, and rows below which a table is too short to be split.
SEAM = 8
SHORTEST = 4 * SEAM
# Settings of `bands` that repeat and widen nothing, which is linear interpolation.
LINEAR: dict[str, Any] = {"sigma": 0.0, "gain": 1.0}
# Standard deviations of the narrowest and the widest Gaussian that are tried, in rows, and the share of the table that
# the widest may have.
MIN_SIGMA, MAX_SIGMA, MAX_SIGMA_SHARE = 4.5, 16.0, 1 / 8
# The frequency at which a Gaussian of sigma rows leaves half the amplitude, in cycles per row times sigma.
HALF_AMPLITUDE = float(np.sqrt(np.log(2) / 2) / np.pi)
# A valley of the spectrum reaches as far as its power stays below this many times its minimum, or this share of all.
VALLEY_FACTOR, VALLEY_SHARE = 1.5, 0.002
# Standard deviations beyond which a Gaussian is cut off.
REACH = 6
# The fast band counts where its autocorrelation over this many lags is this far from that of noise, and its share of
# the rows' variance is this large.
MIN_NOISE_DISTANCE, LAGS, MIN_FAST_SHARE = 0.1, 32, 0.1
# Where the ends of the range that repeats are this alike, a seam costs nothing, and as much as possible is repeated.
GOOD_MATCH = 0.5
# The range that repeats is at least this share of the table, and this many lengths are tried.
MIN_REPEAT_SHARE, LENGTHS = 1 / 2, 512
# The share of the table within which rows must grow apart for near ones to differ from far ones.
NEAR = 1 / 8
# How much a table is widened around its mean per doubling, where near rows differ from far ones and elsewhere, and the
# most.
GAIN, FAR_GAIN, MAX_GAIN = 0.2, 0.1, 1.6
# The share of the median norm below which a row was never trained.
MIN_NORM = 0.2
# Columns whose spectra are held at once.
COLUMNS = 64
# What both methods cost texts that did not fit before.
ALIKE = "order is kept, and neighbours where the table has a fast part, but more positions look alike"


def has_free_settings(*, sigma: Any = None, repeat: Any = None, gain: Any = None, within: Any = None) -> bool:
    """Whether the table is to choose a number of `bands` beside the rows `within`; at sigma 0 nothing repeats."""
    return gain is None or (sigma != 0 and None in (sigma, repeat))


def choose_bands(table: Rows, rows: int, *, keep: int = 0, gain: float | None = None, **given: Any) -> tuple[str, str]:
    """Choose the settings of `bands` for a table, and say by which of its figures; arguments as there."""
    split = choose_split(table, keep=keep, **given)
    chosen = {
        "sigma": split.sigma,
        "repeat": (given.get("repeat") or split.repeat) if split.sigma else None,
        "gain": default_gain(split, len(table), rows) if gain is None else gain,
        "within": (split.head, split.stop),
    }
    near = "rows grow apart within an eighth of the table" if split.is_local else "far rows are much like near ones"
    if not has_free_settings(gain=gain, **given):
        return method_text("bands", chosen), ""
    reason = f"gain {chosen['gain']:.3g} ({'as given' if gain is not None else near})"
    figures = f"leaves {split.fast_share:.0%} of the variance, {split.noise_distance:.2g} from noise"
    if not _can_be_split(table[split.head : split.stop]):
        what = "bands without a fast part: the rows are too few to part, or no numbers"
    elif not split.sigma:
        figures = f" (smoothing {figures})" if given.get("sigma") is None else ""
        what = f"bands without a fast part{figures}: the rows are stretched"
    else:
        what = f"bands with sigma {split.sigma:.3g} (it {figures}), repeat {split.repeat[0]}:{split.repeat[1]}"
        what += f" (its ends match by {split.match:.2f})"
    return method_text("bands", chosen), f"{what}, {reason}"


@method(
    summary="stretch the slow part of the table and repeat the fast part",
    settings={
        "sigma": Setting(
            "rows that smoothing to the slow part reaches; 0 repeats nothing",
            "0, or at least 0.5",
            None,
            float,
            lambda sigma: sigma == 0 or 0.5 <= sigma < np.inf,
        ),
        "repeat": Setting("rows A to B-1 of the fast part repeat", "A:B with 0 <= A < B", None, read_rows),
        "gain": Setting("rows move from their mean by this factor", "above 0", None, float, lambda g: 0 < g < np.inf),
        "within": Setting("rows A to B-1 are typical, and split", "A:B with 0 <= A < B", None, read_rows),
    },
    keeps_learned_rows=False,
    convention="slow: local lines with Gaussian weights, stretched; fast: what they leave, repeated, the ends "
    "blended over 16 rows; both moved away from the mean by the gain; chosen from the table where not given",
    long_inputs=ALIKE,
    when="long texts must work at once, and short ones may change",
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
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
    within: tuple[int, int] | None = None,
) -> Rows:
    """Stretch the slow band of the learned rows, and repeat the fast one as it was learned.

    The slow band S is the rows smoothed by a Gaussian of `sigma` rows (local linear, so that its ends do not bend), the
    fast band F the residual. Row t is mean + gain·(S(u) - mean + F(v)): u is where linear interpolation that keeps both
    ends reads the table, and v advances row by row, from `repeat`'s end back to its start, blended over 8 rows on
    either side. Rows outside `within` take no part; those before it stay, and so do `keep` rows: the slow band is
    stretched from the last of them on. At sigma 0 it is linear interpolation, widened by `gain`. The idea is YaRN's,
    which stretches slow rotations and keeps fast ones. What is None is chosen from the table, see `choose_bands`.

    Source: our own; after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (rotary positions).
    """
    if rows == len(table):
        return table.copy()
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat, within=within)
    source = table[split.head : split.stop]
    slow = smoothed(source, split.sigma) if split.sigma else source
    finite = np.isfinite(slow).all(axis=1)  # a row that is not must not spoil all others
    mean = slow[finite].mean(axis=0) if finite.any() else np.zeros(table.shape[1])
    gain = default_gain(split, len(table), rows) if gain is None else gain
    # The slow band is read in place up to row `still`, from there to its last row in equal steps.
    first, still, last = max(split.head, keep), max(split.head, keep - 1), split.stop - 1
    steps = np.maximum(np.arange(rows) - still, 0)
    position = np.minimum(np.arange(rows), still) + steps * (max(last - still, 0) / max(rows - 1 - still, 1))
    position = np.minimum(position - split.head, len(slow) - 1)
    lower = np.floor(position).astype(np.int64).clip(0, max(len(slow) - 2, 0))
    upper, weight = np.minimum(lower + 1, len(slow) - 1), (position - lower)[:, None]
    result = np.empty((rows, table.shape[1]))
    result[:first] = table[:first]
    for start in range(first, rows, BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, rows))
        made = (1 - weight[block]) * slow[lower[block]] + weight[block] * slow[upper[block]]
        if split.sigma:
            before, after, share = _fast_rows(split, block)
            made += (1 - share[:, None]) * (source[before] - slow[before])
            made += share[:, None] * (source[after] - slow[after])
        result[block] = made + (gain - 1) * (made - mean)
    return result


def _fast_rows(split: "BandSplit", rows: Indices) -> tuple[Indices, Indices, Rows]:
    """Return for each row of a longer table its row of the fast band, the one it blends into, and that one's share."""
    start, stop = (end - split.head for end in split.repeat)
    last, length = split.stop - split.head - 1, max(stop - start, 1)
    beyond = rows - split.head - stop
    since = beyond % length
    step = np.where(length - since <= SEAM, since - length, since)  # from the nearest seam, where one is near
    is_near = (beyond >= -SEAM) & (step < SEAM)
    before = np.where(is_near, stop + step, np.where(beyond < 0, rows - split.head, start + since))
    after = np.where(is_near, start + step, before)
    share = np.where(before > last, 1.0, np.where(is_near, (step + SEAM + 0.5) / (2 * SEAM), 0.0))
    return before.clip(0, last), after.clip(0, last), share


def choose_auto(table: Rows, rows: int, *, keep: int = 0) -> tuple[str, str]:
    """Choose the settings of `bands` that `auto` takes, and say why; arguments as there."""
    is_short = len(table) < SHORTEST
    method, reason = choose_bands(table, rows, keep=keep, **(LINEAR if is_short else {}))
    few = f"linear: {len(table)} rows tell too little of themselves to part them"
    return method, f"auto took {few if is_short else reason}"


@method(
    summary="choose the settings of bands from the table, or from --data",
    keeps_learned_rows=False,
    convention="as bands with all defaults, or as linear",
    long_inputs=ALIKE,
    when="long texts must work at once, and short ones may change",
    reads_kept_rows=True,
    choose=choose_auto,
    tolerance=TOLERANCE,
)
def auto(table: Rows, rows: int, *, keep: int = 0) -> Rows:
    """Create the new rows by `bands`, or by `linear` where a table has fewer than 32 rows, which is too few to split.

    Source: our own.
    """
    return bands(table, rows, keep=keep, **(LINEAR if len(table) < SHORTEST else {}))


@dataclass(frozen=True)
class BandSplit:
    """How a table is split into a slow and a fast band."""

    head: int  # rows at the start that are unlike the others, such as an attention sink; they stay
    stop: int  # the row behind the last one that is like the others
    is_local: bool = False  # rows an eighth of the table apart have less than half in common of what neighbours have
    sigma: float = 0.0  # standard deviation of the Gaussian that gives the slow band, in rows; 0: nothing is repeated
    noise_distance: float = 0.0  # sum of squared differences of the fast band's autocorrelation from that of noise
    fast_share: float = 0.0  # of the variance of the rows, 0 to 1
    repeat: tuple[int, int] = (0, 0)  # the first row of the fast band that repeats, and the row behind the last
    match: float = 0.0  # how alike the rows around both ends of these are, -1 to 1


def choose_split(
    table: Rows,
    *,
    keep: int = 0,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    within: tuple[int, int] | None = None,
) -> BandSplit:
    """Choose from a table alone, shape (n, d), float64, how it is split; what is given is taken as it is.

    Sigma is where the valley begins that the spectrum of the rows has between slow and fast; where the fast band is
    little, or has the autocorrelation of noise, 0. Of the ranges of half the table, and up to 511 rows more, the one
    whose ends are most alike repeats, from behind the `keep` rows on; where they are much alike, sigma is an eighth of
    the table, so that everything but its trend repeats.
    """
    split = _typical_rows(table) if within is None else BandSplit(*within)
    source = table[split.head : split.stop]
    if not _can_be_split(source):
        return split
    common = _autocorrelation((block - block.mean(axis=0) for block in _columns(source)), len(source), NEAR)
    split = replace(split, is_local=bool((common < common[0] / 2).any()))
    wanted = _valley_sigma(source) if sigma is None else sigma
    if not wanted:
        return split
    given = None
    if repeat is not None:  # as rows of `source`, as far as they are in it
        first = min(max(repeat[0], split.head), split.stop - 1) - split.head
        given = first, max(min(repeat[1], split.stop) - split.head, first + 1)
    min_stop = max(min(keep, split.stop) - split.head, 0)
    found = _split_at(split, source, wanted, min_stop, given)
    is_noise = found.noise_distance < MIN_NOISE_DISTANCE or found.fast_share < MIN_FAST_SHARE
    if sigma is None and repeat is None and is_noise:
        return replace(split, noise_distance=found.noise_distance, fast_share=found.fast_share)
    if sigma is None and found.match >= GOOD_MATCH:
        wider = _split_at(split, source, MAX_SIGMA_SHARE * len(source), min_stop, given)
        found = max(found, wider, key=lambda one: (one.match >= GOOD_MATCH, one.sigma))
    return found


def find_repeats(table: Rows, sigma: float, maximum: int, *, keep: int = 0) -> list[tuple[int, int]]:
    """Return the ranges whose ends are most alike, the best first, and last the range of all typical rows.

    No two have nearly the same length, since those would differ in little; `sigma` and `keep` are as in `choose_split`.
    """
    split = _typical_rows(table)
    source = table[split.head : split.stop]
    if not _can_be_split(source):
        return []
    ranges = _best_ranges(source - smoothed(source, sigma), max(min(keep, split.stop) - split.head, 0))
    found = list[tuple[int, int]]()
    for (first, last), _ in sorted(ranges, key=lambda one: -one[1]):
        if len(found) < maximum and all(abs((stop - start) - (last - first)) >= SEAM for start, stop in found):
            found.append((first + split.head, last + split.head))
    return [*found, (split.head, split.stop)]


def default_gain(split: BandSplit, learned: int, rows: int) -> float:
    """Return 1 + `GAIN`, or where far rows are much like near ones `FAR_GAIN`, per doubling; at most `MAX_GAIN`."""
    doublings = np.log2(max(rows / max(learned, 1), 1))
    return float(min(1 + (GAIN if split.is_local else FAR_GAIN) * doublings, MAX_GAIN))


def smoothed(rows: Rows, sigma: float) -> Rows:
    """Return rows smoothed by lines fitted around each by least squares, with Gaussian weights of `sigma` rows.

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


def _can_be_split(rows: Rows) -> bool:
    return len(rows) >= SHORTEST and bool(np.isfinite(rows).all())


def _typical_rows(table: Rows) -> BandSplit:
    """Return a split that leaves out rows at both ends that are unlike those around them."""
    if len(table) < SHORTEST:
        return BandSplit(0, len(table))
    norms, cosines, _ = norms_and_neighbours(table)
    outliers = set(find_outliers(norms, cosines))
    finite = norms[np.isfinite(norms)]
    if finite.size:  # where many rows at the end were never trained, none of them stands out from those around it
        outliers.update(np.flatnonzero(norms < MIN_NORM * np.median(finite)).tolist())
    head, stop = 0, len(table)
    while head in outliers and head < len(table) // 4:
        head += 1
    while stop - 1 in outliers and stop > 3 * len(table) // 4:
        stop -= 1
    return BandSplit(head, stop)


def _valley_sigma(rows: Rows) -> float:
    """Return the sigma that splits a table where the valley of its spectrum begins, between slow and fast."""
    widest = min(MAX_SIGMA, MAX_SIGMA_SHARE * len(rows))
    line = np.linspace(0, 1, len(rows))[:, None]
    taper = np.hanning(len(rows) + 2)[1:-1, None]
    levelled = (
        (block - (1 - line) * block[:SEAM].mean(axis=0) - line * block[-SEAM:].mean(axis=0)) * taper
        for block in _columns(rows)
    )
    power = _power(levelled, len(rows))
    frequencies = np.fft.rfftfreq(len(rows))
    tried = np.flatnonzero((frequencies >= HALF_AMPLITUDE / widest) & (frequencies <= HALF_AMPLITUDE / MIN_SIGMA))
    if not len(tried):  # few rows have few frequencies
        return widest
    floor = max(VALLEY_FACTOR * power[tried].min(), VALLEY_SHARE * power.sum())
    return float(HALF_AMPLITUDE / frequencies[tried[power[tried] <= floor][0]])


def _split_at(split: BandSplit, rows: Rows, sigma: float, min_stop: int, given: tuple[int, int] | None) -> BandSplit:
    """Return a split of typical rows at one sigma, with the figures of the fast band.

    The range that repeats is the given one, or the best of half the table or more that ends at `least_stop` or later.
    """
    fast = smoothed(rows, sigma)
    np.subtract(rows, fast, out=fast)
    variance = sum(float(np.square(block - block.mean(axis=0)).sum()) for block in _columns(rows))
    share = float(np.einsum("td,td->", fast, fast)) / variance if variance > 0 else 0.0
    found = _autocorrelation(_columns(fast), len(rows), min(LAGS / len(rows), 1 / 2))
    difference = found - _noise_autocorrelation(min(sigma, float(len(rows))), len(found))
    distance = float(np.square(difference).sum()) if share > 0 else 0.0
    if given is None:
        ranges = _best_ranges(fast, min_stop)
        (first, stop), match = max(ranges, key=lambda one: one[1], default=((0, len(fast)), -1.0))
    else:
        (first, stop), length = given, given[1] - given[0]
        # Of all rows, there is none behind the range to compare with.
        match = 0.0 if length == len(fast) else float(next(_matches(fast, range(length, length + 1)))[first])
    repeat = first + split.head, stop + split.head
    return replace(split, sigma=sigma, noise_distance=distance, fast_share=share, repeat=repeat, match=match)


def _columns(rows: Rows) -> Iterator[Rows]:
    """Yield some columns at a time, so that no second table is held."""
    for start in range(0, rows.shape[1], COLUMNS):
        yield rows[:, start : start + COLUMNS]


def _power(blocks: Iterable[Rows], length: int) -> Rows:
    """Return the power at each frequency of rows, padded to a length, all columns together."""
    return sum((np.square(np.abs(np.fft.rfft(block, length, axis=0))).sum(axis=1) for block in blocks), np.zeros(1))


def _autocorrelation(blocks: Iterable[Rows], count: int, maximum: float) -> Rows:
    """Return the correlation of rows with those 1, 2, … behind them, -1 to 1, up to a share `most` of their count."""
    lags = np.arange(1, max(round(maximum * count), 1) + 1)
    power, squares = np.zeros(count + 1), np.zeros(count)
    for block in blocks:
        power += _power([block], 2 * count)
        squares += np.einsum("td,td->t", block, block)
    products, sums = np.fft.irfft(power)[lags], np.concatenate([[0], np.cumsum(squares)])
    norms = np.sqrt(sums[count - lags] * (sums[-1] - sums[lags]))
    found: Rows = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return found


def _noise_autocorrelation(sigma: float, lags: int) -> Rows:
    """Return the autocorrelation of noise minus its smoothed rows, away from the ends, shape (lags,)."""
    reach = int(REACH * sigma) + 1
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    residual = -weights / weights.sum()
    residual[reach] += 1
    products = np.correlate(np.concatenate([residual, np.zeros(lags)]), residual, "valid")
    return np.asarray(products[1:] / products[0], np.float64)


def _best_ranges(fast: Rows, min_stop: int) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield for each length the range that ends at `least_stop` or later whose ends are most alike, and how alike."""
    shortest = max(int(MIN_REPEAT_SHARE * len(fast)), SEAM)
    lengths = range(shortest, min(shortest + LENGTHS, len(fast) - SEAM + 1))
    for length, matches in zip(lengths, _matches(fast, lengths), strict=True):
        # Rows on both sides are compared, unless all learned rows stay, so that the seam lies behind the last.
        starts = np.arange(max(SEAM, min_stop - length), max(len(fast) - SEAM, min_stop) - length + 1)
        if len(starts):
            start = int(starts[np.argmax(matches[starts])])
            yield (start, start + length), float(matches[start])


def _matches(fast: Rows, lengths: range) -> Iterator[Rows]:
    """Yield for each length how alike the 16 rows around each row are to those that far behind, -1 to 1.

    Each is of shape (n - length + 1,): item i compares the rows around the boundary before row i.
    """
    window = np.hanning(2 * SEAM + 2)[1:-1]
    squares = np.einsum("td,td->t", fast, fast)
    # The product of each row and the one `length` rows behind it, shape (lengths, n); 0 where there is none.
    products = np.zeros((len(lengths), len(fast)))
    for start in range(0, len(fast) - lengths[0], BLOCK_ROWS):
        block = fast[start : start + BLOCK_ROWS]
        found = block @ fast[start + lengths[0] : start + BLOCK_ROWS + lengths[-1]].T
        for row in range(len(block)):
            behind = found[row, row : row + len(lengths)]
            products[: len(behind), start + row] = behind
    for length in lengths:
        count = len(fast) - length
        both, one, other = (
            np.convolve(values, window)[SEAM - 1 : SEAM + count]
            for values in (products[length - lengths[0], :count], squares[length:], squares[:count])
        )
        norms = np.sqrt(one * other)
        yield np.divide(both, norms, out=np.zeros_like(both), where=norms > 0)
