"""The stored result itself, as strict JSON."""

from __future__ import annotations

from e2e.schema.result import Result
from e2e.store import to_json


class JsonReport:
    """What result.json holds."""

    def render(self, result: Result) -> str:
        """One JSON document."""
        return to_json(result)


PLUGIN = JsonReport()
