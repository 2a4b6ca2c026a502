"""`python -m tests.evidence NAME ...`: the stored runs under `results/`, made again on this machine, one command each.

Whoever doubts a stored run makes it again; whoever changes e2e renews them all. A run takes the place of the stored one
only if it ended as it must, without its traces, and with this machine's folders cut off its paths.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.store import DIGEST, RESULT

RESULTS = Path("results")
SHORT = ("--policy", "examples/short_policy.yaml")
BRIEF = ("--policy", "examples/brief_policy.yaml")
RANDOM = ("--set", "model.weights=random")
LLAMA = ("validate", "workloads/llama_infer.yaml")
TWO = ("--set", "cells.batch=[2]")
HOST_BOUND = ("--set", "cells.batch=[1]", "--set", "cells.sequence=[128]")
DEVICE_BOUND = ("--set", "cells.batch=[256]", "--set", "cells.sequence=[512]")
IDENTICAL = ("selftest", "--device", "cuda", "--set", "model.dtype=bfloat16", "--op", "rms_norm", "--identical")


@dataclass(frozen=True)
class Piece:
    """One stored run."""

    command: Sequence[str]
    """What follows `e2e`."""
    codes: Sequence[int]
    """Exit codes of a run that says what the stored one is there to say."""
    limit_s: int
    """Of the whole command; a validation gets it as its budget, less what starting and storing take."""

    def arguments(self, out: Path) -> list[str]:
        """All of them, with a budget."""
        budget = ["--budget", str(self.limit_s - MARGIN_S)] if self.command[0] in ("validate", "selftest") else []
        return [*self.command, *budget, "--out", str(out)]


MARGIN_S = 30

PIECES = {
    "h200-prefill": Piece((*LLAMA, "--kernel", "kernels/rmsnorm.cu", *RANDOM, *SHORT), (10,), 590),
    "h200-decode": Piece(
        ("validate", "workloads/llama_decode.yaml", "--kernel", "kernels/rmsnorm.cu", *RANDOM, *SHORT), (10,), 360
    ),
    "h200-confirmed": Piece(
        (
            *("validate", "workloads/planted_slow_op.yaml", "--kernel", "kernels/leaky_integrator.cu"),
            *("--set", "model.dtype=bfloat16", "--set", "cells.batch=[16]", "--set", "cells.sequence=[512]", *SHORT),
        ),
        (0,),
        300,
    ),
    "h200-incorrect": Piece((*LLAMA, "--kernel", "tests/kernels/wrong_epsilon.cu", *RANDOM, *SHORT), (12,), 120),
    "h200-liger-rms-norm": Piece(
        (
            *(*LLAMA, "--kernel", "liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply", "--op", "rms_norm"),
            *(*RANDOM, *TWO, *BRIEF),
        ),
        (10, 11),
        200,
    ),
    "h200-liger-silu-mul": Piece(
        (
            *(*LLAMA, "--kernel", "liger_kernel.ops.swiglu:LigerSiLUMulFunction.apply", "--op", "silu_mul"),
            *(*RANDOM, *TWO, *BRIEF),
        ),
        (0, 10, 11),
        200,
    ),
    "h200-two-kernels": Piece(
        (
            *(*LLAMA, "--kernel", "kernels/rmsnorm.cu"),
            *("--kernel", "liger_kernel.ops.swiglu:LigerSiLUMulFunction.apply", *RANDOM, *TWO, *BRIEF),
        ),
        (0, 10, 11),
        240,
    ),
    "h200-train": Piece(
        ("validate", "workloads/llama_train.yaml", "--kernel", "kernels/rmsnorm.cu", *RANDOM, *BRIEF), (10, 11), 360
    ),
    "h200-identical/host-bound": Piece((*IDENTICAL, *HOST_BOUND, "--runs", "10"), (0,), 190),
    "h200-identical/device-bound": Piece((*IDENTICAL, *DEVICE_BOUND, "--runs", "8"), (0,), 210),
}
"""By folder under `results/`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the named pieces, in the order named, while the time allows; 0 only if each ended as it must."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(PIECES)}")
    parser.add_argument("--list", action="store_true", help="print every piece's command and run nothing")
    parser.add_argument("--within", type=int, default=10**6, metavar="SECONDS", help="begin no piece that needs longer")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in PIECES]
    if unknown:
        parser.error(f"no piece is called {unknown[0]}: {', '.join(PIECES)}")
    if asked.list:
        for name, piece in PIECES.items():
            print(f"{name}:\n    e2e {shlex.join(piece.command)}")
        return 0
    started, is_good = time.monotonic(), True
    for name in asked.names:
        left_s = asked.within - (time.monotonic() - started)
        is_made = PIECES[name].limit_s <= left_s and _made(name, PIECES[name])
        print(f"== {name}: {'stored' if is_made else 'not stored'}, {time.monotonic() - started:.0f} s", flush=True)
        is_good &= is_made
    return 0 if is_good else 1


def _made(name: str, piece: Piece) -> bool:
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        out = Path(folder) / "results"
        command = [sys.executable, "-m", "e2e", *piece.arguments(out)]
        print(f"== {name}: e2e {shlex.join(piece.arguments(RESULTS))}", flush=True)
        try:
            code = subprocess.run(command, timeout=piece.limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
        made = list(out.iterdir()) if out.is_dir() else []
        if code not in piece.codes or len(made) != 1:
            print(f"== {name}: exit code {code}, wanted {' or '.join(map(str, piece.codes))}; {len(made)} results")
            return False
        keep(made[0], RESULTS / name)
    return True


def keep(run: Path, place: Path) -> None:
    """Put a run's files where they are stored, with the run's own folder and this machine's cut off all paths."""
    if run.is_file():
        place = place.with_suffix(run.suffix)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_cut(run.read_text(), run.parent))
        return
    shutil.rmtree(place, ignore_errors=True)
    for file in sorted(run.rglob("*")):
        relative = file.relative_to(run)
        if file.is_file() and relative.parts[0] != "traces":
            target = place / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_cut(file.read_text(), run.parent))
    if (place / RESULT).exists():
        digest = hashlib.sha256((place / RESULT).read_bytes()).hexdigest()
        (place / DIGEST).write_text(f"{digest}  {RESULT}\n")


def _cut(text: str, out: Path) -> str:
    for folder, shown in ((f"{out}", f"{RESULTS}"), (f"{Path.cwd()}/", "")):
        text = text.replace(folder, shown)
    for folder in sorted({path for path in sys.path if path.startswith("/")}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


if __name__ == "__main__":
    sys.exit(main())
