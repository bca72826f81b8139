"""`--link`: unchanged weights files are linked, and nothing writes through a link."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ctxextend import convert, resize, verify
from ctxextend.errors import OutputError, ResizeError
from tests.helpers import pico
from tests.helpers.hub_server import Hub
from tests.helpers.rotary_models import OLD, make
from tests.helpers.trainings import invoke, succeed

WEIGHTS = "model.safetensors"
REPO = "someone/llama"
SHARED_MEMORY = Path("/dev/shm")


class FileState(NamedTuple):
    """What must stay of a file of the source."""

    data: bytes
    mode: int
    modified: int


def states(folder: Path) -> dict[str, FileState]:
    """Return what must stay of each file of a folder."""
    found = {}
    for path in folder.iterdir():
        status = path.stat()
        found[path.name] = FileState(path.read_bytes(), status.st_mode, status.st_mtime_ns)
    return found


def make_llama() -> Path:
    """Save a small rotary model."""
    return make(max_position_embeddings=OLD).folder


def make_read_only() -> Path:
    """Save a small rotary model, whose weights have an unusual mode and an old time."""
    folder = make_llama()
    (folder / WEIGHTS).chmod(0o440)
    os.utime(folder / WEIGHTS, ns=(10**18, 10**18))
    return folder


def publish(hub: Hub) -> None:
    """Publish a small rotary model."""
    hub.add(REPO, make_llama())


def test_resize_links_weights_and_copies_small_files() -> None:
    source = make_read_only()
    before = states(source)
    done = invoke("resize", "llama", "--to", "64", "--link", "--verify", "--json", "-o", "linked")
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["files"]["linked"] == {WEIGHTS: "hard"}
    assert WEIGHTS not in values["files"]["copied"]
    assert values["bytes_written"] < (source / WEIGHTS).stat().st_size
    for path in Path("linked").iterdir():
        is_linked = path.stat().st_nlink == 2
        assert is_linked == (path.name == WEIGHTS)
    assert (source / WEIGHTS).samefile(Path("linked", WEIGHTS))
    assert states(source) == before
    succeed("verify", "linked")


def test_resize_links_the_shards_that_do_not_change(make_pico: Callable[..., pico.Pico]) -> None:
    source = make_pico("gpt2").folder
    pico.shard(source)
    result = resize(source, 96, link=True, verify=True, output="linked")
    files = result.planned.output.files
    assert files.linked
    assert set(files.rewritten).isdisjoint(files.linked)
    for path in source.glob("*.safetensors"):
        assert path.samefile(Path("linked", path.name)) == (path.name in files.linked)


def test_resize_notes_that_every_weights_file_changes() -> None:
    done = invoke("resize", "tiny-gpt2", "--to", "256", "--link", "-o", "out")
    assert done.exit_code == 0
    assert "Nothing is linked: every weights file changes" in done.stderr
    assert Path("out", WEIGHTS).stat().st_nlink == 1


def test_convert_links_weights_that_do_not_change() -> None:
    source = make_llama()
    result = convert(source, "none", link=True, verify=True, output="linked")
    assert dict(result.planned.output.files.linked) == {WEIGHTS: "hard"}
    assert (source / WEIGHTS).samefile(Path("linked", WEIGHTS))
    succeed("verify", "linked")


def test_nothing_writes_through_a_link(hub: Hub) -> None:
    source = make_read_only()
    before = states(source)
    Path("book.txt").write_text("a b c d e f g h " * 400)
    succeed("resize", "llama", "--to", "64", "--link", "-o", "linked")
    succeed("resize", "llama", "--to", "48", "--link", "--force", "-o", "linked")
    succeed("resize", "llama", "--to", "64", "--force", "-o", "linked")
    assert Path("linked", WEIGHTS).stat().st_nlink == 1
    succeed("resize", "llama", "--to", "64", "--link", "--force", "-o", "linked")
    succeed("resize", "linked", "--to", "96", "-o", "copied")
    assert Path("copied", WEIGHTS).stat().st_nlink == 1
    succeed("resize", "linked", "--to", "96", "--link", "-o", "again")
    assert Path("again", WEIGHTS).stat().st_nlink == 3
    succeed("convert", "linked", "--scheme", "none", "-o", "none")
    train = ["--data", "book.txt", "--steps", "1", "--seq-len", "16"]
    succeed("train", "linked", *train, "-o", "trained")
    succeed("train", "llama", *train, "--force", "-o", "again")
    assert Path("again", WEIGHTS).stat().st_nlink == 1
    shutil.rmtree("linked")
    assert states(source) == before


def test_resize_links_to_the_hub_cache(hub: Hub) -> None:
    publish(hub)
    done = invoke("resize", REPO, "--to", "64", "--link", "--verify", "--json", "-o", "linked")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["files"]["linked"] == {WEIGHTS: "symbolic"}
    link = Path("linked", WEIGHTS)
    assert link.is_symlink()
    blob = link.readlink()
    assert blob.parent.name == "blobs"
    assert not blob.is_symlink()
    assert not Path("linked", "config.json").is_symlink()
    succeed("verify", "linked")
    before = states(blob.parent)
    copied = resize("linked", 96, output="copied")
    assert not Path("copied", WEIGHTS).is_symlink()
    assert Path("copied", WEIGHTS).read_bytes() == blob.read_bytes()
    again = resize("linked", 96, link=True, verify=True, output="again")
    assert Path("again", WEIGHTS).readlink() == blob
    resize(REPO, 64, link=True, output="linked", force=True)
    shutil.rmtree("linked")
    assert states(blob.parent) == before
    assert copied.bytes_written > again.bytes_written


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_resize_refuses_links_across_file_systems(is_dry_run: bool) -> None:
    source = make_llama()
    if not SHARED_MEMORY.is_dir() or SHARED_MEMORY.stat().st_dev == source.stat().st_dev:
        pytest.skip("there is only one file system")
    output = SHARED_MEMORY / f"ctxextend-test-{os.getpid()}" / "linked"
    flags = ["--to", "64", "--link", "-o", str(output)]
    if is_dry_run:
        done = invoke("resize", "llama", *flags, "--dry-run")
        assert done.exit_code == 0
        assert "Warning: This would fail: " in done.stderr
    else:
        done = invoke("resize", "llama", *flags)
        assert done.exit_code == 1
    where = f"{source.resolve()} and {SHARED_MEMORY} are on different file systems."
    assert f"{WEIGHTS} cannot be hard-linked: {where}" in done.stderr
    assert "with -o, or remove --link to copy." in done.stderr
    assert not output.parent.exists()


def test_resize_leaves_nothing_if_the_system_cannot_link(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_llama()
    before = states(source)

    def fail(*arguments: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", fail)
    with pytest.raises(OutputError, match="Operation not permitted") as error:
        resize(source, 64, link=True, output="new/linked")
    assert re.search("[Rr]emove --link", str(error.value))
    assert [path.name for path in Path().iterdir()] == ["llama"]
    assert states(source) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edit_only": True}, "--link cannot be used with --edit-only"),
        ({"tune": "book.txt"}, "--link cannot be used with --tune, which trains"),
    ],
)
def test_resize_refuses_links_of_weights_that_are_not_copied(
    settings: dict[str, Any], message: str
) -> None:
    Path("book.txt").write_text("words " * 100)
    with pytest.raises(ResizeError, match=message):
        resize("tiny-gpt2", 256, link=True, output="out", **settings)
    assert not Path("out").exists()


def test_verify_finds_an_edit_in_place_of_a_linked_file() -> None:
    make(max_position_embeddings=OLD)
    succeed("resize", "llama", "--to", "64", "--link", "-o", "linked")
    assert verify("linked").passed
    with Path("linked/model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\x00\x11\x22\x33")
    verification = verify("linked")
    assert not verification.passed
    tensors = verification.checks[0]
    assert "model.safetensors is the same file as the base's" in tensors.evidence[0]
