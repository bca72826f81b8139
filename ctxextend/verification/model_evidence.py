"""The checks of loaded models, in words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ctxextend.conversion.conversion import Conversion
from ctxextend.errors import counted
from ctxextend.positions.change import Change
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_frequencies import (
    ComparedBuffer,
    FrequencySource,
    MissingBuffer,
)
from ctxextend.verification.compare_outputs import (
    SUM_ROUNDING,
    ComparedOutputs,
    MustBeClose,
    NoOutput,
    OtherShape,
    OutputDifference,
    UnrunTable,
    ValueDifference,
    embedding_dtype,
)
from ctxextend.verification.compare_switch import ComparedLongInput, RunAgain
from ctxextend.verification.expected import Expected
from ctxextend.verification.observe import (
    Failed,
    NotLoaded,
    NotRun,
    Observed,
    Ran,
    RandomParameters,
    length_text,
    outcomes_of,
    why_not_run,
)

KeyKind = Literal["missing", "unexpected", "mismatched"]
LISTED_NAMES = 2
SAME_IN_BASE = "The base fails in the same way"


# ---- loads


def loads_check(
    expected: Expected,
    before: Observed | NotLoaded,
    after: Observed,
    frequencies: Iterable[ComparedBuffer | MissingBuffer],
) -> Check:
    """Return the check that all parameters on which outputs depend have weights.

    Rotary frequencies must be right too. A parameter with random values is wrong even if the base
    has the same fault. If the base cannot be loaded, faults that it may have too are not judged.
    """
    evidence = Evidence()
    _add_keys(evidence, expected, before, after)
    if not evidence.failures and not evidence.unchecked:
        other = "other " if evidence.findings else ""
        evidence.findings.insert(0, f"no {other}missing, unexpected or mismatched keys")
    for compared in frequencies:
        _add_frequencies(evidence, compared)
    return evidence.check("loads")


def _add_keys(
    evidence: Evidence, expected: Expected, before: Observed | NotLoaded, after: Observed
) -> None:
    """Add the parameters without weights, and the weights without parameters."""
    random = after.random
    known = _faults_of_base(expected, before)
    for name in random.mismatched:
        evidence.failures.append(_key_text("mismatched", name, known, "its values are random"))
    for name in random.needed:
        effect = "its values are random, and outputs depend on it"
        evidence.failures.append(_key_text("missing", name, known, effect))
    # The base may have the others too; if it is not loaded, that is unknown.
    new_faults = evidence.failures
    if isinstance(before, NotLoaded):
        new_faults = evidence.unchecked
    for name in random.unneeded:
        found = evidence.findings if name in known else new_faults
        effect = "no output that is compared depends on it"
        found.append(_key_text("missing", name, known, effect))
    for name in random.unknown:
        found = evidence.unchecked if name in known else new_faults
        effect = "the model does not run on text only, so outputs may depend on it"
        found.append(_key_text("missing", name, known, effect))
    for name in after.unexpected:
        found = evidence.findings if name in known else new_faults
        found.append(_key_text("unexpected", name, known))


def _faults_of_base(expected: Expected, before: Observed | NotLoaded) -> dict[str, str]:
    """Return the names of the base's faults; of a conversion, what its source has no values for.

    The values say in a few words what is known.
    """
    if expected.conversion is not None:
        return dict.fromkeys(expected.conversion.missing, "the base has none")
    if isinstance(before, NotLoaded):
        return {}
    names = (*before.random.decisive, *before.random.unneeded, *before.unexpected)
    return dict.fromkeys(names, "also in the base")


def _key_text(kind: KeyKind, name: str, known: Mapping[str, str], effect: str = "") -> str:
    text = f"{kind} key: {name}"
    if name in known:
        text += f" ({known[name]})"
    if effect:
        text += f": {effect}"
    return text


def _add_frequencies(evidence: Evidence, compared: ComparedBuffer | MissingBuffer) -> None:
    if isinstance(compared, MissingBuffer):
        evidence.unchecked.append(
            f"{compared.name}: the model has no buffer of {compared.pairs} inverse frequencies"
        )
        return
    match compared.source:
        case FrequencySource.BASE:
            other = "that of the base"
        case FrequencySource.SETTINGS:
            other = "the frequencies of the rotary settings"
    if compared.is_equal:
        evidence.findings.append(f"{compared.name} equals {other}")
    else:
        evidence.failures.append(f"{compared.name} differs from {other}")


# ---- runs


def runs_check(expected: Expected, before: Observed | NotLoaded, after: Observed) -> Check:
    """Return the check that the resized model runs at its new length, as far as its base does."""
    evidence = Evidence()
    if after.random.decisive:
        evidence.unchecked.append(_random_text(after.random, "the model"))
    for table in expected.plan.changes:
        _add_run(evidence, table, length_text(expected.plan.max_len_after), before, after)
    return evidence.check("runs")


def _add_run(
    evidence: Evidence, table: Change, text: str, before: Observed | NotLoaded, after: Observed
) -> None:
    """Add what happened on the longest input, whose name is `text`."""
    outcome = after.outcomes[table.name, text]
    if isinstance(outcome, Failed):
        failure = f"{table.name}: fails on {text}: {outcome.error}"
        if _base_fails_alike(table, outcome, before):
            evidence.unchecked.append(f"{failure}. {SAME_IN_BASE}")
        else:
            evidence.failures.append(failure)
    elif isinstance(outcome, NotRun):
        if isinstance(before, NotLoaded):
            evidence.unchecked.append(_not_run_text(table, outcome))
        elif why_not_run(table, before.outcomes):
            evidence.unchecked.append(f"{_not_run_text(table, outcome)}. {SAME_IN_BASE}")
        else:
            evidence.failures.append(
                f"{table.name}: does not run on text, as the base does: {outcome.reason}"
            )
    elif _is_finite(before) and not outcome.is_finite:
        evidence.failures.append(f"{table.name}: NaN or infinity on {text}")
    else:
        evidence.findings.append(f"{table.name}: runs on {text}")


def _base_fails_alike(table: Change, outcome: Failed, before: Observed | NotLoaded) -> bool:
    """Whether the base fails on one of its inputs with the same error, but for numbers in it."""
    if isinstance(before, NotLoaded):
        return False
    for other in outcomes_of(table, before.outcomes).values():
        if isinstance(other, Failed) and _without_numbers(other) == _without_numbers(outcome):
            return True
    return False


def _without_numbers(outcome: Failed) -> str:
    """Return an error without numbers, which are those of the input's length, say."""
    return re.sub(r"\d+", "N", outcome.error)


