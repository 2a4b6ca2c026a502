"""Numbers and names in the words of reports. The only place where other units than SI's base exist."""

from __future__ import annotations

import math
from collections.abc import Sequence

from e2e.arm_names import AS_SHIPPED, ArmName
from e2e.schema.evidence import SanitizerRun
from e2e.schema.verdict import Estimate
from e2e.schema.words import Label, Mode, Outcome, Role
from e2e.units import Bytes, Ratio, Seconds

ABSENT = "-"

LABELS = {
    Label.MATCHED_BY_PYTORCH: "matched by PyTorch",
    Label.REGRESSION: "slower with the kernel",
    Label.BELOW_MARGIN: "gain below the margin",
    Label.NO_HEADROOM: "no headroom",
    Label.PROMISING: "promising",
}
_OPPONENTS = {"best_pytorch": "the strongest PyTorch path", "as_shipped": "eager PyTorch as shipped"}
_MODES = {
    Mode.EAGER: "eager",
    Mode.COMPILE: "compile",
    Mode.REDUCE_OVERHEAD: "compile reduce-overhead",
    Mode.CUDA_GRAPH: "eager in a CUDA graph",
    Mode.MAX_AUTOTUNE: "compile max-autotune",
    Mode.COMMAND: "the command as it is",
}


def clean(text: str, limit: int = 400) -> str:
    """One line without control characters: a candidate's words must not steer a terminal or a page."""
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def opponent(name: str, *, is_command: bool = False) -> str:
    """`the strongest PyTorch path`; a kernel adopted earlier by its name."""
    if is_command:
        return "the command as it is"
    return _OPPONENTS.get(name) or f"the adopted {clean(name, 80)}"


def outcome_word(outcome: Outcome | None) -> str:
    """`REFUTED`; the absent mark where there is none."""
    return outcome.replace("_", " ").upper() if outcome else ABSENT


def duration(seconds: Seconds | None, *, digits: int = 4) -> str:
    """`71.28 ms`: the unit fits the size, `digits` significant digits."""
    if seconds is None:
        return ABSENT
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{_significant(seconds / scale, digits)} {unit}"
    return f"{_significant(seconds * 1e9, digits)} ns" if seconds else "0 s"


def ratio(value: Ratio | None) -> str:
    """`10.4x`, to three digits."""
    return ABSENT if value is None else f"{_significant(value, 3)}x"


def estimate(value: Estimate | None) -> str:
    """`1.159x +- 0.003 (1.156 to 1.162)`, to as many decimals as the interval deserves."""
    if value is None:
        return ABSENT
    half = (value.upper_bound - value.lower_bound) / 2
    decimals = 2 if half >= 0.05 else 3 if half >= 0.0005 else 4
    numbers = (value.point_estimate, half, value.lower_bound, value.upper_bound)
    point, half_width, lower, upper = (f"{number:.{decimals}f}" for number in numbers)
    return f"{point}x +- {half_width} ({lower} to {upper})"


def ruled_out(speedup: Estimate) -> str:
    """`no gain above 5.8 %, no loss above 3.1 %`: what even a wide interval says."""
    low, high = speedup.lower_bound, speedup.upper_bound
    gain = f"no gain above {percent(high - 1)}" if high > 1 else "no gain"
    loss = f"no loss above {percent(1 - low)}" if low < 1 else "no loss"
    return f"{gain}, {loss}"


def percent(value: Ratio | None, *, digits: int = 3) -> str:
    """`1 %`."""
    return ABSENT if value is None else f"{value * 100:.{digits}g} %"


def size(value: Bytes | None) -> str:
    """`5.23 GiB`."""
    if value is None:
        return ABSENT
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, 3)} {unit}"
    return f"{value} bytes"


def change(difference: Bytes) -> str:
    """`+12.0 MiB`, `-5.23 GiB`, `the same`."""
    return f"{'+' if difference > 0 else ''}{size(difference)}" if difference else "the same"


def small(value: float | None) -> str:
    """`1.3e-07`; for errors and divergences."""
    return ABSENT if value is None else f"{value:.2g}"


def span(seconds: Seconds) -> str:
    """`2 min 10 s`; for waiting people."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 120 else f"{minutes} min {rest} s"


def arm(name: str) -> str:
    """`eager with F.rms_norm` for `baseline:eager+F.rms_norm`; an unknown name stays as it is."""
    if name == AS_SHIPPED:
        return "eager as shipped"
    try:
        parsed = ArmName.parse(name)
    except ValueError:
        return clean(name, 60)
    words = _MODES[parsed.mode]
    if parsed.role is Role.PART:
        return f"kernel {clean(str(parsed.alternative), 40)} without the others ({words})"
    if parsed.alternative:
        words += f" with {clean(parsed.alternative, 40)}"
    if parsed.role is Role.SHAM:
        return f"identical code ({words})"
    if parsed.role is Role.HEADROOM:
        return f"op replaced by nothing ({words})"
    if parsed.role is Role.PLANTED:
        return f"planted ({words})"
    return words


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 site`, `33 sites`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, decimals)}f}"


def sanitized(runs: Sequence[SanitizerRun]) -> str:
    """`clean over 44 calls`: what one tool saw; `clean` only where it got through all of them."""
    calls, found = sum(run.calls for run in runs), sum(len(run.findings) for run in runs)
    over = f"over {count(calls, 'call')}" if calls else ""
    cut = "" if all(run.finished for run in runs) else "; it did not get to the end"
    what = "clean" if not found and not cut else count(found, "finding")
    return f"{what} {over}".strip() + cut
