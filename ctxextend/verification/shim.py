from typing import Any


class ResizePlan:
    def __init__(self, planned: Any) -> None:
        self.planned = planned

    def __getattr__(self, name: str) -> Any:
        planned = self.__dict__["planned"]
        if name in ("texts", "files", "file_sizes"):
            return getattr(planned.output, name)
        if name == "conversion":
            return planned.conversion
        if name == "resized":
            from ctxextend.plan.new_rows import resize_rows

            return lambda table, before: resize_rows(table, before, planned.plan.choice_of(table))
        if name == "options_of":
            return planned.plan.choice_of
        if name == "method_of":
            return lambda table: table.choice.name if table.choice else planned.plan.method
        if name == "max_len_before" and planned.conversion:
            return planned.conversion.max_len_before
        return getattr(planned.plan, name)


class ConversionPlan(ResizePlan):
    pass
