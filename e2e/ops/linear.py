"""Linear layer: (x[..., in], weight[out, in], bias[out] or None) -> y[..., out]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from e2e.ops._inputs import Draw, name_of
from e2e.ops._mistakes import rows_rolled, without_last_column, without_last_row
from e2e.ops._sites import InModules, standing_in
from e2e.protocols import OpCall, Site


class Linear(InModules):
    """y = x weight^T + bias.

    GPT-2's layers hold their weight the other way round, (in, out): there the weight of a call is a transposed view,
    with the strides (1, out).

    Shapes:
        x (..., I), weight (O, I), bias (O,) or None -> (..., O); one dtype.

    Source:
        torch.nn.Linear; Conv1D in transformers' pytorch_utils.
    """

    name = "linear"
    tensor_names = ("x", "weight", "bias")
    scalar_names: tuple[str, ...] = ()
    schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
    alternatives: Mapping[str, Callable[..., Any]] = {}
    """What models call is torch's own already."""

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Linear layers of torch, and layers that declare a transposed weight and its number of outputs, `nf`."""
        return [
            Site(fqn, module, {}, _problem(module))
            for fqn, module in model.named_modules()
            if isinstance(module, nn.Linear) or _is_transposed(module)
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The module's own forward, with the call's tensors as its state."""
        if not _is_transposed(site.module):
            return super().own(site)
        module, forward = site.module, type(site.module).forward

        def original(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
            mine: Any = standing_in(module, {"weight": weight.t(), "bias": bias})
            mine.nf = weight.shape[0]
            return forward(mine, x)

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A forward that hands `function` the tensor it is given, the weight as (out, in), and the bias."""
        if function is None or not _is_transposed(site.module):
            return super().forward_with(site, function)

        def transposed(self: nn.Module, x: Tensor) -> Any:
            return function(x, self.weight.t(), self.bias)

        return transposed

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Plain maths in the precision it is given."""
        product = x @ weight.t()
        return product if bias is None else product + bias

    def allocate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """An uninitialised y, contiguous."""
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`rows` (product of the leading dimensions of x), `inputs`, `outputs`, `dtype`."""
        x, weight, _ = call.tensors
        outputs, inputs = map(int, weight.shape)
        return {
            "rows": x.numel() // max(1, inputs),
            "inputs": inputs,
            "outputs": outputs,
            "dtype": name_of(x.dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A projection that widens, with a bias."""
        draw = Draw.of(dtype, device, seed)
        state = draw.made(draw.normal(512, 256) / 16), draw.made(draw.normal(512))
        return OpCall((draw.made(draw.normal(4, 32, 256)), *state), ())

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The call's own weight against few rows, odd numbers of them and other scales; small weights of odd sizes.

        Large weights are not drawn again: they would take seconds, and lie in the file of calls once each.
        """
        x, weight, bias = call.tensors
        (outputs, inputs), draw = weight.shape, Draw(seed, x)
        # Fresh layers have biases of zero: an ignored one must show.
        offset = None if bias is None else draw.made(draw.normal(outputs))

        def made(values: Tensor) -> OpCall:
            return OpCall((draw.made(values), weight, offset), ())

        def small(rows: int, outputs: int, inputs: int) -> OpCall:
            bias = None if offset is None else draw.made(draw.normal(outputs))
            laid = draw.made(draw.normal(outputs, inputs))
            if not weight.is_contiguous():
                laid = laid.t().contiguous().t()
            return OpCall((draw.made(draw.normal(rows, inputs)), laid, bias), ())

        spikes = draw.normal(4, inputs)
        spikes[:, ::97] *= 1e2
        yield "random values", made(draw.normal(5, inputs))
        yield "one row", made(draw.normal(1, inputs))
        yield "a prime number of rows", made(draw.normal(67, inputs))
        yield "three leading dimensions", made(draw.normal(2, 3, 2, inputs))
        yield "small magnitude", made(draw.normal(4, inputs) * 1e-2)
        yield "large magnitude", made(draw.normal(4, inputs) * 30)
        yield "outlier channels", made(spikes)
        yield "all of one sign", made(draw.normal(4, inputs).abs())
        yield "one input at a time", made(torch.eye(inputs, dtype=torch.float64)[-min(inputs, 7) :])
        yield "no rows", made(draw.normal(0, inputs))
        wider = draw.made(draw.normal(3, inputs + 16))[:, :inputs]
        yield "the first columns of wider rows", OpCall((wider, weight, offset), ())
        yield "odd sizes", small(17, 61, 37)
        yield "one output", _positive(small(67, 1, 33))
        yield "one input", small(5, 33, 1)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong products, one mistake each."""
        exact = self.reference

        def wrong(change: Callable[..., Tensor]) -> Callable[..., Any]:
            def mutant(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
                return change(x.double(), weight.double(), None if bias is None else bias.double()).to(x.dtype)

            return mutant

        return {
            "zeros": lambda x, w, b: x.new_zeros((*x.shape[:-1], w.shape[0])),
            "bias ignored, or made up where there is none": wrong(lambda x, w, b: exact(x, w, _other(b, w))),
            "bias added twice, or made up where there is none": wrong(
                lambda x, w, b: exact(x, w, _other(None, w) if b is None else 2 * b)
            ),
            "weight's sign lost": wrong(lambda x, w, b: exact(x, w.abs(), b)),
            "weight read in the other order": wrong(lambda x, w, b: exact(x, w.t().reshape(w.shape), b)),
            "one output late": wrong(lambda x, w, b: exact(x, w, b).roll(1, -1)),
            "last input left out": wrong(lambda x, w, b: exact(without_last_column(x), w, b)),
            "last 5 % of the inputs left out": wrong(lambda x, w, b: exact(_short(x), w, b)),
            "first input added twice": wrong(lambda x, w, b: exact(x, w, b) + x[..., :1] * w[:, 0]),
            "one per cent too large": wrong(lambda x, w, b: exact(x, w, b) * 1.01),
            "neighbouring rows swapped": wrong(lambda x, w, b: rows_rolled(exact(x, w, b))),
            "last output dropped": wrong(lambda x, w, b: without_last_column(exact(x, w, b))),
            "last row dropped": wrong(lambda x, w, b: without_last_row(exact(x, w, b))),
        }


def _positive(call: OpCall) -> OpCall:
    """The same without cancellation: a row of one number that is nearly nothing has no meaningful relative error."""
    return OpCall(tuple(None if tensor is None else tensor.abs() for tensor in call.tensors), call.scalars)


def _problem(module: nn.Module) -> str | None:
    if not module.weight.is_floating_point():
        return f"its weight is {name_of(module.weight.dtype)}: it is quantized"
    if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward:
        return f"{type(module).__name__} has a forward of its own, which does more than a linear layer's"
    return None


def _is_transposed(module: nn.Module) -> bool:
    weight, outputs = getattr(module, "weight", None), getattr(module, "nf", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and weight.shape[1] == outputs


def _other(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    return weight[:, 0] + 1 if bias is None else None


def _short(x: Tensor) -> Tensor:
    kept = x.clone()
    kept[..., int(x.shape[-1] * 0.95) :] = 0
    return kept


PLUGIN = Linear()
