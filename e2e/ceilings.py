"""The highest rates that any run saw on a device: other work on it only lowers what one run measures."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from e2e.cache import cache_folder

NAMES = ("copy_bytes_per_s", "matmul_flops_per_s")
_FILE = "ceilings.json"


def highest(device: str, found: Mapping[str, float]) -> dict[str, float]:
    """Those rates, or higher ones that were seen there before; kept for the next run.

    Raises:
        OSError: they cannot be kept.
    """
    file = cache_folder() / _FILE
    known = _read(file)
    before = known.get(device, {})
    rates = {name: max(found[name], before.get(name, 0.0)) for name in NAMES}
    if rates != before:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{_FILE}.{os.getpid()}")
        temporary.write_text(json.dumps({**known, device: rates}, indent=1), encoding="utf-8")
        temporary.replace(file)
    return rates


def _read(file: Path) -> dict[str, dict[str, float]]:
    """What was kept; nothing from a file that is no such thing."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(raw, dict):
        return {}
    whole = {name: rates for name, rates in raw.items() if isinstance(rates, dict)}
    return {
        name: {key: value for key, value in rates.items() if key in NAMES and _is_rate(value)}
        for name, rates in whole.items()
    }


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
