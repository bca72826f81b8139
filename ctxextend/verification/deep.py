"""`verify --deep`: load both checkpoints in transformers, run the new one, and compare its outputs with the base's."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.conversion.convert import Conversion, ConversionPlan
from ctxextend.conversion.twins import ANGLES, SOURCE_TYPES
from ctxextend.errors import CheckpointError
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.models.devices import torch_threads
from ctxextend.models.extend import to_tensor
from ctxextend.models.load import LoadedModel, check_loadable, largest_difference, load, padded_texts, run_on_tokens
from ctxextend.plan.plan import ResizePlan
from ctxextend.tables.rotary import frequencies
from ctxextend.verification.checks import Check, ExpectedResize

NOT_DEEP_HINT = "Run verify without --deep."
SUM_ROUNDING = {"BF16": 2**-6, "F16": 2**-9}  # of outputs, relative; measured: up to a seventh of it
Outputs = Mapping[tuple[str, str], Any]  # by table and input: a tensor, an error, or None if text is not enough


def check_loading(expected: ExpectedResize, resized: Checkpoint) -> list[Check]:
    """Load both checkpoints, run the resized one at its new length, and compare outputs on inputs that fit both.

    Both run in float32 on the same inputs, one after the other, so only one model is in memory at a time. A conversion
    and its base are compared without positions.
    """
    plan = expected.plan
    conversion = plan.conversion if isinstance(plan, ConversionPlan) else None
    base = conversion.model.checkpoint if conversion else plan.checkpoint
    shared = min(min(table.same_up_to, table.max_len_after) for table in plan.tables)
    shared = min(shared, plan.max_len_before) if conversion else shared
    lengths = sorted({max(shared // 4, 1), max(shared // 2, 1), shared})
    base_class = base.model_class
    if conversion:  # the class with the same head as the twin
        base_type = SOURCE_TYPES[conversion.model.architecture.family.model_type]
        head = conversion.model_class.removeprefix(conversion.twin.class_name)
        base_class = base_type.class_name + next(name for name, twin in base_type.heads.items() if twin == head)
    check_loadable(base, NOT_DEEP_HINT)
    try:
        loaded = load(base, base_class)
    except CheckpointError as error:
        raise CheckpointError(error.message, NOT_DEEP_HINT) from error
    if conversion:
        _remove_positions(loaded.model, conversion)
    before, base_issues = _run_inputs(plan, base, loaded, lengths), _key_issues(loaded)
    if conversion:  # its tensors have other names, and those without a place in the twin are not compared
        base_issues = [key for key in base_issues if key.startswith("missing") and "pooler." not in key]
    del loaded
    try:
        check_loadable(resized)
        loaded = load(resized, plan.checkpoint.model_class)
    except CheckpointError as error:
        return [Check("loads", False, (error.message,))]
    rotary = list(_rotary_buffers(plan, resized, loaded))  # before inputs change them
    after = alike = _run_inputs(plan, resized, loaded, [*lengths, plan.max_len_after])
    if conversion:
        _remove_positions(loaded.model, conversion)
        alike = _run_inputs(plan, resized, loaded, lengths)
    wrong = [text for text, is_equal in rotary if not is_equal]
    wrong += [key for key in _key_issues(loaded) if key not in base_issues]
    none_found = f"no{' other' * bool(base_issues)} missing, unexpected or mismatched keys"
    evidence = (*(wrong or [none_found]), *(f"{key} (also in the base)" for key in base_issues))
    evidence += tuple(text for text, is_equal in rotary if is_equal)
    checks = [Check("loads", not wrong, evidence), _check_runs(plan, after, before)]
    if any(not key.startswith("unexpected") for key in base_issues):
        return [*checks, Check("outputs", True, ("not compared: tensors are missing in the base",))]
    return [*checks, *_check_outputs(expected, before, alike)]


def _remove_positions(model: Any, conversion: Conversion) -> None:
    """Make all positions alike in a twin or its source: no rotation, no ALiBi biases, the mean row everywhere."""
    (location, _), is_source = conversion.model.tables[0], model.config.model_type != conversion.twin.model_type
    for name, values in (*model.named_buffers(), *model.named_parameters()):
        if name.endswith("inv_freq"):
            values.data[:] = 0
        elif name.endswith(ANGLES):
            values.data[:] = to_tensor(np.arange(values.shape[1]) >= values.shape[1] // 2)  # sines 0, cosines 1
        elif is_source and name.endswith(location.table.name):
            values.data[location.reserved_rows :] = to_tensor(conversion.mean_row)
    for module in model.modules():
        if "alibi" in inspect.signature(module.forward).parameters:  # its mask contains the biases, which are positive
            module.register_forward_pre_hook(
                lambda _, args, given: (args, given | {"attention_mask": given["attention_mask"].clamp(max=0)}),
                with_kwargs=True,
            )


def _key_issues(loaded: LoadedModel) -> list[str]:
    return [f"{kind} key: {key}" for kind in ("missing", "unexpected", "mismatched") for key in getattr(loaded, kind)]


def _rotary_buffers(plan: ResizePlan, resized: Checkpoint, loaded: LoadedModel) -> Iterator[tuple[str, bool]]:
    """Yield whether the model's inverse frequencies are those of its new settings, as text."""
    buffers = {name: buffer.float().numpy() for name, buffer in loaded.model.named_buffers() if "inv_freq" in name}
    for table in plan.tables:
        location = replace(table.location, config=resized.config)
        for rope in read_rope(location) if table.location.table.rope else ():
            dim, max_len = rotary_dim(location, rope.parameters), location.value(location.effective_key)
            expected = frequencies(rope.parameters, dim, max_len, length=1).inverse  # as for short inputs
            ending = f".{rope.layers}_inv_freq" if rope.layers else ".inv_freq"
            found = [name for name in buffers if name.endswith(ending) and buffers[name].shape == expected.shape]
            equal = [name for name in found if np.allclose(buffers[name], expected, rtol=1e-5, atol=0)]
            if found:
                relation = "equals" if equal else "differs from"
                yield f"{(equal or found)[0]} {relation} the frequencies of the rotary settings", bool(equal)


