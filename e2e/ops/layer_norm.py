"""Layer normalisation over the last dimension: (x[..., hidden], weight[hidden], bias[hidden] or None, eps) -> y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import rows_rolled, without_last_column, without_last_row
from e2e.ops._sites import InModules
from e2e.protocols import OpCall, Site

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")


class LayerNorm(InModules):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last dimension; var divides by H.

    Shapes:
        x (..., H), weight (H,), bias (H,) or None -> (..., H); same dtype as x.

    Source:
        Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch.nn.LayerNorm.
    """

    name = "layer_norm"
    tensor_names = ("x", "weight", "bias")
    scalar_names = ("eps",)
    schema = "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor"

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {"F.layer_norm": _torch_layer_norm}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Layer norms of torch, and modules that call themselves layer norms.

        Some that do are RMS norms, as T5's: the conformance check sees that on their activations.
        """
        return [self._site(fqn, module) for fqn, module in model.named_modules() if _is_kin(module)]

    def _site(self, fqn: str, module: nn.Module) -> Site:
        eps = next((getattr(module, name) for name in _EPS_NAMES if hasattr(module, name)), None)
        return Site(fqn, module, {"eps": eps}, self._problem(module, eps))

    @staticmethod
    def _problem(module: nn.Module, eps: Any) -> str | None:
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        normalized = getattr(module, "normalized_shape", None)
        if isinstance(normalized, tuple) and len(normalized) != 1:
            return f"it normalises over {len(normalized)} dimensions; layer_norm over the last one"
        if "weight" not in shapes:
            return "it has no weight"
        if not set(shapes) <= {"weight", "bias"} or any(len(shape) != 1 for shape in shapes.values()):
            return f"it has parameters {shapes}; layer_norm needs a vector `weight` and at most one more, `bias`"
        if not isinstance(eps, float):
            return f"no epsilon was found under {', '.join(_EPS_NAMES)}"
        return None

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Plain maths in the precision it is given; float64 is the trusted one."""
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight
        return scaled if bias is None else scaled + bias

    def allocate(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """An uninitialised y; torch's is contiguous, whatever x is."""
        return x.new_empty(x.shape)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions), `hidden`, `dtype`."""
        x = call.tensors[0]
        hidden = int(x.shape[-1])
        return {"rows": x.numel() // max(1, hidden), "hidden": hidden, "dtype": name_of(x.dtype)}

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """Rows of a model's width, with weights around one and small biases."""
        draw = Draw.of(dtype, device, seed)
        state = draw.made(1 + 0.2 * draw.normal(1024)), draw.made(0.2 * draw.normal(1024))
        return OpCall((draw.made(draw.normal(4, 64, 1024)), *state), (1e-5,))

    def variants(self, dtype: str, device: str, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Widths that no vector divides, another epsilon, no bias."""
        draw = Draw.of(dtype, device, seed)
        for hidden, eps, has_bias in ((37, 1e-5, True), (1000, 1e-6, True), (333, 1e-5, False)):
            x, weight = draw.made(draw.normal(5, hidden)), draw.made(1 + 0.2 * draw.normal(hidden))
            bias = draw.made(draw.normal(hidden)) if has_bias else None
            yield f"hidden {hidden}, {'with' if has_bias else 'no'} bias", OpCall((x, weight, bias), (eps,))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """Hard inputs at the call's width: values that hide bugs at other scales, layouts, and few rows.

        No constant rows: whether their variance comes out as nothing is rounding luck, and eps makes much of it.
        """
        x, _, bias = call.tensors
        hidden, draw = x.shape[-1], Draw(seed, x)
        # Fresh norms have weights of one and biases of zero: an ignored one must show.
        weight = draw.made(draw.normal(hidden) + 1.5)
        offset = None if bias is None else draw.made(draw.normal(hidden))

        def rows(values: Tensor) -> OpCall:
            return of(draw.made(values))

        def of(x: Tensor) -> OpCall:
            return OpCall((x, weight, offset), call.scalars)

        spikes = draw.normal(4, hidden)
        spikes[:, ::97] *= 1e2
        yield "random values", rows(draw.normal(5, hidden))
        yield "one row", rows(draw.normal(1, hidden))
        # variance near eps: a missing or wrong epsilon changes the result by a large factor only here
        yield "small magnitude", rows(draw.normal(4, hidden) * call.scalars[0] ** 0.5)
        yield "large magnitude", rows(draw.normal(4, hidden) * 2e2)
        yield "outlier channels", rows(spikes)
        yield "offset mean", rows(draw.normal(4, hidden) + 0.9)
        yield "each row about another mean", rows(draw.normal(6, hidden) + draw.normal(6, 1) * 0.5)
        yield "zeros", rows(draw.normal(2, hidden) * 0)
        yield "no rows", rows(draw.normal(0, hidden))
        yield "three leading dimensions", rows(draw.normal(2, 3, 2, hidden))
        yield "the first columns of wider rows", of(draw.made(draw.normal(3, hidden + 16))[:, :hidden])

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong layer norms, one mistake each."""
        exact = self.reference

        def wrong(change: Callable[..., Tensor]) -> Callable[..., Any]:
            def mutant(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
                return change(x.double(), weight.double(), None if bias is None else bias.double(), eps).to(x.dtype)

            return mutant

        return {
            "zeros": lambda x, w, b, eps: torch.zeros_like(x),
            "copy of the input": lambda x, w, b, eps: x.clone(),
            "weight ignored": wrong(lambda x, w, b, eps: exact(x, torch.ones_like(w), b, eps)),
            "weight plus one": wrong(lambda x, w, b, eps: exact(x, w + 1, b, eps)),
            "bias ignored, or made up where there is none": wrong(lambda x, w, b, eps: exact(x, w, _other(b, w), eps)),
            "bias under the weight": wrong(lambda x, w, b, eps: exact(x, w, w if b is None else b * w, eps)),
            "mean not subtracted": wrong(lambda x, w, b, eps: _about_zero(x, w, b, eps)),
            "mean of all rows": wrong(lambda x, w, b, eps: _about(x.mean(), x, w, b, eps)),
            "no epsilon": wrong(lambda x, w, b, eps: exact(x, w, b, 1e-30)),
            "ten times epsilon": wrong(lambda x, w, b, eps: exact(x, w, b, 10 * eps)),
            "variance for its root": wrong(lambda x, w, b, eps: _squared(x, w, b, eps)),
            "5 % of the variance dropped": wrong(lambda x, w, b, eps: _short(x, w, b, eps)),
            "neighbouring rows swapped": wrong(lambda x, w, b, eps: rows_rolled(exact(x, w, b, eps))),
            "last column dropped": wrong(lambda x, w, b, eps: without_last_column(exact(x, w, b, eps))),
            "last row dropped": wrong(lambda x, w, b, eps: without_last_row(exact(x, w, b, eps))),
        }


def _is_kin(module: nn.Module) -> bool:
    names = (type(module).__name__, str(getattr(module, "kernel_layer_name", None) or ""))
    return isinstance(module, nn.LayerNorm) or any("layernorm" in name.lower() for name in names)


def _torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _scaled(y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return y * weight if bias is None else y * weight + bias


def _other(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    return weight if bias is None else None


def _about(mean: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    centred = x - mean
    return _scaled(centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps), weight, bias)


def _about_zero(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return _about(torch.zeros_like(x[..., :1]), x, weight, bias, eps)


def _squared(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return _scaled(centred / (centred.pow(2).mean(-1, keepdim=True) + eps), weight, bias)


def _short(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    kept = max(1, int(x.shape[-1] * 0.95))
    variance = centred[..., :kept].pow(2).sum(-1, keepdim=True) / max(1, x.shape[-1])
    return _scaled(centred * torch.rsqrt(variance + eps), weight, bias)


PLUGIN = LayerNorm()
