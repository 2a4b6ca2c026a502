"""Plants a slow op in a real model: a smoothing over time, written as one big tensor expression.

It stands for code that people really have: a linear recurrence with no PyTorch operator for it, spelled as its full
response matrix, quadratic in time. It compiles in one piece, and no fusion makes it linear. A kernel for it has
something to win; `workloads/planted_slow_op.yaml` shows it.
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
        self.leak = nn.Parameter(leak)

    def forward(self, x: Tensor) -> Tensor:
        time = torch.arange(x.shape[1], device=x.device)
        age = (time[:, None] - time[None, :])[:, :, None]  # (S, S, 1): how long ago s was at t
        # an exponential beyond float32, of ages before 0, would make gradients NaN
        decay = torch.exp(age.clamp_min(0) * torch.log(self.leak))
        response = decay * (1 - self.leak)
        # chosen here and not in `response`: 0 times a NaN to come would be one, in all that came before it
        return torch.where(age >= 0, response * x[:, None], 0.0).sum(2).to(x.dtype)


class Smoothed(nn.Module):
    """A block's MLP on input whose first channels, as many as there are leaks, are smoothed."""

    def __init__(self, mlp: nn.Module, leak: Tensor) -> None:
        super().__init__()
        self.integrator = LeakyIntegrator(leak)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        smooth = self.integrator.leak.numel()
        return self.mlp(torch.cat([self.integrator(x[..., :smooth].contiguous()), x[..., smooth:]], dim=-1))


def build(model: nn.Module) -> nn.Module:
    """Smooth half of the channels before the MLP of the first decoder layer; small leaks keep the model itself."""
    layer = model.model.layers[0]
    weight = layer.input_layernorm.weight
    leak = torch.linspace(0.05, 0.25, weight.numel() // 2, device=weight.device).to(weight.dtype)
    layer.mlp = Smoothed(layer.mlp, leak)
    return model
