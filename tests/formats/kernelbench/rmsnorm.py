"""A problem's answer as KernelBench asks for it: RMSNorm as a module with a weight of its own."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gamma


def get_inputs():
    return [torch.rand(16, 256)]


def get_init_inputs():
    return [256]
