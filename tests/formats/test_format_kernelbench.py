"""KernelBench: a module is read from its file, and stands at sites with their own parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.errors import CandidateError
from e2e.reading import read_kernel
from tests.formats.bound import HERE, bound, check_norm, refusal

NORM = HERE / "kernelbench" / "rmsnorm.py"
HEAD = "import torch\nfrom torch import nn\n\n\nclass ModelNew(nn.Module):\n"
FORWARD = "    def forward(self, x): return x\n"


def written(folder: Path, body: str, *, head: str = HEAD) -> Path:
    path = folder / "model.py"
    path.write_text(head + body)
    return path


def norm_with(folder: Path, constructor: str, forward: str = "self.weight", tail: str = "") -> Path:
    body = f"    def __init__(self{constructor}\n" + (
        "    def forward(self, x):\n"
        f"        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * {forward}\n"
    )
    return written(folder, body + tail)


def test_the_file_names_its_op_and_its_class() -> None:
    kernel = read_kernel(str(NORM), op=None)
    assert (kernel.format, kernel.manifest.op, kernel.manifest.entry) == ("kernelbench", "rms_norm", "ModelNew")
    assert (kernel.manifest.binding, kernel.manifest.device) == ("module", None)


def test_a_block_of_ours_in_the_file_comes_first(tmp_path: Path) -> None:
    block = "# /// e2e\n# kind: module\n# op: rms_norm\n# entry: ModelNew\n# ///\n"
    path = written(tmp_path, FORWARD, head=block + HEAD)
    assert read_kernel(str(path), op=None).format == "block"


@pytest.mark.parametrize(
    "source", ["import triton\n", "from triton import jit\n", "m = load_inline(name='m', cuda_sources=['x'])\n"]
)
def test_cuda_in_the_file_asks_for_a_device(tmp_path: Path, source: str) -> None:
    path = written(tmp_path, FORWARD, head=source + HEAD)
    assert read_kernel(str(path), op="rms_norm").manifest.device == "cuda"


def test_c_plus_plus_in_the_file_does_not(tmp_path: Path) -> None:
    path = written(tmp_path, FORWARD, head="m = load_inline(name='m', cpp_sources=['x'], cuda_sources=[])\n" + HEAD)
    assert read_kernel(str(path), op="rms_norm").manifest.device is None


def test_a_model_without_an_op_asks_for_one(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, FORWARD))
    assert "model.py:5: ModelNew: which op does it replace? Pass --op NAME" in said
    assert "module:CLASS" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class ModelNew:\n" + FORWARD, "model.py:1: ModelNew: must be derived from torch.nn.Module"),
        ("\nclass ModelNew(nn.Module):\n    pass\n", "model.py:2: ModelNew: has no `forward`"),
        ("class ModelNew(nn.Module)\n" + FORWARD, "model.py:1: not Python"),
    ],
)
def test_a_damaged_model_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(written(tmp_path, text, head=""), op="rms_norm")


def test_an_instance_computes_with_the_sites_weight_and_epsilon(tmp_path: Path) -> None:
    check_norm(bound(read_kernel(str(NORM), op=None), tmp_path))
    check_norm(bound(read_kernel(str(NORM), op=None), tmp_path), hidden=96, eps=1e-6)


def test_sites_share_neither_weights_nor_epsilon(tmp_path: Path) -> None:
    call = bound(read_kernel(str(NORM), op=None), tmp_path)
    for eps in (1e-5, 1e-6, 1e-5):
        check_norm(call, eps=eps)


def test_a_weight_changed_in_place_is_seen_and_gets_its_gradient(tmp_path: Path) -> None:
    import torch

    call = bound(read_kernel(str(NORM), op=None), tmp_path)
    x, weight = torch.ones(2, 384), torch.nn.Parameter(torch.ones(384))
    before = call(x, weight, 1e-5)
    with torch.no_grad():
        weight.mul_(3.0)
    after = call(x, weight, 1e-5)
    torch.testing.assert_close(after, 3.0 * before)
    after.sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.full((384,), 2.0))


def test_gradients_go_to_the_object_that_a_call_was_given(tmp_path: Path) -> None:
    """Arms see one weight through several objects."""
    import torch

    call = bound(read_kernel(str(NORM), op=None), tmp_path)
    first = torch.nn.Parameter(torch.ones(384))
    second = torch.nn.Parameter(first.detach())
    for weight in (first, second, first, first):
        weight.grad = None
        call(torch.ones(2, 384), weight, 1e-5).sum().backward()
        assert weight.grad is not None


def test_a_module_may_keep_what_it_makes_of_its_weight(tmp_path: Path) -> None:
    """One instance per weight: what one site caches is not another's."""
    constructor = ", dim, eps):\n        super().__init__()\n        self.eps, self.kept = eps, None\n" + (
        "        self.weight = nn.Parameter(torch.zeros(dim))\n"
    )
    tail = "    def mine(self):\n        self.kept = self.weight * 1 if self.kept is None else self.kept\n" + (
        "        return self.kept\n"
    )
    call = bound(read_kernel(str(norm_with(tmp_path, constructor, "self.mine()", tail)), op="rms_norm"), tmp_path)
    for _ in range(3):
        check_norm(call)


