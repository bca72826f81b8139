"""The checks of files, in words: what was compared, and each difference as a sentence."""

from collections.abc import Sequence

from ctxextend.checkpoints.weights import layer_pattern
from ctxextend.conversion.conversion import Conversion, count_origins
from ctxextend.conversion.describe import positions_text
from ctxextend.errors import counted
from ctxextend.limits.length_edits import shown_value
from ctxextend.plan.table_plan import TablePlan
from ctxextend.recipe import FROZEN, RECIPE_FILE, TRAINABLE
from ctxextend.tables.rope_types import NONE
from ctxextend.tables.stats import describe_rows
from ctxextend.verification.checks import Check, Evidence
from ctxextend.verification.compare_bytes import WrongBytes
from ctxextend.verification.compare_files import (
    ComparedFiles,
    FileDifference,
    MissingFile,
    OtherContent,
    OtherValue,
    UnexpectedFile,
    UnreadableFile,
    WrongVariant,
)
from ctxextend.verification.compare_rope import (
    ComparedFrequencies,
    ComparedLayers,
    ComparedPositions,
)
from ctxextend.verification.compare_tables import (
    ChangedRows,
    ComparedRows,
    ComputedTable,
    RecordedHash,
    TableComparison,
    UncheckedRows,
)
from ctxextend.verification.compare_tensors import ComparedTensors, WrongBuffer, WrongForm
from ctxextend.verification.expected import Expected, FoundBy
from ctxextend.verification.json_changes import json_text

CLOSEST_METHOD = "closest of all methods"
# Why rows should match although a checkpoint was trained, by `trainable`. With its other values,
# all rows were trained, so none is wrong.
UNTRAINED_ROWS: dict[str | None, str] = {
    "new": ", although only new rows were trained",
    "all-but-positions": ", although the table was not trained",
}


# ---- tensors


def tensors_check(
    expected: Expected, compared: ComparedTensors, changed_links: Sequence[str]
) -> Check:
    """Return the check of all tensors but the tables; see also `compare_links.changed_links`."""
    faults = [_changed_link_text(name) for name in changed_links]
    faults += [_form_text(wrong) for wrong in compared.wrong_forms]
    for wrapper in compared.wrappers:
        faults.append(f"names of tensors have {wrapper}, which transformers does not load")
    faults += [f"{name} is not in the base" for name in compared.added]
    faults += [f"{name} is an outdated position buffer" for name in compared.outdated]
    faults += [_buffer_text(wrong) for wrong in compared.wrong_buffers]
    for wrong in compared.wrong_metadata:
        faults.append(f"{wrong.file} has __metadata__ {wrong.found}, expected {wrong.expected}")
    faults += [_bytes_text(wrong) for wrong in compared.wrong_bytes]
    trainable = expected.recorded.trainable
    if trainable in ("all-but-positions", "all"):
        reason = (
            f"{TRAINABLE[trainable]} were trained according to the recipe, so this is not a pure "
            f"{expected.kind}"
        )
        faults.insert(0, reason)
    summary = _tensors_summary(expected, compared)
    return Evidence(failures=faults, findings=[summary]).check("tensors")


def _changed_link_text(name: str) -> str:
    return (
        f"{name} is the same file as the base's, and the base's weights are not those of "
        f"{RECIPE_FILE}: one of them was edited in place, or the base was changed before"
    )


def _form_text(wrong: WrongForm) -> str:
    if wrong.found is None:
        return f"{wrong.name} is missing"
    found = f"{wrong.found.dtype} {list(wrong.found.shape)}"
    return f"{wrong.name} is {found}, expected {wrong.expected.dtype} {list(wrong.expected.shape)}"


def _buffer_text(wrong: WrongBuffer) -> str:
    if wrong.form is not None:
        return _form_text(wrong.form)
    return f"{wrong.name} is not the position buffer for the new length"


