"""KernelBench: a Python file with `class ModelNew(nn.Module)`, CUDA in strings or not. Needs --op."""

from __future__ import annotations

import ast

from e2e.formats._python import op_for, python_file
from e2e.schema.kernel import Kernel, Manifest

_CLASS = "ModelNew"


class KernelBenchFormat:
    """Reads the candidate's module; `get_init_inputs` is asked where a site does not say what a constructor needs."""

    def read(self, spec: str, *, op: str | None) -> Kernel | None:
        """The kernel in a file with a `ModelNew`; None for anything else.

        Raises:
            UsageError: `ModelNew` is no module or has no forward, or nothing says which op it replaces.

        Source:
            ScalingIntelligence/KernelBench, `eval.py`.
        """
        file = python_file(spec)
        model = file.class_called(_CLASS) if file else None
        if file is None or model is None:
            return None
        if not any("Module" in ast.unparse(base) for base in model.bases):
            raise file.refused(model, f"{_CLASS}: must be derived from torch.nn.Module, as KernelBench has it")
        if not any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in model.body):
            raise file.refused(model, f"{_CLASS}: has no `forward`; write `def forward(self, x): ...`")
        return Kernel(
            spec=spec,
            path=str(file.path),
            sha256=file.sha256,
            manifest=Manifest(
                op=op_for(op, file.path.stem, f"{file.shown}:{model.lineno}: {_CLASS}"),
                entry=_CLASS,
                binding="module",
                device=file.device,
            ),
            format="kernelbench",
        )


PLUGIN = KernelBenchFormat()
