"""AutoKernel's starter for RMSNorm, in plain torch."""

KERNEL_TYPE = "rmsnorm"

import torch  # noqa: E402


def kernel_fn(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, block_size: int = 1024) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