def _bytes_text(wrong: WrongBytes) -> str:
    return f"{wrong.name} differs, first at byte {wrong.byte:,} (element {wrong.element:,})"


def _tensors_summary(expected: Expected, compared: ComparedTensors) -> str:
    """Say how many tensors were compared, and how many were not."""
    if expected.conversion:
        summary = _computed_tensors_text(expected, expected.conversion, compared)
    else:
        summary = _kept_tensors_text(expected, compared)
    if compared.adapted:
        summary += f"; {compared.adapted:,} with adapters not compared"
    return summary


def _computed_tensors_text(
    expected: Expected, conversion: Conversion, compared: ComparedTensors
) -> str:
    """Say how many tensors of a conversion were compared, and how they are computed."""
    relation = "are byte-identical to" if compared.are_identical else "compared with"
    adapted = expected.recorded.adapted
    of_adapters = [name for name in conversion.origins if layer_pattern(name) in adapted]
    counts = count_origins(conversion, without={*expected.rows, *of_adapters})
    computed = ", ".join(f"{count} {how}" for how, count in counts.items())
    return (
        f"{compared.count:,} tensors {relation} those computed from the base "
        f"({compared.size:,} bytes): {computed}"
    )


def _kept_tensors_text(expected: Expected, compared: ComparedTensors) -> str:
    """Say how many tensors were compared that a resize keeps as they are."""
    tensors = "other tensors" if expected.stored else "tensors"
    relation = "are byte-identical " if compared.are_identical else ""
    return f"{compared.count:,} {tensors} {relation}({compared.size:,} bytes compared)"


# ---- position tables


def tables_check(expected: Expected, compared: list[TableComparison]) -> Check:
    """Return the check of position tables, and of positions without a table of rows."""
    evidence = Evidence()
    for table in compared:
        match table:
            case WrongForm():
                evidence.failures.append(_form_text(table))
            case ComputedTable():
                _add_computed_table(evidence, table)
            case UncheckedRows():
                _add_unchecked_rows(evidence, table)
            case ComparedRows():
                _add_compared_rows(evidence, expected, table)
            case ComparedPositions():
                _add_positions(evidence, expected, table)
    return evidence.check("table")


def _add_positions(evidence: Evidence, expected: Expected, compared: ComparedPositions) -> None:
    if compared.error:
        evidence.failures.append(compared.error)
    for layers in compared.layers:
        evidence.failures += _wrong_layers(layers)
    if expected.conversion is not None:
        text = positions_text(expected.conversion)
        evidence.findings.append(f"{compared.table.name}: {text}")
    else:
        evidence.findings += _slowdowns(compared)


def _slowdowns(compared: ComparedPositions) -> list[str]:
    """Say for each type of layers how far a resize slows it down, or that no settings changed."""
    texts = list[str]()
    for layers in compared.layers:
        if layers.frequencies is not None:
            texts.append(f"{layers.name}: {_slowdown_text(layers.frequencies)}")
    if not texts and not compared.error:
        table = compared.table
        positions = "no positions" if table.scheme == NONE else f"{table.scheme} positions"
        texts.append(f"{table.name}: {positions}, no settings changed")
    return texts


def _wrong_layers(layers: ComparedLayers) -> list[str]:
    """Return the rotary settings and frequencies that are not as planned."""
    faults = list[str]()
    for wrong in layers.wrong:
        found = json_text(wrong.found)
        faults.append(
            f"{layers.name}: {wrong.key} is {found}, expected {json_text(wrong.expected)}"
        )
    compared = layers.frequencies
    if compared is not None and not compared.matches.all():
        count = int((~compared.matches).sum())
        total = len(compared.matches)
        faults.append(
            f"{layers.name}: {count} of {total} frequencies are not those of {compared.method}"
        )
    return faults


