"""Names for units. Records hold SI base units only; other scales exist in reports."""

from __future__ import annotations

Seconds = float
Bytes = int
Ratio = float
"""Opponent over candidate; above 1 the candidate is faster."""
