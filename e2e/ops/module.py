"""Modules by class or by name, `module:CLASS` or `module:GLOB`; the original is its own reference, run in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.ops._inputs import Draw
from e2e.ops._mistakes import without_last_row
from e2e.ops._sites import takes_one_tensor
from e2e.protocols import OpCall, Site


class ModuleOp:
    """What every module of one class, or of some names, computes; its call is (forward's tensor, parameters...) -> y.

    The kernel's entry receives the tensor that `forward` receives, then the parameters and buffers of the module
    and its children in the order of their registration. The output has the shape, strides and dtype of the tensor.

    Shapes:
        x (...), parameters as the module has them -> (...); same shape and dtype as x.
    """

    def __init__(
        self, class_name: str = "", *, sample: Callable[[], nn.Module] | None = None, takes: tuple[int, ...] = ()
    ) -> None:
        """`sample` makes a small module of that class, and `takes` is the shape of what it is called with.

        With both, the op can be checked without a model. Weights are drawn by the module itself.
        """
        self.class_name = class_name
        self.name = f"module:{class_name}"
        self.tensor_names: tuple[str, ...] = ("x",)
        self.scalar_names: tuple[str, ...] = ()
        self.schema = "(Tensor x, Tensor[] state) -> Tensor"
        self.alternatives: Mapping[str, Callable[..., Any]] = {}
        self._module: nn.Module | None = None
        self._takes = takes
        if sample is not None:
            with torch.random.fork_rng():
                torch.manual_seed(0)  # every process of a check makes the same one
                self._know(sample().requires_grad_(False))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The module's parameters and buffers."""
        return self.tensor_names[1:]

    def of(self, class_name: str) -> ModuleOp:
        """The op of another class."""
        return ModuleOp(class_name)

    def find_sites(self, model: nn.Module) -> list[Site]:
        """Modules whose class has that name, or whose own name matches it as a glob, such as `model.layers.*.mlp`."""
        found = [(fqn, module) for fqn, module in model.named_modules() if self._is_meant(fqn, module)]
        if found:
            self._know(found[0][1])
        return [Site(fqn, module, {}, self._problem(module)) for fqn, module in found]

    def _is_meant(self, fqn: str, module: nn.Module) -> bool:
        return type(module).__name__ == self.class_name or (bool(fqn) and fnmatchcase(fqn, self.class_name))

    def _problem(self, module: nn.Module) -> str | None:
        assert self._module is not None
        if type(module) is not type(self._module):
            return f"it is a {type(module).__name__}, and the first module of that name a {type(self._module).__name__}"
        if [name for name, _ in _state(module)] != [name for name, _ in _state(self._module)]:
            return "it has other parameters or buffers than the first module of that name"
        return None if takes_one_tensor(module) else _SEVERAL

    def _know(self, module: nn.Module) -> None:
        """What is called, and with which tensors."""
        self._module = module
        self.tensor_names = ("x", *(name for name, _ in _state(module)))
        arguments = ", ".join(f"Tensor {name.replace('.', '_')}" for name in self.tensor_names)
        self.schema = f"({arguments}) -> Tensor"

    def own(self, site: Site) -> Callable[..., Any]:
        """The module with that state."""
        module = site.module
        names = [name for name, _ in _state(module)]

        def original(x: Tensor, *state: Tensor) -> Any:
            if all(mine is theirs for (_, mine), theirs in zip(_state(module), state, strict=True)):
                return type(module).forward(module, x)
            return called(module, dict(zip(names, state, strict=True)), x)

        return original

    def forward_with(self, site: Site, function: Callable[..., Any] | None) -> Callable[..., Any]:
        """A forward that calls `function(x, *parameters)`."""
        if function is None:
            own: Callable[..., Any] = type(site.module).forward
            return own
        names = [name for name, _ in _state(site.module)]
        paths = [name.split(".") for name in names]

        def forward(self: nn.Module, x: Tensor) -> Any:
            return function(x, *(functools.reduce(getattr, path, self) for path in paths))

        def own_forward(self: nn.Module, x: Tensor) -> Any:
            return function(x, *[getattr(self, name) for name in names])

        return forward if any("." in name for name in names) else own_forward

    def reference(self, x: Tensor, *state: Tensor) -> Tensor:
        """The original module with that state, in the precision of both."""
        if self._module is None:
            raise RuntimeError("find_sites was not called")
        names = [name for name, _ in _state(self._module)]
        result: Tensor = called(self._module, dict(zip(names, state, strict=True)), x)
        return result

    def allocate(self, x: Tensor, *state: Tensor) -> Tensor:
        """An uninitialised output like `x`."""
        return torch.empty_like(x)

    def dims(self, call: OpCall) -> dict[str, int | str]:
        """`dim0`, `dim1`, ... of x, `rows`, `hidden` (the last one), and `dtype`."""
        x = call.tensors[0]
        sizes: dict[str, int | str] = {f"dim{place}": int(size) for place, size in enumerate(x.shape)}
        hidden = int(x.shape[-1])
        return {
            **sizes,
            "rows": x.numel() // hidden if hidden else 0,
            "hidden": hidden,
            "dtype": str(x.dtype).removeprefix("torch."),
        }

    def example(self, dtype: str, device: str, seed: int) -> OpCall:
        """The sample's weights and drawn values.

        Raises:
            UsageError: there is no sample, so that calls come from a model.
        """
        if self._module is None or not self._takes:
            raise UsageError(f"{self.name} is what some model's module computes: check it with a workload")
        draw = Draw.of(dtype, device, seed)
        return OpCall(
            (draw.made(draw.normal(*self._takes)), *(draw.made(item) for _, item in _state(self._module))), ()
        )

    def edge_calls(self, call: OpCall, seed: int) -> Iterable[tuple[str, OpCall]]:
        """The captured shape with other values: nothing else is known to be legal for an unknown module."""
        x, *state = call.tensors
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        for label, scale in (("random values", 1.0), ("small magnitude", 1e-3), ("large magnitude", 1e2)):
            values = (noise * scale).to(device=x.device, dtype=x.dtype)
            yield label, OpCall((values, *state), call.scalars)

    def mutants(self) -> Mapping[str, Callable[..., Any]]:
        """Wrong outputs that any module's check must notice."""
        return {
            "zeros": lambda x, *state: torch.zeros_like(x),
            "copy of the input": lambda x, *state: x.clone(),
            "last row dropped": lambda x, *state: without_last_row(self.reference(x, *state)),
            "one per cent too large": lambda x, *state: self.reference(x, *state) * 1.01,
        }


def called(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Any:
    """The module with that state, on a copy, so that hooks and a patched forward of the module itself play no part."""
    twin = copy.copy(module)
    vars(twin).pop("forward", None)
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        vars(twin)[hooks] = {}
    return torch.func.functional_call(twin, state, (x,))


def _state(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


_SEVERAL = "its forward takes more than one argument; `module:` stands for modules of one tensor"

PLUGIN = ModuleOp()
