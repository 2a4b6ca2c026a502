"""AdamW: (params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, eps, weight_decay), in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from e2e.ops._inputs import Draw, name_of
from e2e.protocols import OpCall, Site, updated
from e2e.trainer import Update

Tensors = Sequence[Tensor]
_SHAPES = ((37, 19), (64,), (1,), (8, 3, 5), (1, 129))
"""Of the parameters in drawn calls: odd, and of several ranks."""


class AdamW:
    """Decoupled weight decay, first and second moments of the gradients, both corrected for their start at zero.

    p <- p (1 - lr decay); m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2;
    p <- p - lr m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps). In place; `step` counts from 1.

    Shapes:
        four lists of N tensors, alike in shape place by place; one dtype.

    Source:
        Loshchilov and Hutter 2019, arXiv:1711.05101; `torch.optim.AdamW`.
    """

    name = "adamw"
    tensor_names: tuple[str, ...] = ("params", "grads", "exp_avgs", "exp_avg_sqs")
    scalar_names: tuple[str, ...] = ("step", "lr", "beta1", "beta2", "eps", "weight_decay")
    in_place = ("params", "exp_avgs", "exp_avg_sqs")
    schema = (
        "(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, int step, float lr, "
        "float beta1, float beta2, float eps, float weight_decay) -> ()"
    )

    def __init__(self) -> None:
        self.alternatives: Mapping[str, Callable[..., Any]] = {
            "foreach": _Torch(foreach=True),
            "fused": _Torch(fused=True),
        }

    def find_sites(self, model: nn.Module) -> list[Site]:
        """The step of the model's optimizer: in training workloads whose optimizer is AdamW, and nowhere else."""
        found = []
        for fqn, module in model.named_modules():
            if isinstance(module, Update):
                spec = module.train_spec
                scalars = {"lr": spec.learning_rate, "beta1": spec.beta1, "beta2": spec.beta2}
                found.append(Site(fqn, module, {**scalars, "eps": spec.eps, "weight_decay": spec.weight_decay}))
        return found

    def own(self, site: Site) -> Callable[..., Any]:
        """Torch's own function, run as the workload says."""
        how = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False, "fused": False}}
        return _Torch(**how.get(site.module.train_spec.implementation, {}))

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """The optimizer's step with `function` for its maths."""
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own

        def forward(self: Update) -> None:
            function(*self.call())

        return forward

    def reference(self, params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, *scalars: Any) -> Any:
        """Plain maths, tensor by tensor; nothing is changed."""
        return _exact(params, grads, exp_avgs, exp_avg_sqs, *scalars)

    def allocate(
        self, params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, *scalars: Any
    ) -> tuple[Tensor, ...]:
        """Uninitialised parameters and moments."""
        return tuple(torch.empty_like(item) for item in (*params, *exp_avgs, *exp_avg_sqs))

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`tensors` in each list, `rows` (elements of them together), `dtype`."""
        params = call.tensors[0]
        return {
            "tensors": len(params),
            "rows": sum(int(item.numel()) for item in params),
            "dtype": name_of(params[0].dtype),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """A few parameters in the midst of training."""
        return _call(Draw.of(dtype, device, seed), step=7)

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The first step and a late one, gradients of none, large and small ones, and rates at which all terms show."""
        draw = Draw(seed, call.tensors[0][0])
        yield "the first step", _call(draw, step=1, moments=0.0, lr=0.3)
        yield "a late step", _call(draw, step=100_000, lr=0.3)
        yield "strong decay", _call(draw, step=3, lr=0.3, weight_decay=0.5)
        yield "gradients of zero", _call(draw, step=5, gradients=0.0, lr=0.3)
        yield "gradients as small as epsilon", _call(draw, step=1000, gradients=0.1, moments=0.1, lr=1.0, eps=0.1)
        yield "large gradients", _call(draw, step=4, gradients=30.0, moments=30.0, lr=0.3)
        yield "one parameter", _call(draw, step=6, shapes=((33,),), lr=0.3)
        yield "one element", _call(draw, step=6, shapes=((1,),), lr=0.3)
        yield "short memories", _call(draw, step=2, beta1=0.5, beta2=0.6, lr=0.3)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong updates, one mistake each."""
        return {
            "nothing changes": _mistaken(lambda p, g, m, v, *_: (p, m, v)),
            "only the moments change": _mistaken(lambda p, g, m, v, *scalars: (p, *_one(p, g, m, v, *scalars)[1:])),
            "no bias correction": _mistaken(_one, step=lambda step: 10**9),
            "one step late": _mistaken(_one, step=lambda step: step + 1),
            "decay coupled, as in Adam": _mistaken(_coupled),
            "no decay": _mistaken(_one, weight_decay=lambda decay: 0.0),
            "epsilon inside the root": _mistaken(_inside),
            "no epsilon": _mistaken(_one, eps=lambda eps: 1e-30),
            "first moment only": _mistaken(_first_only),
            "betas swapped": _mistaken(_swapped),
            "sign of the gradient": _mistaken(lambda p, g, m, v, *scalars: _one(p, -g, m, v, *scalars)),
            "last tensor left out": _without_last,
        }


def _one(p: Tensor, g: Tensor, m: Tensor, v: Tensor, *scalars: Any) -> tuple[Tensor, Tensor, Tensor]:
    step, lr, beta1, beta2, eps, weight_decay = scalars
    p = p * (1 - lr * weight_decay)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps), m, v


def _exact(params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, *scalars: Any) -> Any:
    rows = [_one(*item, *scalars) for item in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)]
    return tuple(tensor for column in zip(*rows, strict=True) for tensor in column)


def _mistaken(one: Callable[..., tuple[Tensor, ...]], **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """A wrong rule for every tensor, or the right one with a scalar changed; in float64, then rounded."""

    def mutant(params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, *scalars: Any) -> Any:
        named = {name: changes.get(name, _same)(value) for name, value in zip(AdamW.scalar_names, scalars, strict=True)}
        lists = zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)
        rows = [one(*(item.double() for item in items), *named.values()) for items in lists]
        return tuple(item.to(params[0].dtype) for column in zip(*rows, strict=True) for item in column)

    return mutant


def _same(value: Any) -> Any:
    return value


def _coupled(p: Tensor, g: Tensor, m: Tensor, v: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    return _one(p, g + scalars[-1] * p, m, v, *scalars[:-1], 0.0)


def _swapped(p: Tensor, g: Tensor, m: Tensor, v: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    step, lr, beta1, beta2, *rest = scalars
    return _one(p, g, m, v, step, lr, beta2, beta1, *rest)


def _inside(p: Tensor, g: Tensor, m: Tensor, v: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    step, lr, beta1, beta2, eps, weight_decay = scalars
    _, m, v = _one(p, g, m, v, *scalars)
    return p * (1 - lr * weight_decay) - lr * m / (1 - beta1**step) / (v / (1 - beta2**step) + eps).sqrt(), m, v


def _first_only(p: Tensor, g: Tensor, m: Tensor, v: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    step, lr, beta1, _, _, weight_decay = scalars
    _, m, v = _one(p, g, m, v, *scalars)
    return p * (1 - lr * weight_decay) - lr * m / (1 - beta1**step), m, v


def _without_last(params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, *scalars: Any) -> Any:
    lists = (params, grads, exp_avgs, exp_avg_sqs)
    right = _mistaken(_one)(*lists, *scalars)
    before = (*params, *exp_avgs, *exp_avg_sqs)
    is_last = [(place + 1) % len(params) == 0 for place in range(len(before))]
    return tuple(old.clone() if last else new for old, new, last in zip(before, right, is_last, strict=True))


def _call(
    draw: Draw,
    *,
    step: int,
    shapes: Sequence[Sequence[int]] = _SHAPES,
    gradients: float = 1.0,
    moments: float = 1.0,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> OpCall:
    params = tuple(draw.made(draw.normal(*shape)) for shape in shapes)
    grads = tuple(draw.made(gradients * draw.normal(*shape)) for shape in shapes)
    exp_avgs = tuple(draw.made(0.3 * moments * draw.normal(*shape)) for shape in shapes)
    exp_avg_sqs = tuple(draw.made(moments**2 * (0.05 + draw.normal(*shape).square())) for shape in shapes)
    if not moments:
        exp_avg_sqs = tuple(torch.zeros_like(item) for item in exp_avg_sqs)
    return OpCall((params, grads, exp_avgs, exp_avg_sqs), (step, lr, beta1, beta2, eps, weight_decay))


class _Torch:
    """Torch's own function, as `torch.optim.AdamW` calls it; it counts steps in tensors, which are made once."""

    def __init__(self, **how: bool) -> None:
        self._how = how
        self._steps: dict[tuple[int, torch.device], list[Tensor]] = {}

    def __call__(self, *call: Any) -> tuple[Tensor, ...]:
        params, grads, exp_avgs, exp_avg_sqs = (list(item) for item in call[:4])
        step, lr, beta1, beta2, eps, weight_decay = call[4:]
        device = params[0].device if self._how.get("fused") else torch.device("cpu")
        key = (len(params), device)
        if key not in self._steps:
            self._steps[key] = [torch.zeros((), device=device) for _ in params]
        steps = self._steps[key]
        torch._foreach_zero_(steps)
        torch._foreach_add_(steps, step - 1)
        with torch.no_grad():
            adamw(
                *(params, grads, exp_avgs, exp_avg_sqs, [], steps),
                **{**{"foreach": None, "fused": None}, **self._how},
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=weight_decay,
                eps=eps,
                maximize=False,
            )
        return updated(PLUGIN, (params, grads, exp_avgs, exp_avg_sqs))


PLUGIN = AdamW()
