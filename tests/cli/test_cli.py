import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ctxextend import __version__, list_methods, plan_resize
from ctxextend.cli.app import build_app
from ctxextend.tables.methods import METHODS, find_methods
from tests.helpers import pico
from tests.helpers.notes import texts_in
from tests.helpers.parameters import slow
from tests.helpers.repository import ROOT
from tests.helpers.terminal import on_terminal

MakePico = Callable[..., pico.Pico]
COMMAND = [sys.executable, "-m", "ctxextend"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def one_line(text: str) -> str:
    """Return a text that was wrapped as one line."""
    return " ".join(text.split())


def run_json(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    return json.loads(done.stdout)


def test_resize_prints_the_output_path_on_stdout_and_the_rest_on_stderr() -> None:
    done = run("resize", "tiny-gpt2", "--to", "512")
    assert done.exit_code == 0
    assert done.stdout == "tiny-gpt2-512\n"
    first, positions, edited, *notes = done.stderr.splitlines()
    assert re.fullmatch(
        r"tiny-gpt2-512: 512 tokens \(128 before\), \d+\.\d MB in \d+(\.\d)? m?s", first
    )
    assert positions == "positions learned: transformer.wpe.weight, 128 -> 512 positions by bands"
    assert "config.json n_positions, n_ctx; tokenizer_config.json model_max_length" in edited
    assert notes[0].startswith("Not yet trained at 512. ")
    assert len(notes) == 4


def test_resize_with_quiet_prints_only_the_output_path() -> None:
    run("resize", "tiny-gpt2", "--to", "512")
    done = run("resize", "tiny-gpt2", "--to", "512", "--quiet", "--force")
    assert done.exit_code == 0
    assert done.stdout == "tiny-gpt2-512\n"
    assert done.stderr == ""


RESIZE_SINUSOIDAL = shlex.split("resize tiny-gpt2 --to 512 --method sinusoidal --keep-first 2")


def test_resize_json_prints_one_object_on_stdout() -> None:
    values = run_json(*RESIZE_SINUSOIDAL)
    assert values["max_len_after"] == 512
    assert values["keep_first"] == 2
    assert values["methods"] == {
        "transformer.wpe.weight": "sinusoidal:scope=new,layout=interleaved"
    }
    assert values["config"] == {"n_positions": [128, 512], "n_ctx": [None, 512]}
    assert values["output"] == "tiny-gpt2-512"

    written = pico.contents(Path("tiny-gpt2-512"))
    sizes = [len(data) for data in written.values()]
    assert values["bytes_written"] == sum(sizes)
    files = []
    for kind in ("rewritten", "copied", "edited", "created"):
        files += values["files"][kind]
    assert sorted(files) == sorted(written)


@pytest.fixture
def source_with_other_files(make_pico: MakePico) -> Path:
    """A checkpoint with a tokenizer that pads to a length, and weights of another library."""
    folder = make_pico("bert").folder
    padding = '{"truncation": null, "padding": {"strategy": {"Fixed": 8}}}'
    (folder / "tokenizer.json").write_text(padding)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tf_model.h5").write_text("x")
    return folder


def test_resize_dry_run_prints_the_plan_and_writes_nothing(source_with_other_files: Path) -> None:
    source = source_with_other_files
    kilobytes = plan_resize(source, to=40).output.bytes_to_write / 1e3
    done = run("resize", str(source), "--to", "40", "--dry-run")
    assert done.exit_code == 0
    assert list(Path().iterdir()) == []
    for line in (
        "positions learned: bert.embeddings.position_embeddings.weight, 16 -> 40 positions by copy",
        "edit      config.json: max_position_embeddings 16 -> 40",
        "tokenizer_config.json: model_max_length unset -> 40 (no limit was stated, and longer "
        "texts would fail)",
        "short texts would be as slow as long ones",
        "skip      tf_model.h5",
        f"write     {kilobytes:.1f} kB",
    ):
        assert line in done.stdout


def test_resize_dry_run_says_that_an_output_would_not_be_replaced(
    source_with_other_files: Path,
) -> None:
    Path("existing").mkdir()
    Path("existing/notes.txt").touch()
    source = str(source_with_other_files)
    values = run_json("resize", source, "--to", "40", "--output", "existing", "--dry-run")
    assert values["dry_run"] is True
    assert values["bytes_written"] == 0
    assert "This would fail: The output" in texts_in(values, "files")[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        # Invalid flags are rejected before the checkpoint is read.
        ("/no/such/folder", 2, "UsageError"),
        ("/no/such/folder --to 512 --method magic", 2, "UsageError"),
        ("/no/such/folder --to 512 --no-such-flag", 2, "UsageError"),
        ("/no/such/folder --to 512", 1, "SourceError"),
        ("tiny-gpt2 --to 512 --method copy --keep-first 128", 1, "ResizeError"),
        ("tiny-gpt2 --to 512 -o /", 1, "OutputError"),
    ],
)
def test_resize_errors_exit_with_a_code_a_message_and_a_hint(
    arguments: str, code: int, kind: str
) -> None:
    done = run("resize", *arguments.split())
    assert done.exit_code == code
    assert done.stdout == ""
    if code == 1:
        assert done.stderr.startswith("Error: ")
        assert len(done.stderr.splitlines()) == 2

    as_json = run("resize", *arguments.split(), "--json")
    error = json.loads(as_json.stdout)["error"]
    assert as_json.exit_code == code
    assert error["type"] == kind
    assert as_json.stderr == f"Error: {error['message']}\n{error['hint']}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("resise m --to 512", "No such command 'resise'. Did you mean 'resize', 'recipes'?"),
        ("methods bands liner", "Unknown method 'liner'. Did you mean linear?"),
        (
            "resize m --to many",
            "--to must be a number, such as 4096, 4,096, 4k or 1m, or a factor, such as 4x, got "
            "many.",
        ),
        ("evaluate m --to 2 --data a", "--to must be at least 8 to measure methods, got 2."),
        ("resize m --to 512 --model-type brt", "Unknown model type 'brt'. Did you mean bert?"),
        ("recipes gpt2-4069", "No built-in recipe gpt2-4069. Did you mean gpt2-4096?"),
        ("evaluate m --data a --device cudda", "got cudda. Did you mean cuda?"),
        (
            "evaluate m --data a --measure efective",
            "position, retrieval, search, got efective. Did you mean effective?",
        ),
        ("train m --data a --steps 5 --lr -1", "--lr must be positive, got -1."),
        ("verify m --base b --variant=", "--variant must be letters, digits, - and _"),
        ("resize 512", "Missing option '--to'. See"),
        ("run gpt2-4096 --set foo", "--set foo: expected key=value"),
        ("run gpt2-4096 --set resize.too=512", "did you mean resize.to?"),
    ],
)
def test_usage_errors_exit_2_with_a_clear_message_and_suggest_close_names(
    arguments: str, message: str
) -> None:
    done = run(*arguments.split())
    assert message in one_line(done.stderr)
    assert done.exit_code == 2


