"""Root-mean-square normalisation: (x[..., hidden], weight[hidden], eps) -> y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw
from e2e.ops._mistakes import rows_rolled, without_last_row
from e2e.ops._sites import InModules
from e2e.protocols import OpCall, Site

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_CLASSES = (
    *("rmsnorm", "t5layernorm", "pix2structlayernorm", "pop2pianolayernorm", "switchtransformerslayernorm"),
    "udoplayernorm",
)
"""In names of classes: T5 and what follows it call a norm without mean and bias a layer norm."""


class RmsNorm(InModules):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    Shapes:
        x (..., H), weight (H,) -> (..., H); same dtype as x.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467; LlamaRMSNorm in transformers.
    """

    name = "rms_norm"
    tensor_names = ("x", "weight")
    scalar_names = ("eps",)
    schema = "(Tensor x, Tensor weight, float eps) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.rms_norm": _torch_rms_norm}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules that hold one vector `weight` and an epsilon, and are called RMS norms, or as T5 calls its own.

        Transformers marks replaceable layers with `kernel_layer_name`; other models are found by class name.
        Whether such a module really computes this op is for the conformance check to say, on its activations.
        """
        sites = []
        for fqn, module in model.named_modules():
            layer, kind = getattr(module, "kernel_layer_name", None), type(module).__name__.lower()
            if layer != "RMSNorm" and not any(name in kind for name in _CLASSES):
                continue
            sites.append(self._site(fqn, module))
        return sites

    def _site(self, fqn: str, module: nn.Module) -> Site:
        parameters = dict(module.named_parameters())
        eps = next((getattr(module, name) for name in _EPS_NAMES if hasattr(module, name)), None)
        problem = None
        if set(parameters) != {"weight"} or parameters["weight"].dim() != 1:
            problem = f"it has parameters {sorted(parameters) or 'none'}; rms_norm needs one vector `weight`"
        elif not isinstance(eps, float):
            problem = f"no epsilon was found under {', '.join(_EPS_NAMES)}"
        return Site(fqn, module, {"eps": eps}, problem)

    def reference(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Plain maths in the precision it is given; float64 is the trusted one."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def allocate(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """An uninitialised y."""
        return torch.empty_like(x)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions), `hidden`, `dtype`."""
        x = call.tensors[0]
        hidden = int(x.shape[-1])
        return {
            "rows": x.numel() // hidden if hidden else 0,
            "hidden": hidden,
            "dtype": str(x.dtype).removeprefix("torch."),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Rows of a model's width, with weights around one."""
        draw = Draw.of(dtype, device, seed)
        return OpCall((draw.made(draw.normal(4, 64, 1024)), draw.made(1 + 0.2 * draw.normal(1024))), (1e-5,))

    def variants(self, dtype: str, device: str, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Widths that no vector divides, and another epsilon."""
        draw = Draw.of(dtype, device, seed)
        for hidden, eps in ((37, 1e-5), (1000, 1e-6), (1, 1e-5)):
            x, weight = draw.made(draw.normal(5, hidden)), draw.made(1 + 0.2 * draw.normal(hidden))
            yield f"hidden {hidden}, eps {eps:g}", OpCall((x, weight), (eps,))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Hard inputs at the call's width: values that hide bugs at other scales, layouts, and few rows."""
        x = call.tensors[0]
        (eps,) = call.scalars
        hidden, drawn = x.shape[-1], Draw(seed, x)
        draw, make = drawn.normal, drawn.made

        # Trained norms can have weights near one value, and fresh ones are all ones: an ignored weight must show.
        strange = make(draw(hidden) + 1.5)
        spikes = draw(4, hidden)
        spikes[:, ::97] *= 1e3
        yield "random weight", OpCall((make(draw(5, hidden)), strange), (eps,))
        yield "one row", OpCall((make(draw(1, hidden)), strange), (eps,))
        # mean(x^2) near eps: a missing or wrong epsilon changes the result by a large factor only here
        yield "small magnitude", OpCall((make(draw(4, hidden) * eps**0.5), strange), (eps,))
        yield "large magnitude", OpCall((make(draw(4, hidden) * 2e2), strange), (eps,))
        yield "outlier channels", OpCall((make(spikes), strange), (eps,))
        yield "offset mean", OpCall((make(draw(4, hidden) + 8.0), strange), (eps,))
        yield (
            "constant rows",
            OpCall((make(torch.full((3, hidden), 0.75, dtype=torch.float64)), strange), (eps,)),
        )
        yield "zeros", OpCall((make(torch.zeros(2, hidden, dtype=torch.float64)), strange), (eps,))
        yield "no rows", OpCall((make(draw(0, hidden)), strange), (eps,))
        yield "three leading dimensions", OpCall((make(draw(2, 3, 2, hidden)), strange), (eps,))

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong rms_norms, one mistake each."""
        return {
            "zeros": lambda x, w, eps: torch.zeros_like(x),
            "copy of the input": lambda x, w, eps: x.clone(),
            "mean of the output": lambda x, w, eps: self._as(x, self._exact(x, w, eps).mean() + 0 * x.double()),
            "weight ignored": lambda x, w, eps: self._as(x, self._exact(x, torch.ones_like(w), eps)),
            "weight applied twice": lambda x, w, eps: self._as(x, self._exact(x, w, eps) * w.double()),
            "weight plus one": lambda x, w, eps: self._as(x, self._exact(x, w.double() + 1, eps)),
            "no epsilon": lambda x, w, eps: self._as(x, self._exact(x, w, 1e-30)),
            "ten times epsilon": lambda x, w, eps: self._as(x, self._exact(x, w, 10 * eps)),
            "mean subtracted": lambda x, w, eps: self._as(
                x, self._exact(x.double() - x.double().mean(-1, keepdim=True), w, eps)
            ),
            "last column dropped": lambda x, w, eps: self._as(x, self._exact(x, w, eps) * _but_last(x)),
            "last row dropped": lambda x, w, eps: self._as(x, without_last_row(self._exact(x, w, eps))),
            "neighbouring rows swapped": lambda x, w, eps: self._as(x, rows_rolled(self._exact(x, w, eps))),
            "5 % of the reduction dropped": lambda x, w, eps: self._as(x, self._short(x, w, eps)),
        }

    def _exact(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.reference(x.double(), weight.double(), eps)

    def _short(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kept = max(1, int(x.shape[-1] * 0.95))
        mean = x.double()[..., :kept].pow(2).mean(-1, keepdim=True) * kept / max(1, x.shape[-1])
        return x.double() * torch.rsqrt(mean + eps) * weight.double()

    @staticmethod
    def _as(x: Tensor, value: Tensor) -> Tensor:
        return value.to(x.dtype)


def _torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def _but_last(x: Tensor) -> Tensor:
    keep = torch.ones(x.shape[-1], dtype=torch.float64, device=x.device)
    keep[-1:] = 0
    return keep


PLUGIN = RmsNorm()
