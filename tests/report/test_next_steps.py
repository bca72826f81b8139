"""The command to type after a result."""

from ctxextend import inspect, resize
from ctxextend.report.next_steps import after_inspection


def test_after_inspection_trains_new_rows_and_resizes_others() -> None:
    assert after_inspection([inspect("tiny-gpt2")]) == "ctxextend resize tiny-gpt2 --to 2x"
    longer = resize("tiny-gpt2", 256, output="it's longer").output
    (config,) = longer.glob("config.json")
    command = "ctxextend train 'it'\"'\"'s longer' --data TEXT --steps 200"
    assert after_inspection([inspect("tiny-gpt2"), inspect(longer)]) == command
    config.write_text(config.read_text("utf-8").replace("256", "128"), "utf-8")
    assert "--fix-limits" in after_inspection([inspect(longer)])
