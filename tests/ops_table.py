"""Every op on one device: honest ways to compute it pass, wrong ones are caught.

    python -m tests.ops_table [--device cuda]

One row an op and dtype: inputs, PyTorch's alternatives that pass the check of candidates, those that refuse some inputs
aloud, and the op's mutants that the check rejects on these inputs. Exits with 1 where a mutant survives.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from e2e import registry
from e2e.numerics.compare import exactly, judge_outputs
from e2e.numerics.conformance import LOUD
from e2e.protocols import Op, OpCall

RATIO = 2.0
DTYPES = ("float32", "bfloat16", "float16")


def wrong_on(op: Op, function: Callable[..., Any], calls: list[tuple[str, OpCall]], bases: list[Any]) -> list[str]:
    """Labels of inputs on which the check rejects the function."""
    found = []
    for (label, call), base in zip(calls, bases, strict=True):
        made = function(*call.tensors, *call.scalars)
        if judge_outputs(made, base, exactly(op, call), ratio=RATIO)[0] is not None:
            found.append(label)
    return found


def row(name: str, dtype: str, device: str) -> tuple[str, list[str]]:
    """A row of the table, and the mutants that survive."""
    op = registry.load_op(name)
    first = op.example(dtype, device, 1)
    calls = [("example", first), *op.edge_calls(first, 1)]
    plain = next(iter(op.alternatives.values()), op.reference)
    bases = [plain(*call.tensors, *call.scalars) for _, call in calls]
    passed, refused = [], []
    for label, function in op.alternatives.items():
        try:
            rejected = wrong_on(op, function, calls, bases)
        except LOUD:
            refused.append(label)
        else:
            passed.append(label if not rejected else f"{label} (not on: {', '.join(rejected)})")
    mutants = op.mutants()
    survivors = [label for label, function in mutants.items() if not wrong_on(op, function, calls, bases)]
    cells = [name, dtype, str(len(calls)), ", ".join(passed) or "-", ", ".join(refused) or "-"]
    return f"| {' | '.join(cells)} | {len(mutants) - len(survivors)} of {len(mutants)} |", survivors


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    warnings.simplefilter("ignore")  # why a backend of SDPA was not chosen
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    print(f"{name}, torch {torch.__version__}\n")
    print("| op | dtype | inputs | alternatives that pass | that refuse some input | mutants caught |")
    print("| --- | --- | ---: | --- | --- | ---: |")
    survivors: list[str] = []
    for op in registry.names("ops"):
        for dtype in DTYPES if op not in ("aten", "module") else ():
            text, left = row(op, dtype, device)
            survivors += [f"{op} {dtype}: {label}" for label in left]
            print(text, flush=True)
    print("\n".join(["", *survivors]) if survivors else "\nno mutant survives")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
