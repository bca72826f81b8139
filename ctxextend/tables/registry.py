"""The registry of methods: what each does, what it takes and what it costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables import methods
from ctxextend.tables.bands import auto, bands, explain_auto, explain_bands

__all__ = ["METHODS", "SAME", "Method", "list_methods"]

Rows = NDArray[np.float64]

# What several methods cost texts that fitted before.
SAME = "texts that fitted before give exactly what they gave"
MOVED = "short texts change too, since the positions moved{but}"
# What several methods cost texts that did not.
CLOSER = "order is kept, but neighbours stand closer together than any it has seen"
ALIKE = "order is kept, and neighbours where the table has a fast part, but more positions look alike"
UNTRAINED = "the new positions mean nothing to it until it is trained"

# For methods that go through LAPACK or BLAS: their last bits differ between machines, and where a table of 16-bit
# floats is rounded, a few numbers of a row may then differ by one in their own last bit.
LAPACK = 1e-3


@dataclass(frozen=True)
class Method:
    """What is known of one method, as data.

    Attributes:
        name: The name that users type.
        function: ``function(table, rows, **flags) -> rows``, float64 in and out but for those that repeat rows.
        flags: Flags of its own, beside ``keep_first`` and ``drop_last``, with their defaults.
        keeps_learned_rows: Whether learned rows stay as they are, bit for bit.
        summary: What it does, in one line.
        convention: What must be known to compute the same rows elsewhere.
        short_inputs: What it costs texts that fitted before; ``{but}`` stands for the rows that are kept.
        long_inputs: What it costs texts that did not.
        when: When to use it, in a phrase.
        source: Where it comes from, as in the function's docstring.
        keep_first: What ``keep_first`` is where it is not given; None for methods that do not take it.
        takes_start: Whether `function` needs the absolute position of the first source row, as ``start``.
        reads_kept: Whether `function` is given the rows that ``keep_first`` keeps too, and as ``keep`` how many they
            are; it can then keep all.
        explain: Says in words what `function` chose by a table's figures, with the same arguments; None where it
            chooses nothing.
        most: The most rows that `function` can make of so many source rows; None where there is no such bound.
        repeats_rows: Whether each row that it makes is a source row; it is then given them as they are stored, which
            takes half the time and memory.
        tolerance: Largest difference, relative to the median row norm, that recomputing may give: 0 where results are
            exact, above 0 for methods that go through LAPACK, whose last bits differ between machines.
    """

    name: str
    function: Callable[..., Rows]
    flags: Mapping[str, Any]
    keeps_learned_rows: bool
    summary: str
    convention: str
    short_inputs: str
    long_inputs: str
    when: str
    source: str
    keep_first: int | None = 0
    takes_start: bool = False
    reads_kept: bool = False
    explain: Callable[..., str] | None = None
    most: Callable[[int], int] | None = None
    repeats_rows: bool = False
    tolerance: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what users need to know of it as plain values."""
        return {
            "name": self.name,
            "summary": self.summary,
            "keeps_learned_rows": self.keeps_learned_rows,
            "keep_first": self.keep_first,
            "flags": dict(self.flags),
            "when": self.when,
            "source": self.source,
            "convention": self.convention,
            "short_inputs": self.short_inputs.format(but=""),
            "long_inputs": self.long_inputs,
            "tolerance": self.tolerance,
        }


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="copy",
            function=methods.copy,
            flags={},
            keeps_learned_rows=True,
            summary="repeat the learned rows",
            convention="row t is source row t mod the number of source rows",
            short_inputs=SAME,
            long_inputs="positions whole table lengths apart look the same to it, and order breaks at each seam",
            when="training follows, and short texts must stay exactly as they are until then",
            source="Beltagy et al. 2020, Longformer, section 5, arXiv:2004.05150",
            repeats_rows=True,
        ),
        Method(
            name="linear",
            function=methods.linear,
            flags={},
            keeps_learned_rows=False,
            summary="stretch the table by linear interpolation",
            convention="both ends kept (align_corners=True), in float64",
            short_inputs=MOVED,
            long_inputs=CLOSER,
            when="long texts must work at once, and short ones may change",
            source="Dosovitskiy et al. 2020, section 3.2, arXiv:2010.11929 (2-D), "
            "and Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378 (text)",
        ),
        Method(
            name="sinusoidal",
            function=methods.sinusoidal,
            flags={"scope": "new"},
            keeps_learned_rows=True,
            summary="continue with sinusoids, or with --scope all replace the table by them",
            convention="sin and cos interleaved; scope new: mean + s·PE(t), s = median‖p - mean‖ / ‖PE(t)‖",
            short_inputs=SAME,
            long_inputs=UNTRAINED,
            when="training follows, and no two positions may look the same to it",
            source="Vaswani et al. 2017, section 3.5, arXiv:1706.03762",
            takes_start=True,
        ),
        Method(
            name="cubic",
            function=methods.cubic,
            flags={},
            keeps_learned_rows=False,
            summary="stretch the table by cubic convolution",
            convention="both ends kept (align_corners=True), a = -0.75, end rows repeated beyond the ends, in float64",
            short_inputs=MOVED,
            long_inputs=CLOSER,
            when="as linear, where the table is smooth and its norms must not shrink between rows",
            source="Keys 1981, IEEE Transactions on Acoustics, Speech, and Signal Processing 29(6), pages 1153-1160",
        ),
        Method(
            name="nearest",
            function=methods.nearest,
            flags={},
            keeps_learned_rows=False,
            summary="let groups of neighbouring positions share a learned row",
            convention="row t is source row floor(t·n/m), of n source rows for m",
            short_inputs=MOVED,
            long_inputs="it cannot tell the positions of a group apart",
            when="long texts must work at once, by learned rows alone",
            source="Zhu et al. 2024, LongEmbed, grouped positions, arXiv:2404.12096",
            repeats_rows=True,
        ),
        Method(
            name="mirror",
            function=methods.mirror,
            flags={},
            keeps_learned_rows=True,
            summary="go back and forth through the learned rows",
            convention="numpy.pad's mode reflect: the rows at the turns are not repeated",
            short_inputs=SAME,
            long_inputs="order runs backwards in every other stretch, and positions at equal distance from a turn look "
            "the same to it",
            when="training follows, and neighbours must look like neighbours everywhere: there is no seam",
            source='our own, as numpy.pad does it in mode "reflect"',
            repeats_rows=True,
        ),
        Method(
            name="stretch",
            function=methods.stretch,
            flags={},
            keeps_learned_rows=False,
            summary="keep the first 20 rows, stretch the others in equal steps, and go on past the last",
            convention="row t is read at source position t·n/m, past the last row along the last step, in float64",
            short_inputs=MOVED,
            long_inputs=CLOSER,
            when="long texts must work at once, and most texts are short, as in CLIP",
            source="Zhang et al. 2024, Long-CLIP, section 3.2, arXiv:2403.15378; `load_from_clip`, 77 to 248",
            keep_first=20,
        ),
        Method(
            name="hierarchical",
            function=methods.hierarchical,
            flags={"alpha": 0.4},
            keeps_learned_rows=True,
            summary="write positions in two digits to the base n, the learned rows, and add a row for each digit",
            convention="row i·n + j is alpha·u_i + (1 - alpha)·u_j, u = (p - alpha·p_0) / (1 - alpha), in float64",
            short_inputs=SAME,
            long_inputs="no two positions look the same to it, but order breaks at each seam until it is trained",
            when="a short training follows, to many times the length; n rows make n times n at most",
            source="Su Jianlin 2020, kexue.fm/archives/7947, and his bert4keras",
            most=lambda learned: learned**2,
        ),
        Method(
            name="last",
            function=methods.last,
            flags={},
            keeps_learned_rows=True,
            summary="repeat the last learned row",
            convention="row t is source row min(t, n - 1)",
            short_inputs=SAME,
            long_inputs="all new positions look the same to it",
            when="a comparison needs it: it knows nothing of order past the old end",
            source='our own, as numpy.pad does it in mode "edge"',
            keep_first=None,
            repeats_rows=True,
        ),
        Method(
            name="mean",
            function=methods.mean,
            flags={},
            keeps_learned_rows=True,
            summary="fill the new rows with the mean of the learned ones",
            convention="the mean of the source rows, in float64",
            short_inputs=SAME,
            long_inputs="all new positions look the same to it",
            when="a comparison needs it: new rows that say the least",
            source='after Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models" (for words)',
        ),
        Method(
            name="random",
            function=methods.random,
            flags={"seed": 0},
            keeps_learned_rows=True,
            summary="draw the new rows at random, with the learned ones' mean and standard deviation",
            convention="mean + std·z by column, z row by row from numpy.random.default_rng(seed).standard_normal",
            short_inputs=SAME,
            long_inputs=UNTRAINED,
            when="a comparison needs a baseline, as if the new positions were trained from scratch",
            source="our own, the baseline; each column's mean and deviation after Hewitt 2021, as for `mean`",
        ),
        Method(
            name="spectral",
            function=methods.spectral,
            flags={},
            keeps_learned_rows=True,
            summary="continue the leading components of the learned rows as sinusoids fitted to them",
            convention="64 components, up to 16 common frequencies; up to twice as far from the mean as learned rows",
            short_inputs=SAME,
            long_inputs="the waves that it has seen go on, but their small differences from the learned rows do not",
            when="training follows, and the table is smooth and periodic (inspect shows how much)",
            source="our own; frequencies after Zechmeister & Kuerster 2009, section 2, arXiv:0901.2573",
            tolerance=LAPACK,
        ),
        Method(
            name="rotation",
            function=methods.rotation,
            flags={},
            keeps_learned_rows=True,
            summary="continue by the rotation that best takes each learned row to the next",
            convention="orthogonal Procrustes in 512 components around the mean; as far from it as the median row",
            short_inputs=SAME,
            long_inputs="each step looks like a learned one to it, but errors of the rotation add up",
            when="training follows, and neighbours must be as far apart as learned ones are",
            source='our own; R by Golub & Van Loan 2013, "Matrix Computations", 4th edition, section 6.4.1',
            tolerance=LAPACK,
        ),
        Method(
            name="bands",
            function=bands,
            flags={"sigma": None, "repeat": None, "gain": None},
            keeps_learned_rows=False,
            summary="stretch the slow part of the table, and repeat the fast part as it was learned",
            convention="slow: local lines with Gaussian weights, stretched; fast: what they leave, repeated, the ends "
            "blended over 16 rows; both moved away from the mean by the gain; chosen from the table where not given",
            short_inputs=MOVED,
            long_inputs=ALIKE,
            when="long texts must work at once, and short ones may change",
            source="our own; after YaRN, Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071 (rotary positions)",
            reads_kept=True,
            explain=explain_bands,
            tolerance=LAPACK,
        ),
        Method(
            name="auto",
            function=auto,
            flags={},
            keeps_learned_rows=False,
            summary="choose by the table's own figures, and say which and why: bands, or linear for fewer than 32 rows",
            convention="as bands with all defaults, or as linear",
            short_inputs=MOVED,
            long_inputs=ALIKE,
            when="long texts must work at once, and short ones may change",
            source="our own",
            reads_kept=True,
            explain=explain_auto,
            tolerance=LAPACK,
        ),
    )
}


def list_methods() -> list[Method]:
    """Return every method, the default first."""
    return list(METHODS.values())
