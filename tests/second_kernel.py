"""How much sooner a second kernel on the same workload is known: two runs in a fresh cache, the second of other bytes.

    python -m tests.second_kernel [WORKLOAD KERNEL] [--policy NAME]

Prints seconds and ratios of a run until `check` and of a whole one; exit code 1 when a bound is missed. The machine
must be quiet: each figure is one run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from e2e import store
from e2e.schema.words import Stage

REPOSITORY = Path(__file__).parents[1]
WORKLOAD, KERNEL = "workloads/tiny_llama_infer.yaml", "kernels/rmsnorm.cpp"
BOUNDS = {Stage.CHECK: 0.4, Stage.VERDICT: 0.7}
"""Of the first kernel's time, the most that the second one's may take."""


class Run(NamedTuple):
    """One run; seconds since the cell began, when each stage was finished, and of the whole command."""

    stages: dict[Stage, float]
    whole_s: float


def main() -> int:
    """Both kernels, to either depth; says which bounds were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default=WORKLOAD)
    parser.add_argument("kernel", nargs="?", default=KERNEL)
    parser.add_argument("--policy", default="demo")
    asked = parser.parse_args()
    missed = 0
    print(f"{asked.workload}, {asked.kernel}, policy {asked.policy}")
    print(f"{'run until':<10}{'time of':<10}{'first':>9}{'second':>9}{'ratio':>8}{'bound':>8}")
    for until, bound in BOUNDS.items():
        first, second = pair(asked.workload, asked.kernel, asked.policy, until)
        for stage in Stage:
            if stage in first.stages and stage in second.stages:
                is_bound = stage is until
                missed += is_bound and second.stages[stage] > bound * first.stages[stage]
                shown = f"{bound:>7.0%}" if is_bound else ""
                print(row(str(until), str(stage), first.stages[stage], second.stages[stage]), shown)
        print(row(str(until), "command", first.whole_s, second.whole_s))
    return 1 if missed else 0


def row(until: str, what: str, first_s: float, second_s: float) -> str:
    """One line of the table."""
    return f"{until:<10}{what:<10}{first_s:>7.1f} s{second_s:>7.1f} s{second_s / first_s:>8.0%}"


def pair(workload: str, kernel: str, policy: str, until: Stage) -> tuple[Run, Run]:
    """The kernel in an empty cache, then a copy of it with one more comment."""
    with tempfile.TemporaryDirectory(prefix="e2e-second-") as folder:
        copy = Path(folder) / Path(kernel).name
        sign = "#" if copy.suffix == ".py" else "//"
        copy.write_text(f"{(REPOSITORY / kernel).read_text()}\n{sign} a second kernel\n")
        runs = [one(workload, str(file), policy, until, Path(folder) / str(n)) for n, file in enumerate((kernel, copy))]
    return runs[0], runs[1]


def one(workload: str, kernel: str, policy: str, until: Stage, out: Path) -> Run:
    """One run of the command; its cache is beside its results, and so the pair's."""
    command = ["validate", workload, "--kernel", kernel, "--policy", policy, "--until", until, "--out", str(out)]
    environment = {**os.environ, "E2E_CACHE_DIR": str(out.parent / "cache"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "e2e", *command],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    folders = list(out.glob("*/"))
    if len(folders) != 1:
        raise SystemExit(done.stderr)
    result = store.load(folders[0])
    if result.error is not None or not result.cells:
        raise SystemExit(done.stdout)
    return Run({end.stage: end.seconds for end in result.cells[0].evidence.stage_ends}, result.seconds)


if __name__ == "__main__":
    sys.exit(main())