def _run_inputs(plan: ResizePlan, checkpoint: Checkpoint, loaded: LoadedModel, lengths: list[int]) -> Outputs:
    outputs: dict[tuple[str, str], Any] = {}
    modules = {name for name, _ in loaded.model.named_modules()}
    for table in plan.tables:
        # A table can be named differently in the model than in the file.
        name = next((name for name in table.location.names if name.rpartition(".")[0] in modules), table.name)
        inputs: dict[str, Any] = {f"{length} tokens": length for length in lengths}
        if table.keeps_padding:
            folder = checkpoint.root / (table.location.tokenizer or checkpoint.model)
            inputs |= padded_texts(loaded.model, folder, table.max_len_before)
        for text, tokens in inputs.items():
            try:
                with torch_threads(loaded.model, None):
                    outputs[table.name, text] = run_on_tokens(loaded.model, name, tokens)
            except (IndexError, RuntimeError, ValueError) as error:
                outputs[table.name, text] = f"{type(error).__name__}: {error}"[:200]
    return outputs


def _check_runs(plan: ResizePlan, after: Outputs, before: Outputs) -> Check:
    wrong, passed = list[str](), list[str]()
    text = f"{plan.max_len_after} tokens"
    was_finite = all(output.isfinite().all() for output in before.values() if hasattr(output, "isfinite"))
    for table in plan.tables:
        output = after[table.name, text]
        if isinstance(output, str):
            wrong.append(f"{table.name}: fails on {text}: {output}")
        elif output is None:
            passed.append(f"{table.name}: not run, the model needs more than text as input")
        elif was_finite and not output.isfinite().all():
            wrong.append(f"{table.name}: NaN or infinity on {text}")
        else:
            passed.append(f"{table.name}: runs on {text}")
    return Check("runs", not wrong, (*wrong, *passed))


def _check_outputs(expected: ExpectedResize, before: Outputs, after: Outputs) -> list[Check]:
    """Compare outputs on inputs that fit both; return no check if the base runs on none of them."""
    plan = expected.plan
    parts = {table.name: f" ({table.part})" * bool(table.part) for table in plan.tables}
    diffs: dict[str, float | str] = {}  # the largest difference, or the failure, by input
    for (name, text), old in before.items():
        new = after.get((name, text), "transformers cannot load it")
        if not hasattr(old, "shape"):
            continue
        text += parts[name]
        if not hasattr(new, "shape"):
            diffs[text] = f"fails ({new})"
        elif new.shape != old.shape:
            diffs[text] = f"shape {list(new.shape)} instead of {list(old.shape)}"
        else:
            diffs[text] = largest_difference(old, new)
    if not diffs:
        return []
    if not any(diffs.values()) and not isinstance(plan, ConversionPlan):
        return [Check("outputs", True, (f"bit-identical to the base's on inputs of {', '.join(diffs)}",))]
    values = (f"{value if isinstance(value, str) else format(value, '.3g')} at {text}" for text, value in diffs.items())
    listed = f"largest difference: {'; '.join(values)}"
    differences = [value for value in diffs.values() if not isinstance(value, str)]
    if isinstance(plan, ConversionPlan) and not (expected.trainable or expected.adapted):
        model, layers = plan.conversion.model, plan.conversion.config["num_hidden_layers"]
        dtype = model.checkpoint.entries[model.tables[0].name].dtype
        limit = 8 * layers * 2**-23 + SUM_ROUNDING.get(dtype, 0)  # relative to the largest output
        limit *= min(float(old.nan_to_num().abs().max()) for old in before.values() if hasattr(old, "shape"))
        is_equal = all(not isinstance(value, str) and value <= limit for value in diffs.values())
        relation = "equal the base's within" if is_equal else "differ from the base's by more than"
        rounding = f"float32 rounding{f' and that of the embeddings to {dtype}' * (dtype in SUM_ROUNDING)}"
        found = f"without positions, outputs {relation} {rounding} (tolerance {limit:.2g})"
        return [Check("outputs", is_equal, (found, listed))]
    keeps = not plan.creates_rows or plan.keeps_learned_rows
    if len(differences) < len(diffs) or (keeps and not expected.adapted and expected.trainable in (None, "new")):
        return [Check("outputs", False, ("outputs on short inputs must be identical to the base's but differ", listed))]
    changed = f"outputs on short inputs differ from the base's by up to {max(differences):.3g}, as expected"
    return [Check("outputs", True, (changed, listed))]
