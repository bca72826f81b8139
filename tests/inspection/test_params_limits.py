"""`inspect` of folders with Mistral's params.json."""

from typing import Any

from ctxextend import inspect
from tests.helpers.mistral_format import OLD, make
from tests.helpers.trainings import invoke, succeed, unwrapped


def limits_of(folder: str) -> dict[str, tuple[Any, bool]]:
    """Return value and agreement of each limit in params.json, by key."""
    limits = inspect(folder).limits
    return {item.key: (item.value, item.agrees) for item in limits if item.file == "params.json"}


def test_inspect_lists_the_lengths_of_params_json() -> None:
    make(params={"max_position_embeddings": OLD})
    assert limits_of("mistral") == {
        "max_position_embeddings": (OLD, True),
        "max_seq_len": (OLD, True),
    }
    (limit, *_) = [item for item in inspect("mistral").limits if item.file == "params.json"]
    assert limit.used_by == "vLLM"
    succeed("inspect", "mistral", "--check")


def test_inspect_check_names_another_length_and_who_reads_it() -> None:
    make(params={"max_seq_len": 100})
    done = invoke("inspect", "mistral", "--check")
    assert done.exit_code == 3
    shown = unwrapped(done.stdout)
    assert "params.json max_seq_len is 100" in shown
    assert "ctxextend resize mistral --trained-length 256 --to 256 --fix-limits" in shown
    (limit,) = [item for item in inspect("mistral").limits if not item.agrees]
    assert limit.reason == "max_position_embeddings is 256, and vLLM may take 100 instead"


def test_params_json_of_another_program_states_no_limit() -> None:
    folder = make()
    for text in ('{"max_seq_len": 100}', "[1]", "{", "[" * 10_000, '{"dim": 1, "dim": 2}'):
        (folder / "params.json").write_text(text)
        assert limits_of("mistral") == {}
        succeed("inspect", "mistral", "--check")
