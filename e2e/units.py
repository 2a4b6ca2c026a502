"""Names for units, and what turns one measure of spread into another. Records hold SI base units only; other scales
exist in reports.
"""

from __future__ import annotations

Seconds = float
Bytes = int
Ratio = float
"""Opponent over candidate; above 1 the candidate is faster."""

MAD_TO_SD = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""
MEDIAN_COST = 1.2533141373155003
"""Standard error of a median over that of a mean, for normal noise: the root of pi / 2."""
