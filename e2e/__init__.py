"""e2e: does this kernel's win survive the workload? From Python: `e2e.validate(...)`, `e2e.load_result(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from e2e.api import (
        E2EError,
        Outcome,
        Result,
        check_kernel,
        compare,
        gate_result,
        history,
        load_result,
        report,
        validate,
    )

__all__ = [
    "E2EError",
    "Outcome",
    "Result",
    "check_kernel",
    "compare",
    "gate_result",
    "history",
    "load_result",
    "report",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Imported at first use: the command line and every worker import this package too."""
    if name in __all__:
        from e2e import api

        return getattr(api, name)
    raise AttributeError(f"module 'e2e' has no attribute {name!r}")
