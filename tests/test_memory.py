import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxextend.evaluation.eval_model import CAUSAL, MASKED, EvalModel, TextTokenizer
from ctxextend.training import memory, room
from ctxextend.training.memory import Choice, Footprint, Forecast, Need, choose
from ctxextend.training.modes import switch_dropout_off
from ctxextend.training.objectives import LanguageModelling
from tests.tiny import make_config, shrink

GIGABYTE = 10**9
CPU = torch.device("cpu")


def objective_of(model_type: str = "gpt2", *, positions: bool = False) -> LanguageModelling:
    """A language model with random weights, all of it or its table alone to be trained."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    auto: Any = AutoModelForCausalLM if model_type == "gpt2" else AutoModelForMaskedLM
    torch.manual_seed(0)
    model = auto.from_config(shrink(make_config(model_type))).train(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not positions or "wpe" in name)
    switch_dropout_off(model)
    kind = CAUSAL if model_type == "gpt2" else MASKED
    return LanguageModelling.of(EvalModel("model", Path(), model_type, kind, model, TextTokenizer(None), 64))


def forecast(per_token: float = 1e5, device: str = "cpu", model_type: str = "gpt2") -> Forecast:
    """A forecast of a model of next to no weight, that keeps a hundredth where layers are computed twice."""
    objective = objective_of(model_type)
    objective.model.to(device)
    twice = Footprint(0, per_token / 100, 0) if objective.model.supports_gradient_checkpointing else None
    return Forecast(objective, None, Footprint(0, per_token, 0), twice)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    def say(count: int | None) -> None:
        monkeypatch.setattr(memory, "free_memory", lambda device: count)

    say(64 * GIGABYTE)
    return say


def test_footprint_goes_through_three_measurements() -> None:
    found = Footprint.through({4: 100 + 4 * 10 + 16 * 3, 8: 100 + 8 * 10 + 64 * 3, 16: 100 + 16 * 10 + 256 * 3})
    assert found == Footprint(100, 10, 3)
    assert found.of(32, 2) == 100 + 2 * (32 * 10 + 1024 * 3)


def test_footprint_is_never_below_nothing() -> None:
    assert Footprint.through({4: 100, 8: 100, 16: 90}) == Footprint(100, 0, 0)


def test_need_says_what_it_is_made_of() -> None:
    need = Need(500_000_000, 3_000_000, 6_000_000, 1_200_000_000, 90_000_000, 0)
    assert need.total == 1_799_000_000
    assert need.to_come == 1_299_000_000
    shown = "parameters 500 MB, gradients 3 MB, optimizer 6 MB, activations 1.2 GB, working 90 MB"
    assert str(need) == f"1.8 GB ({shown})"
    assert str(Need(7, 0, 0, 0, 0, 0)) == "0 MB"


def test_forecast_counts_weights_gradients_and_moments_of_what_is_trained() -> None:
    every, table = (Forecast.of(objective_of(positions=positions), 64) for positions in (False, True))
    size = 4 * sum(parameter.numel() for parameter in every.objective.parameters())
    rows = 4 * every.objective.model.transformer.wpe.weight.numel()
    for found, trained in ((every, size), (table, rows)):
        need = found.need(64, 2, checkpointed=False)
        assert (need.parameters, need.gradients, need.optimizer, need.teacher) == (size, trained, 2 * trained, 0)


def test_forecast_keeps_less_of_frozen_layers_and_of_those_that_are_computed_twice() -> None:
    every, table = (Forecast.of(objective_of(positions=positions), 64) for positions in (False, True))
    assert every.checkpointed is not None
    assert table.plain.per_token < 0.9 * every.plain.per_token
    # One state for each token and layer, and those around the layers.
    assert 3 * 64 <= every.checkpointed.per_token < 0.4 * every.plain.per_token


def test_forecast_grows_with_pairs_where_attention_keeps_its_weights() -> None:
    model = objective_of().model
    assert Forecast.of(objective_of(), 64).plain.per_pair == 0
    model.set_attn_implementation("eager")
    eager = Forecast.of(
        LanguageModelling(EvalModel("", Path(), "", CAUSAL, model, TextTokenizer(None), 64), is_apart=True), 64
    )
    heads, layers = model.config.n_head, model.config.n_layer
    assert eager.plain.per_pair >= 4 * heads * layers


def test_forecast_leaves_everything_as_it_was() -> None:
    objective = objective_of()
    before = torch.random.get_rng_state()
    Forecast.of(objective, 64)
    assert torch.equal(torch.random.get_rng_state(), before)
    for module in objective.model.modules():
        assert not module.training
        assert not getattr(module, "gradient_checkpointing", False)
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_forecast_of_a_model_that_cannot_compute_layers_twice() -> None:
    found = Forecast.of(objective_of("albert"), 64)
    assert found.checkpointed is None
    assert found.need(64, 1, checkpointed=True) == found.need(64, 1, checkpointed=False)


def test_forecast_counts_whole_logits_where_the_head_is_not_apart() -> None:
    found = Forecast.of(objective_of("mobilebert"), 64)
    words = found.objective.model.config.vocab_size
    assert found.need(4096, 1, checkpointed=True).working >= 8 * 4096 * words


def test_forecast_counts_a_teachers_weights_but_for_those_that_are_shared() -> None:
    objective, teacher = objective_of(), objective_of().model
    size = 4 * sum(parameter.numel() for parameter in teacher.parameters())
    assert Forecast.of(objective, 64, teacher=teacher).need(64, 1, checkpointed=False).teacher == size
    teacher.transformer.wte.weight.data = objective.model.transformer.wte.weight.data
    shared = 4 * teacher.transformer.wte.weight.numel()
    assert Forecast.of(objective, 64, teacher=teacher).need(64, 1, checkpointed=False).teacher == size - shared


@pytest.mark.parametrize(
    ("length", "batch", "expected"), [(512, 8, 8), (512, 24, 8), (1000, 6, 3), (4096, 4, 1), (9000, 4, 1)]
)
def test_choose_holds_4096_tokens_at_once_on_a_cpu(length: int, batch: int, expected: int, free: Any) -> None:
    counts = [count for count in range(1, batch + 1) if batch % count == 0]
    for room_left in (64 * GIGABYTE, GIGABYTE, None):  # so a run can be repeated when less is free
        free(room_left)
        assert choose(forecast(), length, counts).micro_batch == expected


def test_choose_obeys_what_is_asked_for(free: Any) -> None:
    assert choose(forecast(), 1024, [16]).micro_batch == 16


@pytest.mark.parametrize(
    ("length", "room_left", "expected"),
    [
        (1024, 64, False),
        (1024, None, False),
        (1024, 0.5, True),
        (2048, 64, False),
        (2048, 0.5, True),
        (2048, None, True),
    ],
)
def test_choose_computes_layers_twice_where_memory_is_scarce_or_may_be(
    length: int, room_left: float | None, expected: bool, free: Any
) -> None:
    free(None if room_left is None else int(room_left * GIGABYTE))
    assert choose(forecast(), length, [1, 2, 4]).is_checkpointed == expected


def test_choose_does_not_compute_layers_twice_where_a_model_cannot(free: Any) -> None:
    found = choose(forecast(model_type="albert"), 2048, [1, 2])
    assert not found.is_checkpointed
    assert found.fits


@pytest.mark.parametrize(
    ("room_left", "expected"),
    [(64, (16, False)), (6, (16, False)), (3, (8, False)), (1.3, (4, False)), (1, (4, True)), (0.001, (1, True))],
)
def test_choose_holds_what_fits_on_an_accelerator(room_left: float, expected: tuple[int, bool], free: Any) -> None:
    # 100 MB for 1,024 tokens, and half as much again for the one of two layers that is worked with; or 100 MB for it.
    free(int(room_left * GIGABYTE))
    found = choose(forecast(device="meta"), 1024, [1, 2, 4, 8, 16, 32])
    assert (found.micro_batch, found.is_checkpointed) == expected


def test_choice_says_what_takes_less_where_it_does_not_fit(free: Any) -> None:
    need = Need(GIGABYTE, GIGABYTE, 2 * GIGABYTE, 10 * GIGABYTE, 0, 0)
    assert Choice(8, False, need, 64 * GIGABYTE).warning(window=False) is None
    assert Choice(8, False, need, None).warning(window=False) is None
    said = Choice(8, False, need, 8 * GIGABYTE).warning(window=False)
    assert said == (
        "Training takes about 13.0 GB more than the models that are loaded, and 8.0 GB are free. What takes less: "
        "--micro-batch 1, a shorter --seq-len, --window, --trainable positions."
    )
    table = Need(GIGABYTE, 1, 2, 10 * GIGABYTE, 0, 0)
    said = Choice(1, True, table, 8 * GIGABYTE).warning(window=True)
    assert said is not None
    assert said.endswith("What takes less: a shorter --window.")
    assert str(Choice(1, True, table, None)).endswith("are needed, with gradient checkpointing")


MEASURE = """
from pathlib import Path
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from ctxextend.evaluation.eval_model import EvalModel, TextTokenizer
from ctxextend.training.memory import Forecast
from ctxextend.training.modes import switch_checkpointing
from ctxextend.training.objectives import LanguageModelling
from ctxextend.training.room import give_back_what_is_freed