def _slowdown_text(compared: ComparedFrequencies) -> str:
    """Say how many frequencies a method keeps, and how far it slows the others down."""
    total = len(compared.slowdown)
    if not compared.rotates:
        return f"{compared.method}: no pair turns"
    kept = f"{compared.unchanged} of {total} frequencies unchanged"
    if compared.length is not None:
        kept = f"at {compared.length} tokens, {kept}"
    if compared.unchanged == total:
        return f"{compared.method}: {kept}"
    return f"{compared.method}: {kept}, the others up to {compared.slowdown.max():.3g}x slower"


def _add_computed_table(evidence: Evidence, compared: ComputedTable) -> None:
    """Add that a table is computed, also next to the failure that it is not the right one."""
    table = compared.table
    planned = (table.rows_after, table.hidden_size)
    if compared.shape is None:
        evidence.failures.append(compared.error)
    elif compared.shape != planned:
        evidence.failures.append(
            f"{table.name}: transformers computes a table of {list(compared.shape)}, expected "
            f"{list(planned)}"
        )
    evidence.findings.append(f"{_size_text(table)}, computed by transformers")


def _size_text(table: TablePlan) -> str:
    return f"{table.name}: {table.rows_before} -> {table.rows_after} rows"


def _add_unchecked_rows(evidence: Evidence, compared: UncheckedRows) -> None:
    name = compared.table.name
    if compared.width_fault:
        evidence.failures.append(compared.width_fault)
    text = f"{name}: rows not checked, method {compared.method!r} is not registered"
    match compared.recorded_hash:
        case RecordedHash.NONE:
            evidence.unchecked.append(text)
        case RecordedHash.SAME:
            evidence.findings.append(text)
        case RecordedHash.OTHER:
            evidence.failures.append(_rewritten_text(name))
            evidence.findings.append(text)


def _rewritten_text(name: str) -> str:
    return f"{name} has changed since it was written: its SHA-256 is not that in {RECIPE_FILE}"


def _add_compared_rows(evidence: Evidence, expected: Expected, compared: ComparedRows) -> None:
    if compared.width_fault:
        evidence.failures.append(compared.width_fault)
    if compared.wrong:
        evidence.failures.append(_wrong_rows_text(expected, compared))
    elif compared.recorded_hash is RecordedHash.OTHER:
        evidence.failures.append(_rewritten_text(compared.table.name))
    if compared.nonfinite:
        evidence.failures.append(
            f"{compared.table.name}: {counted(len(compared.nonfinite), 'row')} with NaN or "
            f"infinity: {describe_rows(compared.nonfinite)}"
        )
    if expected.replaces_positions:
        evidence.findings.append(
            f"{compared.table.name}: {compared.matching} of {compared.table.rows_after} rows are "
            "the angles of their positions, bit for bit"
        )
        return
    evidence.findings.append(_matching_rows_text(expected, compared))
    evidence.findings.append(_learned_rows_text(compared.learned))


def _wrong_rows_text(expected: Expected, compared: ComparedRows) -> str:
    name = compared.table.name
    if expected.replaces_positions:
        fault = "are not the angles of their positions"
    else:
        reason = UNTRAINED_ROWS.get(expected.recorded.trainable, "")
        fault = f"do not match method {expected.rows[name].method}{reason}"
    count = f"{len(compared.wrong)} of {compared.table.rows_after} rows"
    return f"{name}: {count} {fault}: {describe_rows(compared.wrong)}"


def _matching_rows_text(expected: Expected, compared: ComparedRows) -> str:
    """Say how many rows match the method, how exactly, and whether the table was trained."""
    table = compared.table
    rows = expected.rows[table.name]
    origin = f"method {rows.method}" if expected.changes_positions else "the base"
    exactness = "bit for bit"
    if rows.tolerance:
        exactness = f"within {rows.tolerance:g} of the median norm"
    matching = f"{compared.matching} of {table.rows_after} rows match {origin}"
    parts = [_size_text(table), f"{matching} ({_found_by(expected)}) {exactness}"]
    if expected.recorded.trainable:
        parts.append(_training_text(expected.recorded.trainable, compared.recorded_hash))
    return "; ".join(parts)


