"""Worker side: running a step compiled or captured in a CUDA graph, and what the device says of it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from e2e.binding import erase_marks
from e2e.operators import Interception, replace
from e2e.schema.words import Mode
from e2e.units import Seconds

REGION = "Torch-Compiled Region"
"""What torch calls a compiled region in a profile; an arm called compiled must have entered one."""


class CountingBackend:
    """Inductor, with a look at each graph on its way: how many graphs, and how often each kernel is in them."""

    def __init__(self, mode: Mode, traces: Callable[[Any], Counter[int]]) -> None:
        """`traces` finds the kernels in a graph: how often each, by its number."""
        self._inductor = torch._TorchCompileInductorWrapper(None if mode is Mode.COMPILE else mode.value, None, False)
        self._traces = traces
        self.graphs = 0
        self.nodes: Counter[int] = Counter()
        self.watched: Mapping[Any, int] = {}
        """Kernels as registered ops, and their numbers."""
        self.interceptions: Mapping[str, Interception] = {}
        """What stands where the graph calls an operator, by the operator's owner."""
        self.placed: list[Interception] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        parts = [item for item in graph.modules() if isinstance(item, fx.GraphModule)]  # a Function's are inside
        for part in parts:
            self.nodes += self._traces(part.graph)
            erase_marks(part)
        if self.interceptions:
            placed = replace(graph, self.interceptions)
            self.nodes += Counter(self.watched[item.function] for item in placed if item.function in self.watched)
            self.placed += placed
        return self._inductor(graph, inputs)


class GraphedStep:
    """Eager code captured once in a CUDA graph: a call copies the inputs in and replays it.

    Outputs are the same tensors every time, overwritten by the next replay.
    """

    def __init__(self, program: nn.Module, batch: tuple[Tensor, ...], *, before: Callable[[], None]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self._graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(aside):  # lazy set-up must not happen while capturing
            for _ in range(_STEPS_BEFORE_CAPTURE):
                before()
                program(*self._inputs)
        torch.cuda.current_stream().wait_stream(aside)
        before()
        with torch.no_grad(), torch.cuda.graph(self._graph):
            self._outputs = program(*self._inputs)

    def __call__(self, *batch: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self._inputs, batch)
        self._graph.replay()
        outputs: tuple[Tensor, ...] = self._outputs
        return outputs


_STEPS_BEFORE_CAPTURE = 3


def compiled(program: nn.Module, backend: CountingBackend, *, fullgraph: bool = True) -> Callable[..., Any]:
    """The program under that backend, for the shapes it will see; its compiled parts, where it names some."""
    options: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": False, "backend": backend}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True  # Dynamo's cache hangs on the code object, which all arms share
    else:
        torch._dynamo.config.recompile_limit = 64
    parts: tuple[str, ...] = getattr(program, "compiled_parts", ())
    for name in parts:
        part = getattr(program, name)
        setattr(program, name, torch.compile(getattr(part, "_orig_mod", part), **options))
    whole: Callable[..., Any] = program if parts else torch.compile(program, **options)
    return whole


def need_all(backend: CountingBackend) -> None:
    """Refuse an arm in whose graph an operator was not replaced everywhere: it would be the baseline under its name.

    Raises:
        RuntimeError: names the first module whose calls are not there.
    """
    for item in backend.interceptions.values():
        if item not in backend.placed:
            owner = type(item.owner).__name__
            raise RuntimeError(
                f"the compiled graph has no call of {item.operator} in {owner}, where an eager step has one"
            )


class DeviceClock:
    """Two events on the current stream: what lies between them by the device's own clock."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def start(self) -> None:
        """Before the first step."""
        self._events[0].record()

    def stop(self) -> None:
        """After the last."""
        self._events[1].record()

    @property
    def seconds(self) -> Seconds:
        """Between the two; the device must have been waited for."""
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3


def driver_calls(device: str) -> int | None:
    """How often torch's allocator took memory from the driver or gave it back; None on a CPU."""
    if device == "cpu":
        return None
    known = torch.cuda.memory_stats()
    return int(known.get("num_device_alloc", 0) + known.get("num_device_free", 0))
