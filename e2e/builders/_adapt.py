"""An entry with a calling convention of its own as the op's call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from e2e.builders._calls import unknown_argument
from e2e.protocols import OUT, Built, Op, outputs_of


def adapted(function: Callable[..., Any], op: Op, built: Built) -> Callable[..., Any]:
    """The entry called with its own arguments in its own order, folded and with outputs as the manifest says.

    Raises:
        CandidateError: `bind_failed`: a name in `args` or `ranks` that the op does not have.
    """
    manifest, known = built.kernel.manifest, [*op.tensor_names, *op.scalar_names]
    takes_outputs = manifest.takes_outputs
    names = known if manifest.args is None else manifest.args
    if takes_outputs and OUT not in names:
        names = [*names, OUT]
    for name in [*names, *manifest.ranks]:
        if name not in known and not (takes_outputs and name == OUT):
            raise unknown_argument(built, name, known)
    call = function if names == known else _ordered(function, [_place(name, known) for name in names], op)
    ranks = {known.index(name): rank for name, rank in manifest.ranks.items()}
    return _folded(call, ranks) if ranks else call


def _place(name: str, known: list[str]) -> int | None:
    """Where the op's call has that argument; None for its outputs."""
    return None if name == OUT else known.index(name)


def _ordered(function: Callable[..., Any], order: list[int | None], op: Op) -> Callable[..., Any]:
    if None not in order:
        places = [place for place in order if place is not None]

        def returning(*args: Any) -> Any:
            return function(*[args[place] for place in places])

        return returning

    def filling(*args: Any) -> Any:
        made = op.allocate(*args)
        values: list[Any] = []
        for place in order:
            values += outputs_of(made) if place is None else (args[place],)
        function(*values)
        return made

    return filling


def _folded(call: Callable[..., Any], ranks: dict[int, int]) -> Callable[..., Any]:
    """Leading dimensions of tensors made one, and restored in what comes back."""

    def folding(*args: Any) -> Any:
        values, leading = list(args), None
        for place, rank in ranks.items():
            tensor = values[place]
            if tensor is not None and tensor.dim() > rank:
                shape = tuple(tensor.shape)
                kept = len(shape) - rank + 1
                leading = leading or shape[:kept]
                values[place] = tensor.reshape(math.prod(shape[:kept]), *shape[kept:])
        output = call(*values)
        if leading is None:
            return output
        restored = tuple(item.reshape(*leading, *item.shape[1:]) for item in outputs_of(output))
        return restored if isinstance(output, tuple | list) else restored[0]

    return folding