EACH_LENGTH = pytest.mark.parametrize(
    ("to", "length"), [("256", 256), ("1k", 1024), ("3x", 384)], ids=["number", "in k", "factor"]
)


@EACH_LENGTH
def test_resize_accepts_a_length_in_k_or_as_a_factor_and_records_the_number(
    to: str, length: int
) -> None:
    values = run_json("resize", "tiny-gpt2", "--to", to)
    output = values["output"]
    assert values["max_len_after"] == length
    assert output == f"tiny-gpt2-{length}"
    recipe = Path(output, "ctxextend.yaml").read_text()
    assert f"  to: {length}\n" in recipe


def test_resize_by_a_factor_requires_tables_of_one_length_or_a_part(tmp_path: Path) -> None:
    source = str(pico.make_led(tmp_path / "led"))
    failed = run("resize", source, "--to", "2x", "--dry-run")
    assert failed.exit_code == 1
    assert "differ in length (encoder 32, decoder 16)" in failed.stderr
    for part, length in (("encoder", 64), ("decoder", 32)):
        values = run_json("resize", source, "--to", "2x", "--part", part, "--dry-run")
        assert values["max_len_after"] == length


def test_app_keeps_the_traceback_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_plan(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ctxextend.planned.make_plan", make_plan)
    done = run("resize", "tiny-gpt2", "--to", "512")
    assert isinstance(done.exception, ZeroDivisionError)


INTERRUPTED = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ctxextend.cli.inspect":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from ctxextend.__main__ import main
main()
"""


def test_main_exits_without_a_traceback_on_ctrl_c_during_imports() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "inspect", "tiny-gpt2"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 130
    assert done.stdout == b""
    assert done.stderr == b"Stopped: nothing was written.\n"


def interrupt_after(seconds: float, command: str) -> tuple[int, str]:
    """Press Ctrl-C in a command after its start, and return its exit code and errors."""
    arguments = [sys.executable, "-c", STARTED, *command.split()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert os.read(process.stdout.fileno(), 5) == b"ready"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
    return process.returncode, errors


# Reports when it starts, because Python itself prints a traceback on Ctrl-C during its own
# start-up.
STARTED = """
import os, sys
from ctxextend.__main__ import main
sys.argv[0] = "ctxextend"
os.write(1, b"ready")
main()
"""


# Presses Ctrl-C while a module is imported and the output is half written.
INTERRUPTED_IMPORT = """
import sys
from ctxextend.__main__ import main
from ctxextend.checkpoint import atomic_output

sync = atomic_output.sync

def sync_and_import(path):
    sync(path)
    import interrupting

atomic_output.sync = sync_and_import
main()
"""


def test_ctrl_c_during_an_import_leaves_no_output() -> None:
    Path("interrupting.py").write_text(
        "import os, signal\n\nos.kill(os.getpid(), signal.SIGINT)\nprint('not interrupted')\n"
    )
    flags = ("resize", "tiny-gpt2", "--to", "512", "-o", "new/folder/out")
    done = subprocess.run(
        [sys.executable, "-B", "-c", INTERRUPTED_IMPORT, *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "."])},
        check=False,
    )
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "Stopped: nothing was written.\n"
    assert [path.name for path in Path().iterdir()] == ["interrupting.py"]


@pytest.mark.parametrize("moments", [range(0, 8, 3), slow(range(8))])
@pytest.mark.parametrize(
    "command", ["resize tiny-gpt2 --to 512 --verify", "inspect tiny-gpt2 --check", "--help"]
)
def test_ctrl_c_at_any_time_says_what_is_left_and_leaves_a_complete_output_or_none(
    command: str, moments: range
) -> None:
    codes = set()
    for moment in moments:
        code, errors = interrupt_after(0.01 + 0.04 * moment, command)
        codes.add(code)
        assert not re.search("Traceback|Error|Exception|Interrupt|Abort", errors), errors
        left = [path.name for path in Path().iterdir()]
        assert left in ([], ["tiny-gpt2-512"])
        said = [line for line in errors.splitlines() if line.startswith("Stopped: ")]
        assert len(said) <= 1, errors
        if said and left:
            assert said == ["Stopped: tiny-gpt2-512 is complete."]
        elif said:
            assert said == ["Stopped: nothing was written."]
        if left:
            assert Path("tiny-gpt2-512/config.json").is_file()
            shutil.rmtree("tiny-gpt2-512")
    # -SIGINT while Python itself shuts down.
    assert codes <= {0, 130, -signal.SIGINT}
    assert 130 in codes


def read_until_closed(terminal: int) -> bytes:
    output = b""
    with contextlib.suppress(OSError):  # Linux raises EIO once the other end is closed
        more = os.read(terminal, 4096)
        while more:
            output += more
            more = os.read(terminal, 4096)
    return output


def test_ctrl_c_restores_the_cursor_of_the_terminal() -> None:
    Path("book.txt").write_text("The quick brown fox. " * 400)
    command = [*COMMAND, "evaluate", "tiny-gpt2", "--to", "256", "--data", "book.txt"]
    master, slave = pty.openpty()
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        output = b""
        while b"\x1b[?25l" not in output:  # the bar hides the cursor
            output += os.read(master, 4096)
        process.send_signal(signal.SIGINT)
        output += read_until_closed(master)
    os.close(master)
    assert output.rindex(b"\x1b[?25h") > output.rindex(b"\x1b[?25l")
    assert process.returncode in (130, -signal.SIGINT)


def test_resize_shows_a_bar_only_on_a_terminal() -> None:
    command = [*COMMAND, "resize", "tiny-gpt2", "--to", "512", "-o"]
    piped = subprocess.run([*command, "a"], capture_output=True, check=True)
    assert b"Writing" not in piped.stderr
    shown = on_terminal([*command, "b"], os.environ | {"TERM": "xterm"})
    assert "Writing" in shown


def test_python_m_ctxextend_prints_the_versions() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    libraries = ("torch", "transformers", "safetensors", "numpy")
    assert done.stdout.splitlines() == [
        f"ctxextend {__version__}",
        f"python {python_version()}",
        *(f"{name} {version(name)}" for name in libraries),
    ]
    assert run("--version").stdout == done.stdout
    assert "resize" in run().output


SUMMARY_WIDTH = 66  # of a screen of 80 columns, after the names


def test_methods_lists_all_methods_on_one_screen_of_80_columns() -> None:
    for method in list_methods():
        size = len(method.summary)
        assert size <= SUMMARY_WIDTH, (
            f"The summary of {method.name} has {size} characters; at most {SUMMARY_WIDTH} fit."
        )
    lines = run("methods").stdout.splitlines()
    assert len(lines) <= len(METHODS) + 5
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[: len(METHODS)]]
    assert names == list(METHODS)
    assert " ".join(line.strip() for line in lines[-2:]) == (
        "Rotary: yarn, switch, linear, dynamic, theta, longrope, llama3, proportional, limits."
    )


def test_methods_prints_details_of_the_given_methods() -> None:
    names = [*reversed(METHODS), "yarn"]  # `linear` is a method of tables and of rotary positions
    methods = [method for name in names for method in find_methods(name)]

    blocks = run("methods", *names).stdout.split("\n\n")

    for block, method in zip(blocks, methods, strict=True):
        text = one_line(block)
        assert text.startswith(f"{method.name} summary {method.summary} ")
        assert f"use when {method.when} " in text
        assert text.endswith(f"source {method.source}")
        for name, setting in method.settings.items():
            assert f"{name.replace('_', '-')}: {setting.does}" in text
        assert ("--keep-first " in text) == (not method.scheme)


def shell(command: str) -> "subprocess.CompletedProcess[str]":
    resize = f"{sys.executable} -m ctxextend resize {command}"
    return subprocess.run(["bash", "-c", resize], capture_output=True, text=True, check=False)


def test_resize_reports_a_full_stdout() -> None:
    done = shell("tiny-gpt2 --to 512 -q > /dev/full")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: Cannot print the result: No space left on device.\nThe command itself succeeded.\n"
    )
    assert Path("tiny-gpt2-512/config.json").exists()


def test_resize_with_closed_streams_works() -> None:
    without_stderr = shell("tiny-gpt2 --to 512 2>&-")
    assert without_stderr.returncode == 0
    assert without_stderr.stdout == "tiny-gpt2-512\n"
    without_stdout = shell("tiny-gpt2 --to 256 >&-")
    assert without_stdout.returncode == 0
    failed = shell("/no/such/x --to 256 2>&-")
    assert failed.stdout == ""
