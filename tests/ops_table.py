"""Every op and every shipped kernel on one device: honest ways to compute it pass, wrong ones are caught.

    python -m tests.ops_table [--device cuda] [--kernels]

One row an op and dtype: inputs of the op check, PyTorch's alternatives that pass it, those that refuse some inputs
aloud, and the op's mutants that it rejects on these inputs. With `--kernels` also what `e2e check` says of the files in
`kernels/` that is for the device. Exits with 1 where a mutant survives or something honest is rejected.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from e2e import check_kernel, registry
from e2e.numerics.conformance import LOUD
from e2e.numerics.exercise import run_calls
from e2e.numerics.op_level import OpExaminer
from e2e.protocols import Op
from e2e.reading import read_kernel
from e2e.schema.evidence import EXAMPLE
from e2e.schema.kernel import OF_MODELS

RATIO = 2.0
DTYPES = ("float32", "bfloat16", "float16")
SHIPPED = Path(__file__).parents[1] / "kernels"


@dataclass
class Score:
    """What was caught and passed, and what should have been."""

    mutants: int = 0
    caught: int = 0
    honest: int = 0
    passed: int = 0

    def __str__(self) -> str:
        return f"mutants caught: {self.caught} of {self.mutants}; honest passed: {self.passed} of {self.honest}"

    @property
    def is_full(self) -> bool:
        return self.mutants == self.caught and self.honest == self.passed


def rejected(op: Op, examiner: OpExaminer, function: Callable[..., Any], folder: Path, device: str) -> dict[str, str]:
    """Inputs that the op check rejects, or the function refuses aloud, by label: `wrong`, `declined`."""
    inputs, outputs = folder / "calls", folder / "outputs.st"
    try:
        remarks = run_calls(op, function, inputs=inputs, outputs=outputs, constraints=[], device=device)
    except LOUD:  # it is not for this dtype
        return {EXAMPLE: "declined"}
    rows = examiner.compare_ops(outputs=outputs, ratio=RATIO)
    found = {}
    for row, remark in zip(rows, remarks, strict=True):
        if remark.get("declined"):
            found[row["label"]] = "declined"
        elif row["status"] == "wrong":
            found[row["label"]] = "wrong"
    return found


def row(name: str, dtype: str, device: str, score: Score) -> str:
    """A row of the table."""
    op = registry.load_op(name)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        examiner = OpExaminer(op, device)
        calls = examiner.draw(dtype=dtype, seed=1, path=folder / "calls")["calls"]
        passed, refused = [], []
        for label, function in op.alternatives.items():
            found = rejected(op, examiner, function, folder, device)
            wrong = [item for item, status in found.items() if status == "wrong"]
            score.honest += 1
            score.passed += not wrong
            shown = label if not wrong else f"{label} (not on: {', '.join(wrong)})"
            (refused if found and not wrong else passed).append(shown)
        mutants = examiner.mutants(ratio=RATIO)
    caught = sum(item["caught"] for item in mutants)
    score.mutants += len(mutants)
    score.caught += caught
    survivors = [item["name"] for item in mutants if not item["caught"]]
    said = f"{caught} of {len(mutants)}" + (f" (not {', '.join(survivors)})" if survivors else "")
    return f"| {name} | {dtype} | {calls} | {', '.join(passed) or '-'} | {', '.join(refused) or '-'} | {said} |"


def shipped(device: str, score: Score) -> list[str]:
    """A row for every kernel file and dtype that `e2e check` takes on the device."""
    lines = []
    kind = device.partition(":")[0]
    for file in sorted(item for item in SHIPPED.iterdir() if item.suffix in (".cpp", ".cu", ".py")):
        manifest = read_kernel(str(file), op=None).manifest
        if manifest.op.partition(":")[0] in OF_MODELS or (manifest.device or kind) != kind:
            continue
        for item in check_kernel(str(file), device=device, quiet=True).dtypes:
            score.honest += 1
            score.passed += item.outcome is None
            score.mutants += len(item.mutants)
            caught = sum(mutant.caught for mutant in item.mutants)
            score.caught += caught
            passed = sum(check.status == "passed" for check in item.inputs)
            cells = [file.name, item.dtype, f"{passed} of {len(item.inputs)}", f"{caught} of {len(item.mutants)}"]
            lines.append(f"| {' | '.join([*cells, 'passed' if item.outcome is None else item.outcome])} |")
    return lines


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernels", action="store_true", help="the kernels that this repository ships, too")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # why a backend of SDPA was not chosen
    name = "CPU" if asked.device == "cpu" else torch.cuda.get_device_name(asked.device)
    print(f"{name}, torch {torch.__version__}\n")
    print("| op | dtype | inputs | alternatives that pass | that refuse some input | mutants caught |")
    print("| --- | --- | ---: | --- | --- | ---: |")
    score = Score()
    for op in registry.names("ops"):
        for dtype in DTYPES if op not in OF_MODELS else ():
            print(row(op, dtype, asked.device, score), flush=True)
    if asked.kernels:
        print("\n| kernel | dtype | inputs passed | mutants caught | |\n| --- | --- | ---: | ---: | --- |")
        print("\n".join(shipped(asked.device, score)))
    print(f"\n{score}")
    return 0 if score.is_full else 1


if __name__ == "__main__":
    sys.exit(main())
