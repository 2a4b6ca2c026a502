"""Worker side: one untimed, profiled pass of one arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.profile.timeline import MODULE, SITE, STEP


def record(arena: Any, arm: str, *, seed: int, steps: int, path: Path, device: str) -> dict[str, Any]:
    """Profile `steps` steps and write the raw Chrome trace to `path`; timing is never taken from here.

    Making the inputs and fingerprinting the outputs are e2e's own, and not in it.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    arena.run(arm, seeds=[seed])
    batches = arena.batches(arm, [seed + place for place in range(steps)])
    arena.sync()
    with profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        for batch in batches:
            with record_function(STEP):
                arena.execute(arm, batch)
                arena.sync()
    profiler.export_chrome_trace(str(path))
    return {"steps": steps}


def in_range(site: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The op at that site, with a range around every call."""
    from torch.profiler import record_function

    def call(*args: Any, **named: Any) -> Any:
        with record_function(f"{SITE}{site.fqn}"):
            return function(*args, **named)

    return call


@contextmanager
def named_modules_ranged(program: Any) -> Iterator[None]:
    """While inside, every module below the program puts a range with its name and class around its forward."""
    from torch import nn
    from torch.profiler import record_function

    entered: list[Any] = []

    def before(name: str) -> Any:
        def enter(module: Any, args: Any) -> None:
            entered.append(record_function(name))
            entered[-1].__enter__()

        return enter

    def after(module: Any, args: Any, output: Any) -> None:
        entered.pop().__exit__(None, None, None)

    model = getattr(program, "model", None)
    root = model if isinstance(model, nn.Module) else program
    handles = []
    for fqn, module in root.named_modules():
        handles.append(module.register_forward_pre_hook(before(f"{MODULE}{fqn} {type(module).__name__}")))
        handles.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
