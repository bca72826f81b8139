"""What may stand under an output's name after a run that failed, and what it is compared with."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.faults.nursery import Ended, Nursery
from tests.faults.tracing import Call, traced
from tests.pico import contents

OUTPUT = Path("to/out")
RESIZE = ("resize", "source", "--to", 32, "-o", OUTPUT)
# As on file systems that cannot exchange two names.
NO_EXCHANGE = "renameat2:error=EINVAL"

Files = dict[str, bytes]


def leftovers() -> list[str]:
    """Every file and folder here that bears a name of ours."""
    return [str(path) for path in Path().rglob("*ctxextend-*")]


def found() -> Files | None:
    """What stands under the output's name."""
    return contents(OUTPUT) if OUTPUT.exists() else None


def made(nursery: Nursery, to: int) -> Files:
    """What an output holds that was resized in peace; it is moved out of the way."""
    ended = nursery.run("resize", "source", "--to", to, "-o", OUTPUT)
    assert ended.code == 0, ended.stderr
    OUTPUT.parent.rename(f"peace-{to}")
    return contents(Path(f"peace-{to}") / OUTPUT.name)


def put_old() -> None:
    """Put the older output under the name, and clear all else that a run left."""
    shutil.rmtree(OUTPUT.parent, ignore_errors=True)
    shutil.copytree("peace-20", OUTPUT.parent)


def put_none() -> None:
    """Clear all that a run left."""
    shutil.rmtree(OUTPUT.parent, ignore_errors=True)


def stop(nursery: Nursery, call: Call, arguments: Sequence[object], signal: str, *injections: str) -> Ended:
    """Run a command to which a signal comes at one of its calls."""
    ended, log = traced(nursery, arguments, *injections, f"{call.name}:signal={signal}:when={call.k}")
    assert f"{call.name}({call.given[:6]}" in log  # it came so far
    return ended


def last_of(calls: list[Call]) -> list[Call]:
    """The calls of a run by which its output gets its name: from the last sync of what it made on."""
    synced = max(i for i, call in enumerate(calls) if call.name == "fsync" and ".ctxextend-new-" in call.given)
    return calls[synced:]
