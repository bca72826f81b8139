"""The length that a GGUF file states, and the tensors that it has."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ctxextend.checkpoint.gguf_header import GgufFile
from ctxextend.gguf.gguf_architectures import YARN_METHOD
from ctxextend.gguf.gguf_config import ATTENTION
from ctxextend.gguf.gguf_model import is_quantised
from ctxextend.inspection.inspection_result import LibraryLimit, Limit
from ctxextend.inspection.stated_limits import NOT_LOADED_LIMIT, longer_inputs
from ctxextend.limits.statements import LLAMA_CPP
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.position_report import PositionReport
from ctxextend.positions.positions import Positions, nested


def gguf_limits(model: OpenedModel, reports: Sequence[PositionReport]) -> Iterator[Limit]:
    """Yield the context length of a GGUF file, and the rows of its table if it has one."""
    for report in reports:
        value = report.location.value(report.location.effective_key)
        has_rows = bool(report.location.rows)
        yield Limit(
            file=model.checkpoint.config_file,
            key=report.config_key,
            value=value,
            tokens=value,
            used_by=LLAMA_CPP,
            table=report.name,
            reason=_why_it_disagrees(report, value),
            is_blocking=has_rows and value != report.key_value,
        )
        if has_rows:
            yield Limit(
                file=model.checkpoint.config_file,
                key=report.name,
                value=report.positions,
                tokens=report.positions,
                used_by=LLAMA_CPP,
                table=report.name,
            )


def _why_it_disagrees(report: PositionReport, value: int) -> str:
    """Say what a context length does that is not the one of the positions; empty if it is."""
    if value == report.key_value:
        return ""
    if report.location.rows:
        return f"{report.name} has {report.positions} rows: {NOT_LOADED_LIMIT}"
    return f"the settings serve {report.positions} tokens, but llama.cpp reads this length"


def gguf_libraries(
    limits: Sequence[Limit], reports: Sequence[PositionReport]
) -> list[LibraryLimit]:
    """Return the limit of llama.cpp, whose default is the context length."""
    blocking = [limit for limit in limits if limit.is_blocking]
    found = list[LibraryLimit]()
    for report in reports:
        decided_by = f"{limits[0].file} {report.config_key}"
        if blocking:
            found.append(
                LibraryLimit(name=LLAMA_CPP, tokens=0, decided_by=decided_by, beyond="not loaded")
            )
            continue
        found.append(
            LibraryLimit(
                name=LLAMA_CPP,
                tokens=limits[0].tokens,
                decided_by=decided_by,
                beyond=longer_inputs(report).beyond,
            )
        )
    return found


def quantised_notes(tables: Sequence[Positions]) -> Iterator[str]:
    """Yield which tables are quantised, so that their rows are not shown."""
    for table in tables:
        if is_quantised(table):
            yield (
                f"{table.name} is quantised ({table.dtype}): its rows are not shown, and cannot be "
                "resized."
            )


def gguf_notes(file: GgufFile, reports: Sequence[PositionReport]) -> Iterator[str]:
    """Yield the types of the tensors of a GGUF file, and what its frequencies leave out."""
    counts = Counter(entry.dtype for entry in file.entries.values())
    types = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
    yield f"{file.path.name}: GGUF version {file.metadata.version}, tensors: {types or 'none'}."
    for report in reports:
        location = report.location
        factors = nested(location.config, (*location.path, "factor_tensors"))
        if factors:
            yield (
                f"{factors[0]} divides the frequencies too: the wavelengths are those without it."
            )
        scale = nested(location.config, (*location.path, ATTENTION))
        if scale not in (None, 1) and YARN_METHOD not in report.kinds:
            key = f"{location.family.model_type}.{ATTENTION}"
            yield f"{key} {scale:g} multiplies the cosines and sines of all layers too."
