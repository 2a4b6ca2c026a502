"""Sanitizers: which tools a kernel gets, how they are started, and what of their words is about the kernel."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import registry
from e2e.builders._sanitize import sanitizing
from e2e.building import compiled
from e2e.errors import EnvironmentFault, UsageError
from e2e.measure.devices import Device
from e2e.numerics.captures import Captured, save_calls
from e2e.protocols import BuildTarget, Built
from e2e.reading import read_kernel
from e2e.sanitizers import COMPUTE, Sanitizers, Surroundings, Tool, _findings, _ran, faults_of
from e2e.schema.evidence import Fault, SanitizerRun
from e2e.schema.kernel import Kernel
from e2e.schema.words import ReasonCode, ReasonKind, Stage, kind_of
from e2e.wording import sanitized

REPOSITORY = Path(__file__).parents[2]
PLANTED = REPOSITORY / "tests" / "kernels" / "bad" / "reads_past_the_end.cpp"
HONEST = REPOSITORY / "kernels" / "silu_mul.cpp"
CUDA = REPOSITORY / "kernels" / "silu_mul.cu"
ASAN, MEMCHECK = Tool("asan+ubsan", "g++", (), {}), Tool("memcheck", "2025.1", (), {})

OVERFLOW = f"""\
=================================================================
==41==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x7f at pc 0x7f bp 0x7f sp 0x7f
READ of size 4 at 0x7f94652fb800 thread T0
    #0 0x7f9465b88613 in (anonymous namespace)::silu_mul(tvm::ffi::TensorView) {PLANTED}:26
    #1 0x7f9465b8b4df in void tvm::ffi::unpack_call<void>(tvm::ffi::Any*) /usr/include/function_detail.h:229

0x7f94652fb800 is located 0 bytes to the right of 1048576-byte region [0x7f94651fb800,0x7f94652fb800)
allocated by thread T0 here:
    #0 0x7f in __interceptor_posix_memalign ../../../../src/libsanitizer/asan/asan_malloc_linux.cpp:145
SUMMARY: AddressSanitizer: heap-buffer-overflow {PLANTED}:26
==41==ERROR: AddressSanitizer: SEGV on unknown address 0x000000000000 (pc 0x7f bp 0x7f sp 0x7f T0)
    #0 0x7f in silu_mul {PLANTED}:30:7
==41==ERROR: AddressSanitizer: heap-use-after-free on address 0x7f at pc 0x7f
WRITE of size 8 at 0x7f thread T0
    #0 0x7f in at::native::something /torch/aten/src/ATen/native/Something.cpp:9
==41==ABORTING
{PLANTED}:28:11: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented in type 'int'
/torch/c10/util/Half.h:9:3: runtime error: load of misaligned address
"""
OF_COMPUTE = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at silu_mul(const float *, const float *, float *, long)+0x70 in {CUDA}:40
=========     by thread (31,0,0) in block (7,0,0)
=========     Address 0x7f2a00401000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a00400000 of size 4096 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at silu_mul(const float *, const float *, float *, long)+0x70 in {CUDA}:40
=========     by thread (30,0,0) in block (7,0,0)
=========
========= Error: Race reported between Write access at silu_mul(float *)+0x90 in {CUDA}:51
=========     and Read access at silu_mul(float *)+0xb0 in {CUDA}:53 [4096 hazards]
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<4>(int)+0x30 in /torch/CUDALoops.cuh:80
=========
========= Barrier error detected. Divergent thread(s) in block.
=========     at __syncthreads+0x10 in {CUDA}:60
=========
========= ERROR SUMMARY: 4 errors
"""


def kernel(path: Path = PLANTED) -> Kernel:
    return read_kernel(str(path), op=None)


def found(tool: Tool, said: str, path: Path) -> list[tuple[int, str]]:
    return [(item.line, item.message) for item in _findings(tool, said, kernel(path))]


def test_of_asan_and_ubsan_what_the_kernels_own_code_does_is_found() -> None:
    assert [
        (26, "read of 4 bytes: heap-buffer-overflow, 0 bytes after an allocation of 1048576"),
        (30, "SEGV"),
        (28, "signed integer overflow: 2147483647 + 1 cannot be represented in type 'int'"),
    ] == found(ASAN, OVERFLOW, PLANTED)


def test_of_compute_sanitizer_each_place_is_told_once() -> None:
    assert [
        (40, "Invalid __global__ read of size 4 bytes"),
        (51, "Race reported between Write access"),
        (60, "Barrier error detected. Divergent thread(s) in block."),
    ] == found(MEMCHECK, OF_COMPUTE, CUDA)


def test_nothing_said_is_nothing_found() -> None:
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert [] == found(MEMCHECK, clean, CUDA)
    assert [] == found(ASAN, "", PLANTED)


