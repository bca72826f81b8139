"""Pages state of results what the files of `benchmarks/results` contain, and no other number."""

import re
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.helpers.measured import (
    AGAINST_WHOLE,
    Cells,
    check_statements,
    higher,
    number,
    ratio,
    read_points,
    results_table,
    scores,
    span,
    window_search,
    window_speeds,
)
from tests.helpers.repository import ROOT


def held_out(method: str, times: int) -> list[float]:
    """Return how much a method costs on tables that are cut and extended by a factor."""
    return [
        part["ratios"][method][0]
        for part in read_points("real")["held_out"]
        if part["to"] == times * part["before"]
    ]


def minutes(stage: str, reference: str, times: int) -> list[float]:
    """Return ratios before or after a minute, of ordinary text and without kept rows."""
    found: list[float] = []
    for part in read_points("real")["minutes"]:
        before, to = map(int, re.findall(r"(\d+) → (\d+)", part["label"])[0])
        is_special = part["label"].endswith(("kept", "long-range text"))
        if part["reference"] == reference and to == times * before and not is_special:
            found.append(part[stage][0])
    return found


def minute(label: str, stage: str = "after a minute") -> float:
    """Return the ratio of one model before or after a minute."""
    (found,) = [part for part in read_points("real")["minutes"] if part["label"] == label]
    mean: float = found[stage][0]
    return mean


