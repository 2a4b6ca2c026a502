"""CHILD: runs one kernel on a file of calls, under a sanitizer; the tool speaks, and this only counts.

Every call's tensors lie in memory of their own that ends where they do: what reads or writes beyond is seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from e2e import registry
from e2e.bound import bound_to
from e2e.integrity.isolation import die_with_parent
from e2e.numerics.captures import clone_call, load_calls
from e2e.numerics.conformance import LOUD
from e2e.numerics.constraints import declined_by
from e2e.protocols import Built


def main(request: Path) -> int:
    """Every call once; inputs that the kernel refuses are counted apart."""
    die_with_parent()
    asked = json.loads(request.read_text(encoding="utf-8"))
    built = Built.model_validate(asked["built"])
    kernel = built.kernel
    torch.set_num_threads(1)
    op = registry.load_op(kernel.manifest.op, kernel.op_sha256)
    call = bound_to(built, op, asked["dtype"]).call
    made = declined = 0
    for item in load_calls(Path(asked["calls"]), asked["device"]):
        given = clone_call(item.call)
        if declined_by(kernel.manifest.constraints, op.dims(given)) is not None:
            declined += 1
            continue
        try:
            call(*given.tensors, *given.scalars)
            if asked["device"] != "cpu":
                torch.cuda.synchronize()
            made += 1
        except LOUD:
            declined += 1
    Path(asked["done"]).write_text(json.dumps({"calls": made, "declined": declined}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