def _is_finite(before: Observed | NotLoaded) -> bool:
    """Whether no output of the base has NaN or infinity."""
    if isinstance(before, NotLoaded):
        return True
    outcomes = before.outcomes.values()
    return all(outcome.is_finite for outcome in outcomes if isinstance(outcome, Ran))


def _not_run_text(table: Change, reason: NotRun) -> str:
    return f"{table.name}: the model does not run on text only: {reason.reason}"


def _random_text(random: RandomParameters, whose: str) -> str:
    """Say that outputs mean nothing, because parameters have random values."""
    names = random.decisive
    listed = ", ".join(names[:LISTED_NAMES])
    if len(names) > LISTED_NAMES:
        listed += ", …"
    have = "has" if len(names) == 1 else "have"
    return f"{counted(len(names), 'parameter')} of {whose} {have} random values ({listed})"


# ---- outputs


def uncompared_outputs(before: Observed | NotLoaded) -> Check:
    """Return the check of outputs that cannot be compared with those of the base."""
    if isinstance(before, NotLoaded):
        reason = before.reason.removesuffix(".")
    else:
        reason = _random_text(before.random, "the base")
    return Evidence(unchecked=[reason]).check("outputs")


def outputs_check(expected: Expected, compared: ComparedOutputs, after: Observed) -> Check:
    """Return the check of outputs on inputs that fit both models."""
    evidence = Evidence()
    if after.random.decisive:
        evidence.unchecked.append(_random_text(after.random, "the model"))
    for unrun in compared.unrun:
        if isinstance(unrun.reason, NotRun):
            evidence.unchecked.append(f"{_not_run_text(unrun.table, unrun.reason)}. {SAME_IN_BASE}")
        else:
            evidence.unchecked.append(
                f"{unrun.table.name}: the base fails on all inputs: {unrun.reason.error}"
            )
    if compared.are_right:
        evidence.findings += _outputs_text(expected, compared)
    elif compared.differences:
        evidence.failures += _outputs_text(expected, compared)
    return evidence.check("outputs")