def held(name):
    return 1024 * int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0])

give_back_what_is_freed()
model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=4, n_head=2, vocab_size=8000))
objective = LanguageModelling(EvalModel("", Path(), "gpt2", "causal", model, TextTokenizer(None), 1024), is_apart=True)
model.requires_grad_(False)
model.transformer.wpe.requires_grad_(True)
forecast, ids = Forecast.of(objective, 1024), torch.randint(0, 8000, (2, 1024))
for checkpointed in (True, False):
    switch_checkpointing(model.train(), on=checkpointed)
    Path("/proc/self/clear_refs").write_text("5")  # so the peak is counted from here
    before = held("VmRSS")
    objective(ids, ids)["loss"].backward()
    print(forecast.need(1024, 2, checkpointed=checkpointed).to_come, held("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a part of a process is Linux's")
def test_need_is_within_a_factor_of_two_of_what_is_measured() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    checkpointed, plain = (map(int, line.split()) for line in done.stdout.splitlines()[-2:])
    for (told, measured), least in ((checkpointed, 5e7), (plain, 2e8)):
        assert measured > least
        assert measured / 2 < told < 2 * measured


def system(root: Path, **files: str) -> Path:
    """A folder that tells of a system as / does; in names, two underscores stand for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:  9000 kB\nMemFree: 100 kB\nMemAvailable:    2000 kB\n"
STATISTICS = "anon 5\ninactive_file 300\ntotal_inactive_file 300\n"


def test_free_memory_of_a_cpu_is_what_linux_can_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = system(tmp_path, proc__meminfo=MEMINFO)
    assert room.free_memory(CPU, root) == 2_048_000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert room.free_memory(CPU, root) == 512_000


@pytest.mark.parametrize(
    ("most", "expected"), [("1500", 800), ("max", 2_048_000), ("9999999", 2_048_000), ("900", 200)]
)
def test_free_memory_of_a_container_is_what_its_limit_leaves(tmp_path: Path, most: str, expected: int) -> None:
    given = {"sys__fs__cgroup__memory_current": "1000\n", "sys__fs__cgroup__memory_stat": STATISTICS}
    assert (
        room.free_memory(CPU, system(tmp_path, proc__meminfo=MEMINFO, sys__fs__cgroup__memory_max=most, **given))
        == expected
    )


def test_free_memory_of_an_older_container_is_what_its_limit_leaves(tmp_path: Path) -> None:
    folder = "sys__fs__cgroup__memory__memory_"
    given = {f"{folder}limit_in_bytes": "1500", f"{folder}usage_in_bytes": "1000", f"{folder}stat": STATISTICS}
    assert room.free_memory(CPU, system(tmp_path, proc__meminfo=MEMINFO, **given)) == 800


def test_free_memory_of_other_systems_is_all_that_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = room.free_memory(CPU, tmp_path)
    assert found is None or found > GIGABYTE
    monkeypatch.delattr(os, "sysconf_names", raising=False)
    assert room.free_memory(CPU, tmp_path) is None
    assert room.free_memory(torch.device("meta")) is None


PINNED = """
import numpy as np
from pathlib import Path
from ctxextend.training.room import give_back_what_is_freed

def held():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024

stay = []
np.ones(3 << 20)  # 24 MiB, freed: from here on the library puts pieces of up to that size side by side
for told in (False, True):
    before = held()
    if told:
        assert give_back_what_is_freed()
    for _ in range(10):
        large = np.ones(2 << 20)  # 16 MiB
        stay.append(np.ones(2 << 17))  # 2 MiB behind it, which stay
        del large
        stay.append(np.ones(3 << 18))  # 6 MiB, which go where the large one was
    print(held() - before)
"""


@pytest.mark.skipif(not room.give_back_what_is_freed(), reason="only the GNU library is told so")
def test_give_back_what_is_freed_leaves_no_holes() -> None:
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, check=True)
    by_itself, told = map(float, done.stdout.split())
    assert told < 90  # 10 x 8 MiB that stay
    assert by_itself > told + 10