def _training_text(trainable: str, recorded_hash: RecordedHash) -> str:
    """Say whether a training changed the table, and whether the table is the one it wrote."""
    text = "trained afterwards"
    if trainable in FROZEN:
        text = "not trained afterwards"
    if recorded_hash is not RecordedHash.NONE:
        text += ", SHA-256 as recorded"
    return text


def _found_by(expected: Expected) -> str:
    match expected.how_found.found_by:
        case FoundBy.PLAN:
            return "as planned"
        case FoundBy.RECIPE:
            return "from the recipe"
        case FoundBy.CLOSEST:
            return CLOSEST_METHOD
        case FoundBy.DETECTION:
            keep_first = expected.how_found.keep_first
            if keep_first:
                return f"detected, --keep-first {keep_first}"
            return "detected"


def _learned_rows_text(learned: ChangedRows) -> str:
    """Say how many learned rows are unchanged, and how far the others have moved."""
    same = learned.shared - len(learned.changed)
    text = f"{same} of {learned.shared} learned rows are bit-identical"
    if not learned.changed:
        return text
    rows = "rows" if len(learned.changed) > 1 else "row"
    return (
        f"{text}; {rows} {describe_rows(learned.changed)} changed by up to {learned.largest:.3g} "
        f"(median norm {learned.median_norm:.3g})"
    )


# ---- files


def files_check(expected: Expected, compared: ComparedFiles) -> Check:
    """Return the check of all files but weights."""
    faults = [f"{compared.index_file} does not list {name}" for name in compared.unlisted]
    faults += [_unexpected_text(item) for item in compared.unexpected]
    if compared.wrong_variant:
        faults.append(_variant_text(compared.wrong_variant))
    faults += [_difference_text(item) for item in compared.differences]
    if faults:
        return Evidence(failures=faults).check("files")
    count = (
        f"{counted(compared.count, 'file')} compared (model card, licenses, logs and recipe "
        "excluded)"
    )
    findings = [f"{count}: {_changes_text(expected)}", "no stale weight files"]
    return Evidence(findings=findings).check("files")


def _unexpected_text(item: UnexpectedFile) -> str:
    if item.reason:
        return f"unexpected {item.file}: {item.reason}"
    return f"{item.file} is not in the base"


def _variant_text(wrong: WrongVariant) -> str:
    expected = wrong.expected or "no variant"
    return f"the weights are variant {wrong.found}, expected {expected}"


def _difference_text(item: FileDifference) -> str:
    match item:
        case MissingFile():
            return f"{item.file} is missing"
        case OtherContent():
            return f"{item.file} is not byte-identical to the base's"
        case UnreadableFile():
            return item.reason
        case OtherValue():
            return _value_text(item)


def _value_text(item: OtherValue) -> str:
    key = ".".join(item.path)
    text = f"{item.file}: {key} is {json_text(item.found)}, expected {json_text(item.expected)}"
    if item.is_length:
        text += " (the new length)"
    return text


def _changes_text(expected: Expected) -> str:
    """Say which values the resize or conversion has changed, and which files it has generated."""
    written = [edit for edit in expected.files.edits if edit.file not in expected.stale_files]
    edits = "; ".join(f"{edit.file} {edit.key} {shown_value(edit.after)}" for edit in written)
    if expected.conversion:
        text = "as the conversion writes them"
        return f"{text}, {edits}" if edits else text
    parts = [_edits_text(expected, edits)]
    if expected.base.generated:
        parts.append(f"{', '.join(sorted(expected.base.generated))} generated")
    return "; ".join(parts)


def _edits_text(expected: Expected, edits: str) -> str:
    """Say which values a resize has changed; `edits` lists them."""
    if not edits:
        return "nothing changed"
    changed = "length limits"
    if expected.has_rope_changes:
        changed = "rotary settings and length limits"
    return f"only the {changed} changed ({edits})"
