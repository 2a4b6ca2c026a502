"""What formats know of ops without asking them, against the ops."""

from __future__ import annotations

import pytest

from e2e import registry
from e2e.formats._arguments import ARGUMENTS, argument_called
from e2e.formats.solution import _DIMENSIONS

HERE = [op for op in ARGUMENTS if op in registry.names("ops")]


@pytest.mark.parametrize("op", HERE)
def test_an_ops_arguments_are_those_that_it_has(op: str) -> None:
    plugin = registry.load_op(op)
    assert list(ARGUMENTS[op]) == [*plugin.tensor_names, *plugin.scalar_names]


@pytest.mark.parametrize("op", [op for op in HERE if op in _DIMENSIONS])
def test_a_named_dimension_is_that_axis(op: str) -> None:
    plugin = registry.load_op(op)
    call = plugin.example("float32", "cpu", 0)
    dims = plugin.dims(call)
    tensors = dict(zip(plugin.tensor_names, call.tensors, strict=True))
    for name, (own, axis) in _DIMENSIONS[op].items():
        assert dims[name] == tensors[own].shape[axis]


@pytest.mark.parametrize(
    ("name", "op", "taken", "own"),
    [
        ("hidden_states", "rms_norm", (), "x"),
        ("W", "rms_norm", ("x",), "weight"),
        ("x", "rms_norm", ("x",), None),
        ("B", "linear", ("x",), "weight"),
        ("b", "layer_norm", ("x", "weight"), "bias"),
        ("input", "embedding", (), "ids"),
        ("scale", "attention", ("q", "k", "v"), "scale"),
        ("page_table", "attention", (), None),
        ("x", "module:X", (), None),
    ],
)
def test_other_names_of_arguments_are_known(name: str, op: str, taken: tuple[str, ...], own: str | None) -> None:
    assert argument_called(name, op, taken) == own