def test_making_an_instance_draws_no_random_numbers_of_the_model(tmp_path: Path) -> None:
    import torch

    constructor = ", dim, eps):\n        super().__init__()\n        self.eps = eps\n" + (
        "        self.weight = nn.Parameter(torch.randn(dim))\n"
    )
    call = bound(read_kernel(str(norm_with(tmp_path, constructor)), op="rms_norm"), tmp_path)
    torch.manual_seed(3)
    expected = torch.randn(1)
    torch.manual_seed(3)
    call(torch.ones(1, 8), torch.ones(8), 1e-5)
    assert torch.equal(torch.randn(1), expected)


def test_what_a_site_does_not_say_comes_from_get_init_inputs(tmp_path: Path) -> None:
    constructor = ", dim, power, eps=1.0):\n        super().__init__()\n        self.eps, self.power = eps, power\n" + (
        "        self.weight = nn.Parameter(torch.zeros(dim))\n"
    )
    path = norm_with(tmp_path, constructor, "self.weight ** self.power")
    path.write_text(path.read_text() + "\n\ndef get_init_inputs():\n    return [7, 1]\n")
    check_norm(bound(read_kernel(str(path), op="rms_norm"), tmp_path))


def problem(path: Path, cache: Path, *args: Any, op: str = "rms_norm") -> str:
    with pytest.raises(CandidateError) as caught:
        bound(read_kernel(str(path), op=op), cache)(*args)
    assert caught.value.code == "bind_failed"
    return caught.value.message


@pytest.mark.parametrize(
    ("constructor", "said"),
    [
        (", groups):\n        super().__init__()\n", "the constructor requires 'groups', which is none of rms_norm's"),
        ("):\n        super().__init__()\n", "no parameter for rms_norm's 'weight' (8,): it has none"),
        (
            "):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(9))\n",
            "no parameter for rms_norm's 'weight' (8,): it has w (9,)",
        ),
        (
            "):\n        super().__init__()\n        self.a = self.b = None\n"
            "        self.a, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))\n",
            "no parameter for rms_norm's 'weight' (8,): a, b all have that shape",
        ),
        (
            "):\n        super().__init__()\n"
            "        self.weight, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))\n",
            "parameter 'shift' has no counterpart in rms_norm: it would stay random",
        ),
    ],
)
def test_a_module_that_does_not_fit_the_op_is_told_why(tmp_path: Path, constructor: str, said: str) -> None:
    import torch

    message = problem(norm_with(tmp_path, constructor), tmp_path, torch.ones(2, 8), torch.ones(8), 1e-5)
    assert "model.py: ModelNew: " in message
    assert said in message


def test_a_forward_with_more_arguments_than_the_op_is_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "    def forward(self, a, b, c, d): return a\n")
    assert "forward requires 4 arguments; rms_norm has 3: x, weight, eps" in problem(path, tmp_path)


def test_an_entry_that_is_no_module_is_told(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("# /// e2e\n# op: rms_norm\n# entry: f\n# binding: module\n# ///\nf = len\n")
    assert "'f' is not a class derived from torch.nn.Module" in problem(path, tmp_path)


def test_a_forward_may_take_the_whole_call(tmp_path: Path) -> None:
    body = (
        "    def __init__(self):\n        super().__init__()\n"
        "    def forward(self, x, weight, eps):\n"
        "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight\n"
    )
    check_norm(bound(read_kernel(str(written(tmp_path, body)), op="rms_norm"), tmp_path))


def test_it_stands_in_for_any_module_by_its_class(tmp_path: Path) -> None:
    import torch

    from e2e import registry
    from tests import tiny

    model = tiny.llama()
    op = registry.load_op("module:LlamaMLP")
    site = op.find_sites(model)[0]
    body = (
        "    def __init__(self, hidden_size, width):\n        super().__init__()\n"
        "        self.up_proj = nn.Linear(hidden_size, width, bias=False)\n"
        "        self.gate_proj = nn.Linear(hidden_size, width, bias=False)\n"
        "        self.down_proj = nn.Linear(width, hidden_size, bias=False)\n"
        "    def forward(self, x):\n"
        "        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))\n"
        f"\n\ndef get_init_inputs():\n    return [1, {2 * tiny.HIDDEN}]\n"
    )
    kernel = read_kernel(str(written(tmp_path, body)), op="module:LlamaMLP")
    x = torch.randn(1, 3, tiny.HIDDEN)
    expected = site.module(x)
    site.module.forward = op.forward_with(site, bound(kernel, tmp_path, op=op)).__get__(site.module)
    torch.testing.assert_close(site.module(x), expected)
