"""Plants a slow op in a real model: a smoothing over time, written the obvious way, token by token.

It stands for code that people really have: a recurrence with no PyTorch operator for it, and a check on its
values at every step, which torch.compile cannot take into a graph. A kernel for it has something to win;
`workloads/planted_slow_op.yaml` shows it.
"""

import torch
from torch import Tensor, nn


class LeakyIntegrator(nn.Module):
    """y[t] = (1 - leak) * x[t] + leak * y[t - 1], with y[-1] = 0, per channel.

    Shapes:
        x (B, S, H), leak (H,) -> (B, S, H).
    """

    def __init__(self, leak: Tensor) -> None:
        super().__init__()
        self.leak = nn.Parameter(leak, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        steps = []
        for token in x.unbind(1):
            state = (1 - self.leak) * token + self.leak * state
            if not bool(torch.isfinite(state).all()):
                raise ValueError("the state is not finite")
            steps.append(state)
        return torch.stack(steps, dim=1)


class Smoothed(nn.Module):
    """A block's MLP on smoothed input."""

    def __init__(self, mlp: nn.Module, leak: Tensor) -> None:
        super().__init__()
        self.integrator = LeakyIntegrator(leak)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.integrator(x))


def build(model: nn.Module) -> nn.Module:
    """Put a LeakyIntegrator before the MLP of every decoder layer; small leaks keep the model itself."""
    for layer in model.model.layers:
        weight = layer.input_layernorm.weight
        leak = torch.linspace(0.05, 0.25, weight.numel(), device=weight.device).to(weight.dtype)
        layer.mlp = Smoothed(layer.mlp, leak)
    return model