def new_length(times: int) -> list[float]:
    """Return ratios of `bands` to the base in sliding windows, untrained."""
    found: list[float] = []
    for model in ("judge-words", "judge-bytes", "judge-masked"):
        cells = results_table("real", "method", f"{model} 128 → 256", f"{model} 128 → 512")
        found.append(ratio(cells["bands",][times // 2 - 1]))
    return found


def percent(value: float, base: float) -> str:
    """Return by how many per cent a score is above or below another one."""
    return higher(value / base).rpartition(" ")[0]


def small_llama() -> dict[Cells, Cells]:
    """Return perplexities of the small Llama at two and four times its length."""
    return results_table("rotary", "method", "256 → 512", before="On texts of")


def costs(*means: float) -> list[str]:
    """Return by how many whole per cent perplexities are higher, as in guides."""
    return [f"{100 * (mean - 1):.0f} %" for mean in means]


def whole_documents() -> list[float]:
    """Return scores of MiniLM as shipped, at 8,192 tokens untrained and trained, and in chunks."""
    return scores(
        "judging",
        ("as shipped", "256"),
        ("windows, not trained", "8,192"),
        ("windows, 20 steps", "8,192"),
        ("chunks of the whole document", "all"),
    )


def on_short_documents() -> str:
    """Return by how many per cent the untrained model scores lower on 512 tokens than its base."""
    readers = (("windows, not trained", "512"), ("chunks of the same text", "512"))
    return percent(*scores("all", *readers))


def search() -> Iterator[str]:
    shipped, untrained, trained, whole = whole_documents()
    yield f"finds {percent(untrained, shipped)} more than as shipped"
    yield f"nDCG@10 of {untrained} instead of {shipped}, cut"
    yield f"and {percent(trained, shipped)} more ({trained}) after 20"
    yield f"whole documents, which have {whole} too."
    judging = window_search("judging")
    gain = judging["windows, 20 steps", "8,192"][AGAINST_WHOLE]
    yield f"chunks of the untrained base by {gain.removeprefix('+')};"
    twin, chunks, _ = window_speeds()["8,192",]
    yield f"reads {twin.split('/')[0]} documents of 8,192 tokens a second in one pass, and "
    yield f"{chunks.split('/')[0]} in chunks"
    yield f"it finds {on_short_documents()} less than the base before the training"

    rows = results_table("real", "MiniLM 512 → 2048")
    found = {name: number(cells[1]) for (name,), cells in rows.items()}
    copy = found["copy"]
    yield f"finds {percent(copy, found['as it is, first 512 tokens'])} more than the base in its"
    whole_chunks = found["as it is, chunks of the whole document"]
    yield f"finds {percent(copy, whole_chunks)} less than chunks of whole documents"
    yield f"`bands` finds {percent(found['bands'], copy)} less than `copy`"


def rotary() -> Iterator[str]:
    found = read_points("smollm2")

    def of(method: str, part: str) -> str:
        return higher(ratio(found[method][part]))

    yield f"has {of('yarn', 'long')} perplexity with `yarn`, and {of('tuned', 'long')} with"
    yield f"its perplexity is {of('limits', 'long')} as high; with `linear`, "
    yield f"{of('linear', 'long')}."
    *_, longer = results_table("smollm2", "method", "0 to 8,191")["`yarn`",]
    yield f"on one window, it is {higher(ratio(longer))} with `yarn`."
    yield f"{of('yarn', 'short')} perplexity, or {of('tuned', 'short').split(' h')[0]} with the"
    yield f"perplexity is {of('switch', 'generated')} as high there."
    yield f"With `dynamic` it is {of('dynamic', 'generated')}."
    words = results_table("smollm2", "method", "0-33 %")
    shares = {name: cells[3].split(" (")[0] for (name,), cells in words.items()}
    yield f"`yarn` finds {shares['`yarn`']} of hidden words, and none"
    yield f"more than {max(shares.values(), key=number)}."

    small = small_llama()
    twice, four = map(ratio, small["yarn",])
    yield f"has {higher(twice)} perplexity than in sliding windows"
    yield f"and {higher(four)} at four times."
    yield f"it is {higher(ratio(small['yarn, 100 steps',][1]))} at four times."
    yield f"its perplexity is {higher(ratio(small['limits raised only',][0]))} as high untrained"
    yield f"and {higher(ratio(small['limits raised only, 100 steps',][1]))} after the same"


def new_rows() -> Iterator[str]:
    yield f"perplexity is {span(held_out('bands', 2))} higher with `bands`, "
    yield f"{span(held_out('linear', 2))} as high with `linear`, and "
    yield f"{span(held_out('copy', 2))} with `copy`."
    lower, _, upper = span(held_out("bands", 4)).partition(" to ")
    yield f"that of `bands` is from {lower} higher to {upper} as high"
    best: list[str] = []
    for part in read_points("real")["held_out"]:
        means = {name: point[0] for name, point in part["ratios"].items()}
        best.append(min(means, key=lambda name: (means[name], name == "auto")))
    assert (best.count("linear"), best.count("copy")) == (1, 1)
    yield f"lowest perplexity in {best.count('bands')} of {len(best)} comparisons"
    yield f"perplexity is {span(new_length(2))} higher at twice the length, and "
    yield f"{span(new_length(4))} at four times."


def a_minute() -> Iterator[str]:
    rows, windows = "reference rows", "sliding windows"
    before, after = "untrained", "after a minute"
    yield f"from {span(minutes(before, rows, 2))} higher to {span(minutes(after, rows, 2))} higher;"
    lower, _, upper = span(minutes(before, rows, 4)).partition(" to ")
    yield f"from {lower} to {upper} down to {span(minutes(after, rows, 4))} higher."
    kept = "rxnfp's BERT 64 → 256, learned rows kept"
    yield f"from {higher(minute(kept, before))} to {higher(minute(kept))}."
    yield f"after the minute is {span(minutes(after, windows, 2))} higher at twice the length, and "
    yield f"{span(minutes(after, windows, 4))} at four times."
    yield f"{higher(minute('gpt2-byte-128 128 → 512, long-range text'))} perplexity, of a GPT-2"

    def masked(model: str, row: str) -> str:
        *_, beyond = results_table("masked-windows", model)[row,]
        return higher(ratio(beyond)).removesuffix(" higher")

    byte_models = "judge-roberta at 512", "judge-masked at 512"
    low, high = (masked(model, "attention windows of 128") for model in byte_models)
    yield f"have {low} and {high} higher perplexity with attention windows"
    low, high = (masked(model, "bands") for model in byte_models)
    yield f"and {low} and {high} with `bands`."
    real = "rxnfp's BERT, 64 rows, at 256"
    yield f"perplexity is {masked(real, 'attention windows of 64')} higher with attention windows,"
    yield f"and {masked(real, 'bands, tuned for 60 s')} with `bands` after a minute."


def length_and_training() -> Iterator[str]:
    *_, at_4096, at_8192 = results_table("smollm2", "needle")["all",]
    at_4096, at_8192 = (cell.split(" (")[0] for cell in (at_4096, at_8192))
    yield f"it finds {at_4096} of hidden words there, and {at_8192} at 8,192"
    yield "in the first 40 % of the text"

    for label, name in {
        "rotary": "rotary",
        "ALiBi": "ALiBi",
        "learned rows": "learned",
        "fixed sinusoids": "sinusoidal",
    }.items():
        found = read_points("schemes")["schemes"][name]
        trained, untrained = (higher(ratio(found[key])) for key in ("trained_ratio", "ratio"))
        yield f"- {label}: {trained}"
        yield f"({untrained} untrained)"

    schemes = results_table("convert", "scheme")
    base = number(schemes["as it is, in sliding windows",][2])
    rotary, learned, alibi, fixed, none = (
        higher(number(schemes[name,][2]) / base)
        for name in ("rotary", "learned (bands)", "ALiBi", "sinusoidal", "none")
    )
    assert fixed == none
    yield f"rotary {rotary}, learned rows with `bands` {learned}, ALiBi {alibi} as high"
    yield f"no positions {none}."
    lengths = results_table("without-positions", "", "at 256", before="What a model gains")
    trained_none = [ratio(lengths[name][2]) for name in lengths if name[0].startswith("none, ")]
    yield f"at {span(trained_none)} that of sliding windows"
    yield f"With `yarn`, untrained, it is {higher(ratio(lengths['yarn',][2]))}."


RESULTS_PAGE = (search, rotary, new_rows, a_minute, length_and_training)


def contrastive() -> Iterator[str]:
    yield from ("15 % of masked tokens", "0.05 of their root mean square")  # settings
    rows = results_table("contrastive", "model")
    found = {name: number(cells[1]) for (name,), cells in rows.items()}
    pairs, copy = found["`pairs`, 24 steps"], found["`copy`, not trained"]
    gain = percent(pairs, copy)
    yield f"find {gain} more than untrained (nDCG@10 of {pairs} instead of {copy})"
    yield f"meetings have {found['base, chunks of the whole document']}, and"
    yield f"of 8,192 tokens {found['the same, `pairs`, 20 steps']:.3f} after 20 steps"


def readme() -> Iterator[str]:
    shipped, untrained, trained, chunks = whole_documents()
    assert untrained == chunks
    yield f"scores {percent(untrained, shipped)} higher (nDCG@10) than as shipped"
    yield f"20 minutes on one core, it scores {percent(trained, chunks)} higher than those chunks"
    yield f"the model above scores {on_short_documents()} lower than its base until"
    low, high = minute("judge-masked 128 → 512"), minute("tiny-gpt2 128 → 512")
    four_times = minutes("after a minute", "sliding windows", 4)
    assert (low, high) == (min(four_times), max(four_times))
    lowest, highest = costs(low, high)
    yield f"perplexity is {lowest} (a masked model on bytes) to {highest} ("
    smollm2 = read_points("smollm2")
    yield f"positions, has {higher(ratio(smollm2['yarn']['long']))} perplexity"
    yield f"perplexity is {higher(ratio(smollm2['limits']['long']))} as high"


# What each page states: all measured numbers on it are in one of its statements.
PAGES: dict[str, Iterable[Callable[[], Iterator[str]]]] = {
    "docs/results.md": RESULTS_PAGE,
    "docs/train.md": [contrastive],
    "README.md": [readme],
}


def signed(mean: float) -> str:
    """Return a ratio as a signed difference in per cent, as in tables."""
    change = 100 * (mean - 1)
    decimals = int(abs(change) < 9.95)
    return f"{change:+.{decimals}f} %"


def which_method() -> Iterator[str]:
    for model, row in {
        "judge-masked": "masked BERT on bytes",
        "judge-bytes": "GPT-2 on bytes",
        "judge-words": "GPT-2 on word pieces",
        "tiny-gpt2": "`tiny-gpt2`",
    }.items():
        cells: list[str] = []
        for label in (f"{model} 128 → 256", f"{model} 128 → 512"):
            cells += [signed(minute(label, "untrained")), signed(minute(label))]
        yield f"| {row} | {' | '.join(cells)} |".replace("+1.1 %", "+1.1 % (tied)")
    label = "gpt2-byte-128 128 → 512, long-range text"
    cells = [signed(minute(label, "untrained")), signed(minute(label))]
    yield f"refers to its start | | | {' | '.join(cells)} |"
    smollm2, small = read_points("smollm2"), small_llama()
    _, four = small["yarn",]
    yield f"`yarn` costs {signed(ratio(smollm2['yarn']['long']))[1:]} at 2 x (SmolLM2-135M) and "
    yield f" and {signed(ratio(four))[1:]} at 4 x (a small Llama)"


def bert() -> Iterator[str]:
    for row, label in {
        "| BERT of chemical reactions, 128 → 256 |": "rxnfp's BERT 128 → 256",
        "| the same, 64 → 256 |": "rxnfp's BERT 64 → 256",
        "| a small BERT on bytes, 128 → 256 |": "judge-masked 128 → 256",
        "| the same, 128 → 512 |": "judge-masked 128 → 512",
    }.items():
        before, after = costs(minute(label, "untrained"), minute(label))
        reference = "its learned rows" if "rxnfp" in label else "the base in sliding windows"
        yield f"{row} {reference} | {before} | {after} |"


def gpt2() -> Iterator[str]:
    labels = ("judge-bytes 128 → 256", "judge-bytes 128 → 512")
    for row, stage in (("untrained", "untrained"), ("60 seconds on two cores", "after a minute")):
        twice, four = costs(*(minute(label, stage) for label in labels))
        yield f"{row} | {twice} higher | {four} higher |"
    (tiny,) = costs(minute("tiny-gpt2 128 → 512"))
    yield f"still {tiny} above at 128 → 512"
    long_range = minute("gpt2-byte-128 128 → 512, long-range text")
    yield f"has {100 * (1 - long_range):.0f} % lower perplexity than the base after such a minute"


def sentence_encoders() -> Iterator[str]:
    found = window_search("all")
    for row, reader in {
        "the model as shipped | 256": ("as shipped", "256"),
        "attention windows, not trained | 8,192": ("windows, not trained", "8,192"),
        "mean of chunks of the whole meeting | 12,877": ("chunks of the whole document", "all"),
        "about other meetings | 8,192": ("windows, 20 steps", "8,192"),
    }.items():
        yield f"{row} | {found[reader]['nDCG@10']} |"
    rows = results_table("real", "MiniLM 512 → 2048")
    yield f"its 512 positions | 512 | {rows['as it is, first 512 tokens',][1]} |"
    yield f"`resize`, not trained | 2,048 | {rows['copy',][1]} |"
    gain = found["windows, 20 steps", "8,192"][AGAINST_WHOLE]
    yield f"better** than chunks of whole meetings, by {gain.removeprefix('+')}."


def conversions() -> Iterator[str]:
    schemes = results_table("convert", "scheme")
    base = number(schemes["as it is, in sliding windows",][2])
    for row, scheme in {
        "rotary": "rotary",
        "learned (`resize`, `bands`)": "learned (bands)",
        "ALiBi (Falcon's)": "ALiBi",
        "none": "none",
        "sinusoidal, fixed": "sinusoidal",
    }.items():
        untrained, trained = (higher(number(cell) / base) for cell in schemes[scheme,][1:3])
        yield f"| {row} | {untrained} | {trained} |"
    for tokens, speeds in window_speeds().items():
        if tokens != ("4,096",):
            yield f"| {tokens[0]} | {' | '.join(speeds).replace('/s', '')} |"


# Guides whose tables state results, too.
GUIDES = {
    "guides/which-method": which_method,
    "guides/bert": bert,
    "guides/gpt2": gpt2,
    "guides/sentence-transformers": sentence_encoders,
    "convert": conversions,
}


@pytest.mark.parametrize("page", GUIDES)
def test_guide_states_what_was_measured(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert [statement for statement in GUIDES[page]() if statement not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_page_states_what_was_measured(page: str) -> None:
    statements = [text.strip() for states in PAGES[page] for text in states()]
    check_statements((ROOT / page).read_text("utf-8"), statements)


def test_pages_state_no_other_number() -> None:
    check_statements("`copy` finds 14 % less, `--lr 0.1`.", ["`copy` finds 14 % less"])
    for text in ("It finds 15 % less.", "2.0 to 16 times", "0.56", "x 3"):
        with pytest.raises(AssertionError):
            check_statements(text, [])
