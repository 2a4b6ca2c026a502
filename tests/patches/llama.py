"""Patches in the manner of Liger: they change classes, modules and files of code by themselves."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

EPSILON = 1e-5


def fused_norm(self: nn.Module, hidden_states: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True) * hidden_states.shape[-1] ** -0.5
    return hidden_states * self.weight / torch.sqrt(size * size + self.variance_epsilon)


def fused_mlp(self: Any, x: Tensor) -> Tensor:
    gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, dim=-1)
    return self.down_proj(up * gate * torch.sigmoid(gate))


def fused_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    half = q.shape[-1] // 2

    def turned(x: Tensor) -> Tensor:
        first, second = x[..., :half], x[..., half:]
        low = torch.addcmul(first * cos[..., :half], second, sin[..., :half], value=-1)
        return torch.cat([low, torch.addcmul(first * sin[..., half:], second, cos[..., half:])], dim=-1)

    return turned(q), turned(k)


class FusedNorm(nn.Module):
    """Takes the place of the model's class before a model is built."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    forward = fused_norm


def on_model(model: nn.Module) -> None:
    """Instances of the model it is given, and a function that its attention calls by name."""
    modeling_llama.apply_rotary_pos_emb = fused_rope
    modeling_llama.LlamaRMSNorm = FusedNorm
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.in_place = True
            module.forward = types.MethodType(fused_norm, module)
        elif type(module).__name__ == "LlamaMLP":
            module.forward = types.MethodType(fused_mlp, module)


def before_model() -> None:
    """Classes and functions, before there is a model."""
    modeling_llama.LlamaRMSNorm = FusedNorm
    modeling_llama.LlamaMLP.forward = fused_mlp
    modeling_llama.apply_rotary_pos_emb = fused_rope


def on_classes(model: nn.Module) -> None:
    """Attributes of classes, and a helper that another function of the file calls by name."""
    modeling_llama.LlamaRMSNorm.forward = fused_norm
    modeling_llama.rotate_half = lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rope_only(model: nn.Module) -> None:
    """A function that attention calls by name: no site takes one tensor."""
    modeling_llama.apply_rotary_pos_emb = fused_rope


def with_options(rms_norm: bool = True, mlp: bool = False, model: nn.Module | None = None) -> None:
    """As Liger's: it takes a model among other things."""
    assert model is not None
    on_model(model)


def wrong(model: nn.Module) -> None:
    """A norm that forgets its epsilon and its last column."""

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        out = fused_norm(self, hidden_states)
        return torch.cat([out[..., :-1], torch.zeros_like(out[..., -1:])], dim=-1)

    modeling_llama.LlamaRMSNorm.forward = forward


def nothing(model: nn.Module) -> None:
    """Changes nothing that a Llama uses."""


def raises(model: nn.Module) -> None:
    raise ValueError("this architecture is not supported")


def needs_more(model: nn.Module, level: int) -> None:
    """Cannot be called with a model alone."""


def breaks_graph(model: nn.Module) -> None:
    """Right, but no compiler gets through it in one piece."""

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return fused_norm(self, hidden_states)

    modeling_llama.LlamaRMSNorm.forward = forward


def everywhere(model: nn.Module) -> None:
    """A function that code finds by a path: no model can have its own."""
    silu = F.silu
    F.silu = lambda x, inplace=False: silu(x) * 1.5


def in_weights(model: nn.Module) -> None:
    """Writes into the weights, which other arms use as well."""
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
