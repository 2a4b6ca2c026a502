"""A cache of keys and values that holds a context, and goes back to it before every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class KeptCache:
    """Whatever a step changes of the cache, other than the new token's own place, is put back.

    A static cache counts in tensors, whose addresses compiled code knows: they are written to. A dynamic one puts
    longer tensors in the place of its own: it gets its own back. What a step changes is found by running one.
    """

    def __init__(self, cache: Any, step: Callable[[], object]) -> None:
        """`cache` holds the context, which may be nothing; `step` is one step over it."""
        layers = list(cache.layers)
        before = [dict(vars(layer)) for layer in layers]
        counters = [value for fields in before for value in fields.values() if _is_counter(value)]
        counts = [counter.clone() for counter in counters]
        with torch.no_grad():
            step()
        self._fields = [
            (vars(layer), changed)
            for layer, fields in zip(layers, before, strict=True)
            if (changed := {name: value for name, value in fields.items() if vars(layer).get(name) is not value})
        ]
        self._counters = [counter for counter, was in zip(counters, counts, strict=True) if not counter.equal(was)]
        self._counts = [was for counter, was in zip(counters, counts, strict=True) if not counter.equal(was)]
        self.reset()

    def reset(self) -> None:
        """Back to the context."""
        for fields, own in self._fields:
            fields.update(own)
        if self._counters:
            torch._foreach_copy_(self._counters, self._counts)


def _is_counter(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0