def test_a_finding_is_a_fault_with_file_and_line() -> None:
    (finding, *_) = _findings(ASAN, OVERFLOW, kernel())
    ran = SanitizerRun(
        tool="asan+ubsan", version="g++", dtype="float32", calls=3, declined=0, finished=True, findings=[finding]
    )
    (fault,) = faults_of(ran, stage=Stage.CHECK)
    assert (ReasonCode.UNDEFINED_BEHAVIOUR, str(PLANTED), 26) == (fault.code, fault.where.file, fault.where.line)
    assert ReasonKind.INCORRECT is kind_of(fault.code)


def run_of(calls: int, *, finished: bool = True) -> SanitizerRun:
    return SanitizerRun(tool="memcheck", version="1", dtype="float32", calls=calls, declined=0, finished=finished)


def test_clean_is_said_of_what_was_gone_through_only() -> None:
    assert "clean over 7 calls" == sanitized([run_of(3), run_of(4)])
    assert "0 findings; it did not get to the end" == sanitized([run_of(0, finished=False)])


# ---- Which tools


def test_python_on_a_cpu_has_nothing_to_look_into() -> None:
    with pytest.raises(UsageError, match=r"--sanitize looks into compiled code, and .*plain_norm\.py is Python"):
        Sanitizers(kernel(REPOSITORY / "tests" / "kernels" / "plain_norm.py"), device="cpu")


def test_an_op_of_models_is_refused() -> None:
    with pytest.raises(UsageError, match="module:LeakyIntegrator is known in one only"):
        Sanitizers(kernel(REPOSITORY / "kernels" / "leaky_integrator.cpp"), device="cpu")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_compiler_without_asan_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path / "g++", "echo libasan.so")))
    with pytest.raises(EnvironmentFault, match=r"has no libasan\.so: install it .*apt install"):
        Sanitizers(kernel(), device="cpu")


def test_a_machine_without_compute_sanitizer_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentFault, match="needs compute-sanitizer: it is in no CUDA_HOME/bin"):
        Sanitizers(kernel(CUDA), device="cuda")


def test_each_tool_of_compute_sanitizer_is_run_over_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: Callable[[Path], Built]
) -> None:
    words = tmp_path / "words"
    program(tmp_path / "bin" / "compute-sanitizer", f'echo "version 2025.1"; echo "$@" >> {words}')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    around = Surroundings((), {"PATH": os.environ["PATH"]}, tmp_path, timeout_s=20)
    calls = tmp_path / "calls.safetensors"
    looked = Sanitizers(kernel(CUDA), device="cuda").look(built(CUDA), dtype="float32", calls=calls, around=around)
    assert [ReasonCode.CANDIDATE_CRASHED] * 4 == [seen.code for seen in looked if isinstance(seen, Fault)]
    rows = [row.split() for row in words.read_text().splitlines() if "--tool" in row]
    assert [*COMPUTE] == [row[row.index("--tool") + 1] for row in rows]
    assert all("e2e.sanitized" in row and "--log-file" in row for row in rows)


# ---- How they run


@pytest.fixture
def built() -> Callable[[Path], Built]:
    def of(path: Path) -> Built:
        return Built(kernel=kernel(path), builder="tvm-ffi", artifact="none.so", seconds=0.0, cached=False)

    return of


def test_a_process_that_never_ends_is_ended(tmp_path: Path) -> None:
    tool = Tool("memcheck", "1", ("sh", "-c", "sleep 60; true"), {})
    around = Surroundings((), {"PATH": os.environ["PATH"]}, tmp_path, timeout_s=0.3)
    assert (None, "\n") == _ran(tool, tmp_path / "request.json", tmp_path, around)


def test_flags_for_sanitizers_are_part_of_what_is_built() -> None:
    plain = BuildTarget("cpu", None, Path(), 1.0)
    assert [] == sanitizing(plain, cuda=False)
    assert "-fsanitize=address,undefined" in sanitizing(
        BuildTarget("cpu", None, Path(), 1.0, sanitize=True), cuda=False
    )


@pytest.mark.slow
def test_a_read_past_the_end_is_found_where_the_output_is_right_and_an_honest_kernel_is_clean(
    tmp_path: Path, e2e_cache: Path
) -> None:
    op = registry.load_op("silu_mul")
    example = op.example("float32", "cpu", 1)
    calls = tmp_path / "calls.safetensors"
    save_calls(
        calls, [Captured("", "example", example), Captured("", "one row", next(iter(op.edge_calls(example, 1)))[1])]
    )
    around = Surroundings((), dict(os.environ), tmp_path, timeout_s=300)
    runs = []
    for path in (PLANTED, HONEST):
        built = compiled(kernel(path), Device("cpu"), timeout_s=120, sanitize=True)
        assert isinstance(built, Built)
        (ran,) = Sanitizers(kernel(path), device="cpu").look(built, dtype="float32", calls=calls, around=around)
        assert isinstance(ran, SanitizerRun) and ran.finished and ran.calls == 2
        runs.append(ran)
    planted, honest = runs
    assert [(26, "heap-buffer-overflow")] == [
        (item.line, item.message.split(": ")[1].split(",")[0]) for item in planted.findings
    ]
    assert [] == honest.findings