def switch_check(
    expected: Expected, again: RunAgain, long_inputs: Sequence[ComparedLongInput | UnrunTable]
) -> Check:
    """Return the check of frequencies that differ only for long inputs.

    Args:
        expected: The resize.
        again: Short inputs, before and after a long one.
        long_inputs: The outputs for inputs of the new length, of each table.
    """
    evidence = Evidence()
    after_long = f"after an input of {expected.plan.max_len_after} tokens"
    if again.changed:
        evidence.failures.append(f"outputs differ {after_long}: {', '.join(again.changed)}")
    if again.unrun:
        evidence.unchecked.append(f"not run again {after_long}: {', '.join(again.unrun)}")
    if again.same:
        evidence.findings.append(f"the same outputs {after_long}: {', '.join(again.same)}")
    for compared in long_inputs:
        _add_long_input(evidence, expected, compared)
    return evidence.check("switch")


def _add_long_input(
    evidence: Evidence, expected: Expected, compared: ComparedLongInput | UnrunTable
) -> None:
    """Add how the outputs for inputs of the new length compare with those without a switch."""
    if isinstance(compared, UnrunTable):
        name = compared.table.name
        evidence.unchecked.append(
            f"{name}: not run without a switch on {expected.plan.max_len_after} tokens"
        )
        return
    difference = compared.difference
    text = f"{compared.name}: the outputs of {compared.scaled_as} settings for all inputs"
    value = _value_text(difference)
    if isinstance(difference, ValueDifference) and difference.largest <= compared.tolerance:
        evidence.findings.append(f"{text}, within rounding (largest difference {value})")
    else:
        tolerance = f"tolerance {compared.tolerance:.2g}"
        evidence.failures.append(f"{text} are expected, but differ: {value} ({tolerance})")


def _outputs_text(expected: Expected, compared: ComparedOutputs) -> list[str]:
    """Say how outputs differ and should differ, then list the largest difference by input."""
    inputs = ", ".join(compared.differences)
    if compared.are_identical and not expected.conversion:
        return [f"bit-identical to the base's on inputs of {inputs}"]
    if compared.are_equal and not expected.conversion:
        return [f"equal to the base's on inputs of {inputs}, but for NaN and signs of zeros"]
    text = _standard_text(expected, compared)
    values = [f"{_value_text(value)} at {name}" for name, value in compared.differences.items()]
    return [text, f"largest difference: {'; '.join(values)}"]


def _standard_text(expected: Expected, compared: ComparedOutputs) -> str:
    """Say whether outputs meet the standard."""
    if isinstance(compared.standard, MustBeClose):
        return _closeness_text(expected, compared, compared.standard.tolerance)
    if compared.are_right:
        largest = max(item.largest for item in compared.of_values)
        return f"outputs on short inputs differ from the base's by up to {largest:.3g}, as expected"
    return "outputs on short inputs must be identical to the base's but differ"


def _closeness_text(expected: Expected, compared: ComparedOutputs, tolerance: float) -> str:
    """Say whether outputs equal the base's but for rounding, and of what."""
    relation = "are the base's within"
    if expected.conversion is not None:
        relation = "equal the base's within"
    if not compared.are_right:
        relation = "differ from the base's by more than"
    allowed = f"(tolerance {tolerance:.2g})"
    if expected.windows is not None:
        text = f"outputs {relation} float32 rounding {allowed}"
        return f"{text}{_wider_windows_text(expected.windows, compared)}"
    if expected.conversion is not None:
        rounding = "float32 rounding"
        dtype = embedding_dtype(expected.conversion)
        if dtype in SUM_ROUNDING:
            rounding += f" and that of the embeddings to {dtype}"
        return f"without positions, outputs {relation} {rounding} {allowed}"
    return f"outputs on short inputs {relation} rounding of frequencies {allowed}"


def _wider_windows_text(conversion: Conversion, compared: ComparedOutputs) -> str:
    """Say which inputs were run with wider windows, as a clause; nothing if none was."""
    half = conversion.settings.half_window
    if compared.longest <= half:
        return ""
    return (
        f": of inputs up to {half} tokens as they are, of longer ones with windows of twice the "
        "input"
    )


def _value_text(difference: OutputDifference) -> str:
    match difference:
        case OtherShape():
            return f"shape {list(difference.after)} instead of {list(difference.before)}"
        case NoOutput():
            return f"fails ({difference.reason})"
        case ValueDifference():
            return format(difference.largest, ".3g")
