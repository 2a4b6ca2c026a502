"""How much sooner a second kernel on the same workload is known: two runs in a fresh cache, the second of other bytes.

    python -m tests.second_kernel [--policy NAME]

Prints seconds and ratios of runs until `check` and of whole ones; exit code 1 when a bound is missed. The machine must
be quiet: each figure is one run.
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


class Case(NamedTuple):
    """What is run, how far, and how much of the first kernel's time the second one's may take there."""

    workload: str
    kernel: str
    until: Stage
    bound: float


CASES = (
    Case("workloads/tiny_llama_infer.yaml", "kernels/rmsnorm.cpp", Stage.CHECK, 0.4),
    Case("workloads/planted_slow_op.yaml", "kernels/leaky_integrator.cpp", Stage.VERDICT, 0.7),
)


class Run(NamedTuple):
    """One run; seconds since the cell began, when each stage was finished, and of the whole command."""

    stages: dict[Stage, float]
    whole_s: float


def main() -> int:
    """Every case with both kernels; says which bounds were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="demo")
    policy = parser.parse_args().policy
    missed = 0
    print(f"policy {policy}")
    print(f"{'workload':<18}{'run until':<11}{'time to':<9}{'first':>9}{'second':>9}{'ratio':>7}{'bound':>7}")
    for case in CASES:
        first, second = pair(case, policy)
        for stage in Stage:
            if stage in first.stages and stage in second.stages:
                is_last = stage is case.until
                missed += is_last and second.stages[stage] > case.bound * first.stages[stage]
                print(row(case, stage, first.stages[stage], second.stages[stage]), f"{case.bound:>6.0%}" * is_last)
        print(row(case, "end", first.whole_s, second.whole_s))
    return 1 if missed else 0


def row(case: Case, what: str, first_s: float, second_s: float) -> str:
    """One line of the table."""
    return (
        f"{Path(case.workload).stem:<18}{case.until:<11}{what:<9}{first_s:>7.1f} s{second_s:>7.1f} s"
        f"{second_s / first_s:>7.0%}"
    )


def pair(case: Case, policy: str) -> tuple[Run, Run]:
    """The kernel in an empty cache, then a copy of it with one more comment."""
    with tempfile.TemporaryDirectory(prefix="e2e-second-") as folder:
        copy = Path(folder) / Path(case.kernel).name
        sign = "#" if copy.suffix == ".py" else "//"
        copy.write_text(f"{(REPOSITORY / case.kernel).read_text()}\n{sign} a second kernel\n")
        runs = [one(case, str(file), policy, Path(folder) / str(n)) for n, file in enumerate((case.kernel, copy))]
    return runs[0], runs[1]


def one(case: Case, kernel: str, policy: str, out: Path) -> Run:
    """One run of the command; its cache is beside its results, and so the pair's."""
    command = ["validate", case.workload, "--kernel", kernel, "--policy", policy]
    command += ["--until", case.until, "--out", str(out)]
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
