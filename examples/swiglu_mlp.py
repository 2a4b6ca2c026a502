"""The whole feed-forward block of Llama as one op: (x[..., hidden], gate, up and down weights) -> y[..., hidden].

An op of your own, used as `--op examples/swiglu_mlp.py:SwigluMlp`. It is a class of modules that e2e does not know
by itself, so the module as Transformers wrote it, run in float64, says what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from e2e.ops.module import ModuleOp


class SwigluMlp(ModuleOp):
    """y = down(silu(gate(x)) * up(x)).

    Shapes:
        x (..., H), gate and up (F, H), down (H, F) -> (..., H); one dtype.

    Source:
        Shazeer 2020, arXiv:2002.05202.
    """

    def __init__(self) -> None:
        super().__init__("LlamaMLP", sample=small_mlp, takes=(4, 16, 64))
        self.name = "swiglu_mlp"
        self.alternatives: Mapping[str, Callable[..., Any]] = {"one matmul for gate and up": gate_and_up_together}

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Those of every module, and the mistake that is easiest to make with this one."""
        return {
            **super().mutants(),
            "gate and up swapped": lambda x, gate, up, down: self.reference(x, up, gate, down),
        }


def small_mlp() -> nn.Module:
    """For checks without a model."""
    return LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=128))


def gate_and_up_together(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What a user of PyTorch could write today."""
    gated, raised = F.linear(x, torch.cat([gate, up])).chunk(2, dim=-1)
    return F.linear(F.silu(gated) * raised, down)
