"""A table in two bands: a slow curve, where in the text a row stands, and a fast one, which neighbour it is.

Interpolation keeps the first and ruins the second, by which heads find the token before theirs; copying keeps the
second and breaks the first at every seam. `bands` stretches the one and repeats the other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.components import BLOCK_ROWS
from ctxextend.tables.oddities import outlier_rows
from ctxextend.tables.stats import measure

__all__ = ["Split", "bands", "choose_split", "default_gain"]

Rows = NDArray[np.float64]

# Rows of the widest Gaussian that is tried, and the share of the table that it may have.
WIDEST, WIDEST_SHARE = 16.0, 1 / 8
NARROWEST = 3.0
# How much neighbours in what is left must have in common for it to be more than noise.
GRAIN = 0.2
# What repeats is at least so large a share of the table, and is looked for among so many lengths.
LEAST_SHARE, LENGTHS = 1 / 2, 512
# Rows on either side of a seam that are compared, and blended.
SEAM = 8
# Of a Gaussian of sigma rows, the frequency of which half the amplitude is left, in cycles a row times sigma.
CUT = float(np.sqrt(np.log(2) / 2) / np.pi)
# The share of the table within which rows must grow apart for near ones to be told from far ones by them.
NEAR = 1 / 8
# By how much a table is widened around its mean for each doubling: where near rows are told apart, and elsewhere; and
# at most.
GAIN, FAR_GAIN, MOST_GAIN = 0.2, 0.15, 1.6
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
        grain: Correlation of what it leaves of neighbours, -1 to 1.
        repeat: The rows of the fast band that repeat, from the first to one behind the last; none where sigma is 0.
        match: How alike the rows around both ends of these are, -1 to 1.
    """

    head: int
    stop: int
    is_local: bool
    sigma: float = 0.0
    grain: float = 0.0
    repeat: tuple[int, int] = (0, 0)
    match: float = 0.0


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
            None is 1 + 0.2·log2(m / n), or where far rows are much like near ones 1 + 0.15·log2(m / n), at most 1.6.

    Returns:
        Shape (m, d), float64.

    Source: our own; that slow parts of positions are stretched and fast ones kept, and that attention is sharpened with
        length, after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (for rotary frequencies).
    """
    if rows == len(table):
        return table.copy()
    split = choose_split(table, keep=keep, sigma=sigma, repeat=repeat)
    source = table[split.head : split.stop]
    slow = _smoothed(source, split.sigma) if split.sigma else source
    fast, mean = source - slow, slow.mean(axis=0)
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
            made += (1 - weight) * fast[old[block]] + weight * fast[new[block]]
        result[block] = made + (widened - 1) * (made - mean)
    return result


def default_gain(split: Split, learned: int, rows: int) -> float:
    """Return by how much a table is widened that grows from so many rows to so many."""
    doublings = np.log2(max(rows / max(learned, 1), 1))
    return float(min(1 + (GAIN if split.is_local else FAR_GAIN) * doublings, MOST_GAIN))


def choose_split(
    table: Rows, *, keep: int = 0, sigma: float | None = None, repeat: tuple[int, int] | None = None
) -> Split:
    """Choose from a table alone how it is parted.

    Sigma is where the spectrum of the rows has its valley, between what changes over the whole table and what changes
    from row to row. Where neighbours have nothing in common in what it leaves, that is noise, and sigma is 0. Of all
    stretches of half the table or more, that one repeats whose ends are most alike.

    Args:
        table: Learned rows, shape (n, d), float64.
        keep: As in `bands`: what repeats ends behind these.
        sigma: As in `bands`, in place of what would be chosen.
        repeat: As in `bands`, in place of what would be chosen.
    """
    head, stop = _alike(table)
    source = table[head:stop]
    wanted = _valley(source) if sigma is None else sigma
    is_local = _is_local(source)
    if not wanted or len(source) < SHORTEST:
        return Split(head, stop, is_local)
    fast = source - _smoothed(source, wanted)
    grain = _correlation(fast[:-1], fast[1:])
    if sigma is None and grain < GRAIN:
        return Split(head, stop, is_local, grain=grain)
    if repeat is None:
        first, last, match = _loop(fast, max(min(keep, stop) - head, 0))
        repeat = first + head, last + head
    else:
        match = float(_alike_after(fast, repeat[1] - repeat[0])[repeat[0] - head])
    return Split(head, stop, is_local, wanted, grain, repeat, match)


def _alike(table: Rows) -> tuple[int, int]:
    """Return the first row that is like those around it, and one behind the last."""
    outliers = outlier_rows(measure(table)) if len(table) >= SHORTEST else {}
    head, stop = 0, len(table)
    while head in outliers and head < len(table) // 4:
        head += 1
    while stop - 1 in outliers and stop > 3 * len(table) // 4:
        stop -= 1
    return head, stop


def _smoothed(rows: Rows, sigma: float) -> Rows:
    """Return rows smoothed by lines fitted around each, weighted by a Gaussian; sums are taken in one order."""
    count, reach = len(rows), min(int(4 * sigma) + 1, len(rows) - 1)
    weights, first, second = (np.zeros(count) for _ in range(3))
    sums, moments = np.zeros_like(rows), np.zeros_like(rows)
    for step in range(-reach, reach + 1):
        weight = float(np.exp(-0.5 * (step / sigma) ** 2))
        here = slice(max(-step, 0), count - max(step, 0))
        there = slice(max(step, 0), count - max(-step, 0))
        weights[here] += weight
        first[here] += weight * step
        second[here] += weight * step**2
        sums[here] += weight * rows[there]
        moments[here] += weight * step * rows[there]
    determinant = weights * second - first**2
    return (second / determinant)[:, None] * sums - (first / determinant)[:, None] * moments


def _valley(rows: Rows) -> float:
    """Return the sigma that parts a table where its spectrum is lowest between slow and fast; 0 for short tables."""
    widest = min(WIDEST, WIDEST_SHARE * len(rows))
    if len(rows) < SHORTEST or widest < NARROWEST:
        return 0.0
    taper = np.hanning(len(rows) + 2)[1:-1, None]
    line = np.linspace(0, 1, len(rows))[:, None]
    level = rows - (1 - line) * rows[:SEAM].mean(axis=0) - line * rows[-SEAM:].mean(axis=0)
    power = (np.abs(np.fft.rfft(level * taper, axis=0)) ** 2).sum(axis=1)
    frequencies = np.fft.rfftfreq(len(rows))
    tried = (frequencies >= CUT / widest) & (frequencies <= CUT / NARROWEST)
    lowest = frequencies[tried][np.argmin(power[tried])]
    return float(CUT / lowest)


def _is_local(rows: Rows) -> bool:
    """Whether rows an eighth of the table apart have less than half in common of what neighbours have."""
    centred, most = rows - rows.mean(axis=0), int(NEAR * len(rows))
    beside = _correlation(centred[:-1], centred[1:])
    return any(_correlation(centred[:-step], centred[step:]) < beside / 2 for step in range(1, most + 1))


def _correlation(one: Rows, other: Rows) -> float:
    norm = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / norm if norm > 0 else 0.0


def _loop(fast: Rows, least_stop: int) -> tuple[int, int, float]:
    """Return the stretch whose ends are most alike: its first row, one behind its last, and how alike they are."""
    count, best = len(fast), (0, len(fast), -1.0)
    shortest = max(int(LEAST_SHARE * count), SEAM)
    for length in range(shortest, min(shortest + LENGTHS, count - SEAM + 1)):
        alike = _alike_after(fast, length)
        # Rows on both sides are compared, unless all learned rows stay, so that the seam lies behind the last.
        places = np.arange(max(SEAM, least_stop - length), max(count - SEAM, least_stop) - length + 1)
        if len(places):
            place = int(places[np.argmax(alike[places])])
            best = max(best, (place, place + length, float(alike[place])), key=lambda found: found[2])
    return best


def _alike_after(fast: Rows, length: int) -> Rows:
    """Return how alike the 16 rows around each are to those `length` rows behind, -1 to 1, shape (n - length + 1,)."""
    window = np.hanning(2 * SEAM + 2)[1:-1]
    squares = np.einsum("td,td->t", fast, fast)
    products = np.einsum("td,td->t", fast[length:], fast[: len(fast) - length])
    sums = (
        np.convolve(values, window)[SEAM - 1 : SEAM + len(values)]
        for values in (products, squares[length:], squares[: len(fast) - length])
    )
    both, one, other = sums
    norms = np.sqrt(one * other)
    found: Rows = np.divide(both, norms, out=np.zeros_like(both), where=norms > 0)
    return found


def _places(first: int, last: int, rows: int) -> Rows:
    """Return where each row of a longer table is read: to `first` in place, from there to `last` in equal steps."""
    steps = np.maximum(np.arange(rows) - first, 0)
    return np.minimum(np.arange(rows), first) + steps * (max(last - first, 0) / max(rows - 1 - first, 1))


def _read(rows: Rows, places: Rows) -> Rows:
    """Return rows between rows, linearly."""
    lower = np.clip(np.floor(places).astype(np.int64), 0, max(len(rows) - 2, 0))
    weight = (places - lower)[:, None]
    return (1 - weight) * rows[lower] + weight * rows[np.minimum(lower + 1, len(rows) - 1)]


def _turns(split: Split, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], Rows]:
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
