"""Modules that a command imports."""

import subprocess
import sys

HEAVY = {"torch", "transformers", "accelerate", "datasets", "matplotlib"}


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules that are loaded after some code in a fresh interpreter."""
    report = "import sys; print('\\n', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def command(*arguments: str) -> str:
    """Return code that runs a command."""
    return (
        f"import sys; sys.argv = ['ctxextend', *{arguments}]\nfrom ctxextend.__main__ import "
        "main\ntry:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code"
    )
