"""Run an engine in its environment on many folders."""

import json
import os
import select
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np

from tests.engines.cases import Prepared, Values
from tests.engines.environments import Engine, python_of
from tests.engines.models import short_token_ids, token_ids
from tests.engines.outcomes import Outcome, classify, classify_short
from tests.helpers import repository

MAX_SECONDS = 120  # for one folder


class RunningEngine:
    """A process of an engine's driver; it is started again if the engine crashes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._temporary = TemporaryDirectory(prefix=f"engine-{engine.name}-")
        self._folder = Path(self._temporary.name)
        self._log = self._folder / "stderr"
        self._inputs = self._folder / "inputs.npz"
        np.savez(self._inputs, input_ids=token_ids().numpy())
        self._short_inputs = self._folder / "short-inputs.npz"
        np.savez(self._short_inputs, input_ids=short_token_ids())
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "RunningEngine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._temporary.cleanup()

    def run(self, prepared: Prepared, **options: Any) -> Outcome:
        """Return what the engine does with a folder."""
        output = self._folder / "output.npz"
        output.unlink(missing_ok=True)
        request = {
            "folder": str(prepared.folder),
            "inputs": str(self._inputs),
            "output": str(output),
            "options": {"auto_class": prepared.auto_class, **options},
        }
        answer = self._ask(request)
        if "error" in answer:
            return Outcome("refused", np.nan, np.nan, _first_line(answer["error"]))
        values: Values = np.load(output)["values"]
        outcome = classify(prepared, values, self.engine.tolerance)
        notes = [f"{key} {value}" for key, value in answer["notes"].items()]
        if outcome.note:
            notes.append(outcome.note)
        return outcome._replace(note=", ".join(notes))

    def run_short(self, prepared: Prepared, **options: Any) -> str:
        """Return what the engine does with an input of the old length; see `classify_short`."""
        output = self._folder / "output.npz"
        output.unlink(missing_ok=True)
        request = {
            "folder": str(prepared.folder),
            "inputs": str(self._short_inputs),
            "output": str(output),
            "options": {"auto_class": prepared.auto_class, **options},
        }
        answer = self._ask(request)
        if "error" in answer:
            return "refused"
        values: Values = np.load(output)["values"]
        return classify_short(prepared, values, self.engine.tolerance)

    def convert(self, folder: Path, path: Path) -> None:
        """Convert a folder to a GGUF file, as only llama.cpp does."""
        request = {
            "folder": str(folder),
            "inputs": str(self._inputs),
            "output": str(self._folder / "output.npz"),
            "options": {"convert_to": str(path)},
        }
        answer = self._ask(request)
        assert "error" not in answer, answer

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        is_ready, _, _ = select.select([process.stdout], [], [], MAX_SECONDS)
        if not is_ready:
            process.kill()
            process.wait()
            return {"error": f"no answer within {MAX_SECONDS} s"}
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            return {"error": f"exit code {code}: {self._last_line_of_log()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> "subprocess.Popen[str]":
        environment = os.environ | {
            "PYTHONPATH": str(repository.ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        driver = f"tests.engines.drivers.{self.engine.driver}"
        return subprocess.Popen(
            [python_of(self.engine.environment), "-m", driver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env=environment,
            cwd=self._folder,
        )

    def _last_line_of_log(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _first_line(message: str) -> str:
    return " ".join(message.split("\n")[:2])[:300]
