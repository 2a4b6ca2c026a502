"""Whatever a kernel of `kind: patch` changes in a model: each module is its own op, and its original the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import takes_one_tensor
from e2e.ops.module import ModuleOp, called
from e2e.protocols import OpCall, Site, outputs_of


class PatchOp(ModuleOp):
    """Any module may be a site; which ones are, the scout says. A call is (forward's tensor, the module's name) -> y.

    Weights are no part of a call: they are the module's own, in every process the same.

    Shapes:
        x as the module takes it -> as the module returns it: a tensor, or a tuple of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = "patch"
        self.scalar_names = ("site",)
        self.schema = "(Tensor x, str site) -> Tensor"
        self._modules: dict[str, nn.Module] = {}

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Every module; those whose forward does not take one tensor have no calls that could be compared."""
        self._modules = dict(model.named_modules())
        return [
            Site(fqn, module, {"site": fqn}, None if takes_one_tensor(module) else SEVERAL)
            for fqn, module in self._modules.items()
        ]

    def own(self, site: Site) -> Callable[..., Any]:
        """The module as it is."""

        def original(x: Tensor, name: str) -> Any:
            return _tensors(type(site.module).forward(site.module, x))

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A forward that calls `function(x, name)`.

        Raises:
            RuntimeError: the module has no such calls.
        """
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own
        if site.incompatible is not None:
            raise RuntimeError(f"{site.fqn or 'the model itself'}: {site.incompatible}")

        def forward(self: nn.Module, *args: Any, **named: Any) -> Any:
            given = (*args, *named.values())
            if len(given) != 1:
                raise TypeError(SEVERAL)
            return function(given[0], site.fqn)

        return forward

    def reference(self, *call: Any) -> Any:
        """The original module in the precision of `x`; where its code casts to a lower one, it does not."""
        x, name = call
        module = self._modules[name]
        state = [*module.named_parameters(), *module.named_buffers()]
        wide = {key: item.to(x.dtype) if item.is_floating_point() else item for key, item in state}
        with _Unrounded():
            return _tensors(called(module, wide if x.is_floating_point() else {}, x))

    def allocate(self, *call: Any) -> Any:
        """What the original module returns, to be overwritten."""
        x, name = call
        with torch.no_grad():
            return _tensors(called(self._modules[name], {}, x))

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The captured shape with other values; none where whole numbers come in, whose range nobody knows."""
        return super().edge_calls(call, seed) if call.tensors[0].is_floating_point() else ()

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong outputs that any module's check must notice."""
        return {
            "zeros": self._spoilt(torch.zeros_like),
            "last row dropped": self._spoilt(without_last_row),
            "one per cent too large": self._spoilt(lambda y: y * 1.01),
        }

    def _spoilt(self, wrong: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def mutant(*call: Any) -> Any:
            found = self.reference(*call)
            return wrong(found) if isinstance(found, Tensor) else tuple(wrong(item) for item in outputs_of(found))

        return mutant


class _Unrounded(TorchDispatchMode):
    """Casts to fewer bits leave a tensor as it is: a reference must not round where the code it judges does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if func is torch.ops.aten._to_copy.default and dtype is not None and dtype.is_floating_point:
            x = args[0]
            if x.is_floating_point() and torch.finfo(dtype).bits < torch.finfo(x.dtype).bits:
                kwargs["dtype"] = x.dtype
        return func(*args, **kwargs)


def _tensors(returned: Any) -> Any:
    if all(isinstance(item, Tensor) for item in outputs_of(returned)):
        return returned
    raise TypeError(f"it returns a {type(returned).__name__}, which is not made of tensors alone")


SEVERAL = "it is called with more than one tensor"

PLUGIN = PatchOp()
