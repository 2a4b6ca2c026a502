"""Several launches of bare functions as one call, on a driver that computes in host memory."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import registry
from e2e.builders._driver import LaunchConfig
from e2e.builders.raw import launcher
from e2e.errors import CandidateError, UsageError
from e2e.numerics.compare import exactly, judge_outputs
from e2e.protocols import BuildTarget, Built
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel, Manifest

TWO_PASS = Path(__file__).parents[1] / "kernels" / "two_pass_norm.cu"
NORM = registry.load_op("rms_norm")
EPS = 1e-5
STREAM = 7


def floats(pointer: int, count: int) -> torch.Tensor:
    """Host memory at the address, as a tensor that shares it."""
    return torch.frombuffer((ctypes.c_float * count).from_address(pointer), dtype=torch.float32)


class HostDriver:
    """Functions are Python ones, their handles places in a list; a launch runs one at once."""

    def __init__(self, *functions: Callable[..., None]) -> None:
        self.functions = functions
        self.launched: list[tuple[str, tuple[int, ...], int | None]] = []

    def launch(self, config_at: int, function: int, arguments_at: int, extra: None) -> int:
        config, run = LaunchConfig.from_address(config_at), self.functions[function]
        kinds = run.__annotations__
        addresses = (ctypes.c_void_p * (len(kinds) - 1)).from_address(arguments_at)
        names = [name for name in kinds if name != "return"]
        values = [KINDS[kinds[name]].from_address(at).value for name, at in zip(names, addresses, strict=True)]
        self.launched.append((run.__name__, (config.grid_x, config.block_x, config.shared_bytes), config.stream))
        run(*values)
        return 0

    def allow_shared(self, function: int, shared_bytes: int) -> None: ...


KINDS = {"int": ctypes.c_longlong, "float": ctypes.c_float, "Any": ctypes.c_void_p}
"""C types by the annotations of the functions below: `Any` is an address."""


def scales(x: Any, eps: float, scale: Any, hidden: int) -> None:
    rows = len(SIZES)
    found = floats(x, rows * hidden).reshape(rows, hidden)
    floats(scale, rows).copy_(torch.rsqrt(found.pow(2).mean(-1) + eps))


def apply(x: Any, weight: Any, scale: Any, out: Any, rows: int, hidden: int) -> None:
    scaled = floats(x, rows * hidden).reshape(rows, hidden) * floats(scale, rows)[:, None]
    floats(out, rows * hidden).copy_((scaled * floats(weight, hidden)).flatten())


SIZES = range(5)
"""As many rows as the tests have."""


def built_of(kernel: Kernel) -> Built:
    return Built(kernel=kernel, builder="raw", artifact="", seconds=0.0, cached=True)


def changed(**fields: Any) -> Built:
    kernel = read_kernel(str(TWO_PASS), op=None)
    manifest = Manifest.model_validate({**kernel.manifest.model_dump(), **fields})
    return built_of(kernel.model_copy(update={"manifest": manifest}))


def launches(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"launch": [{"grid": ["rows"], "block": [1], **item} for item in fields]}


def call_of(driver: HostDriver, built: Built) -> Callable[..., Any]:
    return launcher(driver, range(len(driver.functions)), NORM, built, lambda: STREAM)


def test_launches_run_in_order_and_share_their_scratch_memory() -> None:
    driver = HostDriver(scales, apply)
    call = call_of(driver, changed())
    for hidden in (96, 33, 96):
        x, weight = torch.randn(len(SIZES), hidden), torch.randn(hidden)
        torch.testing.assert_close(call(x, weight, EPS), NORM.reference(x, weight, EPS))
    last = [("scales", (5, 128, 512), STREAM), ("apply", ((5 * 96 + 255) // 256, 256, 0), STREAM)]
    assert driver.launched[-2:] == last


def test_a_launch_without_blocks_is_left_out_and_the_others_run() -> None:
    driver = HostDriver(scales, apply)
    built = changed(
        **launches({"entry": "scales", "grid": ["rows - 5"], "args": ["x", "eps", "scale", "hidden"]}, LAST)
    )
    call_of(driver, built)(torch.randn(5, 8), torch.randn(8), EPS)
    assert [name for name, *_ in driver.launched] == ["apply"]


LAST = {"entry": "apply", "args": ["x", "weight", "scale", "out", "rows", "hidden"]}


def test_what_is_not_dense_is_copied_once_for_all_launches_and_comes_back_as_it_lay() -> None:
    call = call_of(HostDriver(scales, apply), changed())
    x, weight = torch.randn(64, 5).t(), torch.randn(64)
    out = call(x, weight, EPS)
    torch.testing.assert_close(out, NORM.reference(x, weight, EPS))
    assert out.stride() == torch.empty_like(x).stride()


def test_every_output_and_all_scratch_memory_must_be_given_to_some_launch() -> None:
    with pytest.raises(CandidateError, match="no launch is given `out`"):
        call_of(HostDriver(scales), changed(**launches({"args": ["x", "eps", "scale", "hidden"]})))
    with pytest.raises(CandidateError, match="no launch is given `scale`"):
        call_of(HostDriver(apply), changed(**launches({"args": ["x", "weight", "out"]})))


def test_a_size_that_a_call_does_not_have_is_named() -> None:
    built = changed(workspace=[{"scale": "columns, float32"}])
    with pytest.raises(CandidateError, match=r"workspace: .*columns"):
        call_of(HostDriver(scales, apply), built)(torch.randn(5, 8), torch.randn(8), EPS)


def double(q: Any, k: Any, out0: Any, out1: Any, rows: int) -> None:
    floats(out0, rows).copy_(2 * floats(q, rows))
    floats(out1, rows).copy_(2 * floats(k, rows))


def test_several_outputs_are_given_by_number() -> None:
    rope = registry.load_op("rope")
    manifest = Manifest(
        op="rope",
        entry="double",
        binding="raw",
        args=["q", "k", "out0", "out1", "rows"],
        launch=[{"grid": [1], "block": [1]}],
    )
    built = built_of(Kernel(spec="k.cu", path="k.cu", sha256="0", manifest=manifest, format="block"))
    call = launcher(HostDriver(double), [0], rope, built, lambda: STREAM)
    q, k, angles = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 3, 2)
    first, second = call(q, k, angles, angles)
    assert torch.equal(first.flatten(), torch.cat([2 * q.flatten()[:3], first.flatten()[3:]]))
    assert torch.equal(second.flatten()[:3], 2 * k.flatten()[:3])


# ---- the block


def read(tmp_path: Path, launch: str) -> Manifest:
    path = tmp_path / "norm.cu"
    path.write_text(TWO_PASS.read_text().replace("// launch:\n", f"// launch: {launch}\n// claim:\n"))
    path.write_text(
        "\n".join(row for row in path.read_text().splitlines() if "// claim" not in row and "//   -" not in row)
    )
    return read_kernel(str(path), op=None).manifest


def test_one_launch_is_written_without_a_list_and_takes_the_manifests_entry(tmp_path: Path) -> None:
    launch = "{grid: [rows], block: [128], args: [x, weight, scale, out, rows, hidden]}"
    manifest = read(tmp_path, f"{launch}\n// entry: apply")
    assert [launch.entry for launch in manifest.launch] == [None]
    assert manifest.entries == ["apply"]


def test_where_every_launch_names_its_function_the_entry_is_left_out() -> None:
    manifest = read_kernel(str(TWO_PASS), op=None).manifest
    assert manifest.entries == ["scales", "apply"]
    assert manifest.entry == "scales"


def test_a_launch_may_name_a_function_for_every_dtype(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="entry: no function for float32, which `dtypes` lists"):
        read(tmp_path, "[{entry: {bfloat16: scales}, grid: [rows], block: [1]}]")


def test_a_field_that_a_launch_does_not_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"launch\[0\].blocks: no such field; did you mean 'block'"):
        read(tmp_path, "[{entry: scales, grid: [rows], blocks: [1]}]")


# ---- with a compiler, with a device


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.nvcc
def test_several_functions_of_a_file_are_built_together(tmp_path: Path) -> None:
    kernel = read_kernel(str(TWO_PASS), op=None)
    built = registry.load("builders", "raw").build(kernel, BuildTarget("cuda", "90", tmp_path, 120))
    assert [row.partition(":")[0] for row in sorted(built.resources)] == ["apply", "scales"]


@pytest.mark.gpu
def test_a_kernel_of_two_launches_is_right_on_its_ops_hard_inputs(e2e_cache: Path) -> None:
    from e2e.measure.devices import find_device

    kernel, device = read_kernel(str(TWO_PASS), op=None), find_device("cuda", kernel_device="cuda")
    builder = registry.load("builders", "raw")
    call = builder.bind(builder.build(kernel, BuildTarget("cuda", device.arch, e2e_cache, 120)), NORM, "float32")
    example = NORM.example("float32", "cuda", 1)
    for label, item in [("example", example), *NORM.edge_calls(example, 1)]:
        value, plain = (function(*item.tensors, *item.scalars) for function in (call, NORM.reference))
        assert judge_outputs(value, plain, exactly(NORM, item), ratio=2)[0] is None, label
