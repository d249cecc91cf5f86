"""An answer that was given beforehand, in a file or a pipe, as the author of an edit: no model is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.edit.flow import Reply, Wrong, first_line
from localspec.edit.parts import Part, Task
from localspec.edit.reply import has_markers
from localspec.edit.request import Request
from localspec.errors import NotApplied


@dataclass(slots=True)
class Given:
    """Says `text` once. Its markers tell whether it is blocks or a whole text, unless the task does."""

    text: str
    _said: bool = field(default=False, init=False)

    def parts(self, task: Task) -> tuple[tuple[Part, ...], str]:
        region = task.region
        blocks = has_markers(self.text) and not has_markers(region.text)
        return (Part(region, task.format or ("blocks" if blocks else "whole")),), ""

    def answer(self, request: Request, wrong: Wrong | None) -> Reply:
        if wrong:
            what = f"the answer cannot be used: {first_line(wrong.reason)}"
            raise NotApplied(what.removesuffix("."), "mend it, or have another one written")
        if self._said:
            raise NotApplied(
                "the answer was given beforehand, there is no other", "ask for one without --reply"
            )
        self._said = True
        return Reply(self.text)

    def summary(self) -> str:
        return ""

    def stats(self) -> dict[str, Any] | None:
        return None
