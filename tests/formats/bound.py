"""What the tests of foreign formats do with a spec: read it, be refused, bind it on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e import registry
from e2e.errors import UsageError
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel

HERE = Path(__file__).parent


def refusal(spec: Path | str, *, op: str | None = None) -> str:
    """The message, which names what was given."""
    with pytest.raises(UsageError) as caught:
        read_kernel(str(spec), op=op)
    assert caught.value.exit_code == 2
    return caught.value.message


def bound(kernel: Kernel, cache: Path, *, op: Any = None) -> Callable[..., Any]:
    """The kernel's call of its op, built and bound as a run does it."""
    builder = registry.load("builders", kernel.manifest.binding)
    built = builder.build(kernel, BuildTarget(device="cpu", arch=None, cache=cache, timeout_s=300.0))
    call: Callable[..., Any] = builder.bind(built, op or registry.load_op(kernel.manifest.op), "float32")
    return call


def check_norm(
    call: Callable[..., Any], *, hidden: int = 384, eps: float = 1e-5, shape: tuple[int, ...] = (2, 3)
) -> None:
    """Rows with any leading dimensions, weights that are not one, an epsilon that matters."""
    import torch

    x, weight = torch.randn(*shape, hidden) * 3e-3, torch.randn(hidden)
    expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
    torch.testing.assert_close(call(x, weight, eps), expected)
