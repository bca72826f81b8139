"""Resize small models, and compute what an engine should return for them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ctxextend import convert, resize
from ctxextend.families.registry import FAMILIES
from ctxextend.planned import ResizeResult
from ctxextend.positions.facts import RotaryFacts
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rows import Rows
from ctxextend.positions.sinusoids import Sinusoids
from ctxextend.serving.engine_statements import Statement
from tests.engines.drivers import transformers_driver
from tests.engines.models import (
    NEW,
    OLD,
    THETA,
    auto_class,
    has_one_theta,
    make_model,
    short_token_ids,
    token_ids,
)
from tests.helpers.rotary_configs import write_one_dialect

Values = NDArray[np.float32]

# Outcomes of engines that ignore something: prefixes of names in `Prepared.others`.
UNSCALED = "unscaled"
NO_FACTOR = "without attention_factor"
DEFAULT_BETAS = "default betas"

# Positions that the base has, so that its rope type stays.
KEPT = ("llama3", "longrope")
# Positions of which no method is chosen.
ONLY_LENGTHS = ("ALiBi", "relative")
SCALED = ("none", "yarn", "linear", "dynamic", "longrope", "llama3", "switch", "theta")
OTHER_BASES = (10_000.0, 1_000_000.0)  # defaults of engines
SCHEMES = {"gpt_neox": "rotary", "roformer": "rotary", "falcon": "alibi"}  # of conversions


@dataclass(frozen=True)
class Case:
    """A model type, and what is done to it."""

    model_type: str  # of the output
    positions: str  # of the output, as rules name them
    converted_from: str = ""  # a model type; empty: it is resized
    has_one_dialect: bool = False  # as in files of transformers 5 that are not resized
    without_head: bool = False  # the base model, whose tensor names have no prefix
    attention_factor: bool = False  # with one that is not the default
    betas: bool = False  # yarn settings with those that are not the default
    # Switched settings that also state the attention factor of each list, as vLLM reads it.
    list_mscales: bool = False

    def __str__(self) -> str:
        words = [self.model_type, self.positions]
        if self.converted_from:
            words.append(f"from {self.converted_from}")
        if self.has_one_dialect:
            words.append("one dialect")
        if self.without_head:
            words.append("without head")
        if self.attention_factor:
            words.append("attention factor")
        if self.betas:
            words.append("betas")
        if self.list_mscales:
            words.append("list mscales")
        return " ".join(words)


@dataclass(frozen=True)
class Prepared:
    """A folder that an engine should read, and values of transformers, shape (tokens, size)."""

    folder: Path
    auto_class: str
    reference: Values
    # What an engine computes that ignores the method or a setting, by the outcome.
    others: Mapping[str, Values]
    statements: Mapping[str, Statement]  # what `resize` says, by runtime
    # Of an input of the old length, if settings give longer ones other frequencies.
    short_reference: Values | None = None


def has_positions(model_type: str, positions: str) -> bool:
    """Whether models of a type can have positions, as rules name them."""
    for table in FAMILIES[model_type].tables:
        if isinstance(table, Sinusoids):
            if positions == "sinusoidal":
                return True
        elif isinstance(table, Rows):
            if positions == "learned":
                return True
        elif not isinstance(table, Rotary):
            if positions == table.scheme:
                return True
        elif positions == "unscaled" or table.methods:
            return positions not in (*ONLY_LENGTHS, "learned", "sinusoidal")
    return False


def make_folder(case: Case, folder: Path) -> ResizeResult:
    """Make the base and the output of a case, as ``base`` and ``output`` in a folder."""
    base = folder / "base"
    output = folder / "output"
    if case.converted_from:
        make_model(base, case.converted_from)
        return convert(base, SCHEMES[case.model_type], to=NEW, output=output)
    if case.positions == "none":
        make_model(base, case.model_type)
        return convert(base, "none", to=NEW, output=output)
    kept = case.positions if case.positions in KEPT else ""
    make_model(base, case.model_type, kept=kept, without_head=case.without_head)
    if case.attention_factor:
        _state_attention_factor(base, case.model_type)
    with pytest.MonkeyPatch.context() as patch:
        if case.has_one_dialect:
            write_one_dialect(patch)
        return resize(base, NEW, method_of(case), output=output)


def prepare(case: Case, folder: Path) -> Prepared:
    """Make the output of a case and its references, in a folder."""
    result = make_folder(case, folder)
    output = folder / "output"
    others = dict(_other_folders(case, folder / "base", output, folder))
    name = auto_class(case.model_type).__name__
    short_reference = None
    if case.positions == "switch":
        short_reference = reference_values(output, name, short_token_ids())
    return Prepared(
        folder=output,
        auto_class=name,
        reference=reference_values(output, name),
        others={what: reference_values(path, name) for what, path in others.items()},
        statements={statement.engine.key: statement for statement in result.planned.runtimes},
        short_reference=short_reference,
    )


def method_of(case: Case) -> str | None:
    """Return the method that gives a base the positions of a case."""
    if case.positions == "unscaled":
        return "limits" if _rope_of(case.model_type).methods else None
    if case.positions in (*KEPT, *ONLY_LENGTHS, "learned", "sinusoidal"):
        return None
    if case.betas:
        return "yarn:beta-fast=8,beta-slow=4"
    if case.list_mscales:
        return f"{case.positions}:mscale=1"
    return case.positions


def _other_folders(
    case: Case, base: Path, output: Path, folder: Path
) -> Iterator[tuple[str, Path]]:
    """Yield folders of what an engine computes that ignores something, by the outcome."""
    if case.positions == "learned":
        unscaled = folder / UNSCALED
        resize(base, NEW, "last", output=unscaled)
        yield UNSCALED, unscaled
    if case.attention_factor:
        without = folder / "no-factor"
        _copy_folder(output, without)
        _edit_settings(without, case.model_type, {"attention_factor": None})
        yield NO_FACTOR, without
    elif case.betas:
        without = folder / "default-betas"
        _copy_folder(output, without)
        _edit_settings(without, case.model_type, {"beta_fast": None, "beta_slow": None})
        yield DEFAULT_BETAS, without
    elif case.positions in SCALED or _reads_a_base(case):
        scaled = output
        if case.positions == "none":
            yield UNSCALED, base
            scaled = base  # local layers rotate too
        for name, settings in _unscaled_settings(case, output).items():
            unscaled = folder / name
            _copy_folder(scaled, unscaled)
            _edit_settings(unscaled, case.model_type, settings)
            yield name, unscaled


def _reads_a_base(case: Case) -> bool:
    """Whether an output has unscaled positions with another base than the default of its type."""
    return case.positions == "unscaled" and has_one_theta(case.model_type)


def _unscaled_settings(case: Case, output: Path) -> dict[str, dict[str, Any]]:
    """Return changes to the settings of an output after which nothing scales, by the outcome."""
    facts = _rope_of(case.model_type)
    layers = next(iter(facts.theta))
    base = facts.theta[layers] if layers else THETA
    bases = sorted({facts.theta[layers], *OTHER_BASES})
    changes: dict[str, Any] = {"rope_type": "default"}
    settings = dict[str, dict[str, Any]]()
    if case.positions not in ("unscaled", "none"):
        settings[UNSCALED] = changes | {"rope_theta": base}
    for other in bases:
        settings[f"{UNSCALED}, base {other:g}"] = changes | {"rope_theta": other}
    return settings


def reference_values(
    folder: Path, auto_class_name: str, tokens: NDArray[np.int64] | None = None
) -> Values:
    """Return the values of transformers 5, by default for the inputs of all runs."""
    if tokens is None:
        tokens = token_ids().numpy()
    values, _ = transformers_driver.run(folder, tokens, {"auto_class": auto_class_name})
    return values


def _state_attention_factor(base: Path, model_type: str) -> None:
    """Give an unscaled base yarn settings of factor 1 with an attention factor."""
    _edit_settings(
        base,
        model_type,
        {
            "rope_type": "yarn",
            "factor": 1.0,
            "original_max_position_embeddings": OLD,
            "attention_factor": 1.0,
        },
    )


def _edit_settings(folder: Path, model_type: str, changes: Mapping[str, Any]) -> None:
    """Change settings in ``rope_parameters``, and leave out ``rope_scaling``."""
    config = read_config(folder)
    layers = next(iter(_rope_of(model_type).theta))
    parameters = config["rope_parameters"]
    settings = parameters[layers] if layers else parameters
    settings |= changes
    if changes.get("rope_type") == "default":
        for key in settings.keys() - {"rope_type", "rope_theta", "partial_rotary_factor"}:
            del settings[key]
    for key in [key for key, value in settings.items() if value is None]:
        del settings[key]
    config.pop("rope_scaling", None)
    for key in ("rope_theta", "rotary_emb_base", "global_rope_theta"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _rope_of(model_type: str) -> RotaryFacts:
    for positions in FAMILIES[model_type].tables:
        if isinstance(positions, Rotary):
            return positions.rope
    raise ValueError(f"{model_type} has no rotary positions")


def _copy_folder(source: Path, copy: Path) -> None:
    """Copy config.json, and link the weights."""
    copy.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (copy / path.name).hardlink_to(path)
        elif path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())


def read_config(folder: Path) -> dict[str, Any]:
    """Return the keys of config.json."""
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values
