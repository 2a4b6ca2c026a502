"""The model one precision higher."""

from __future__ import annotations

import pytest
import torch

from e2e.numerics.reference import one_higher
from tests import families

torch.set_num_threads(1)


@pytest.mark.parametrize(("dtype", "higher"), [("float32", torch.float64), ("bfloat16", torch.float32)])
@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe"])
def test_every_family_runs_one_precision_higher_and_stays_what_it_was(
    family: str, dtype: str, higher: torch.dtype
) -> None:
    model = families.model_of(family)
    before = families.run(family, model)
    exact = one_higher(model, dtype)
    assert {p.dtype for p in exact.parameters()} == {higher}
    torch.testing.assert_close(families.run(family, exact).float(), before, rtol=1e-3, atol=1e-4)
    assert torch.equal(before, families.run(family, model))


def test_experts_are_looped_over_in_the_reference_only() -> None:
    model = families.model_of("qwen3_moe")
    own = model.config._experts_implementation
    assert own != "eager", "else there is nothing to set"
    assert one_higher(model, "float32").config._experts_implementation == "eager"
    assert model.config._experts_implementation == own
