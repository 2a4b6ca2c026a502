"""Builds from real sources: right, remembered, bounded, and readable when they fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from e2e import registry
from e2e.builders import _compile, _toolchain, raw
from e2e.builders._calls import scalar_types
from e2e.builders._compile import first_error, raise_failure, resources
from e2e.builders._flags import architectures, checked_flags, runs_on, stated_architectures
from e2e.builders._nvcc import nvcc_command
from e2e.builders._openmp import has_openmp
from e2e.builders._toolchain import Compiler
from e2e.errors import CandidateError, EnvironmentFault, UsageError
from e2e.protocols import BuildTarget, Built, OpCall
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel, Manifest

KERNELS = Path(__file__).parents[1] / "kernels"
HIT_S = 0.2

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


class NormOp:
    """The op as builders see it: names, a schema, an allocator, dimensions."""

    name = "rms_norm"
    tensor_names = ("x", "weight")
    scalar_names = ("eps",)
    schema = "(Tensor x, Tensor weight, float eps) -> Tensor"

    def allocate(self, x: Any, weight: Any, eps: float) -> Any:
        import torch

        return torch.empty_like(x)

    def dims(self, call: OpCall) -> Mapping[str, int | str]:
        x = call.tensors[0]
        return {"rows": x.shape[0], "hidden": x.shape[-1], "dtype": "float32"}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copies of the test kernels that a test may edit, in a folder whose name needs quoting."""
    copy = tmp_path / "a folder, (quoted) & 'odd'"
    shutil.copytree(KERNELS, copy)
    return copy


def target(cache: Path, *, device: str = "cpu", timeout_s: float = 120.0) -> BuildTarget:
    return BuildTarget(device, "90" if device == "cuda" else None, cache, timeout_s)


def build(path: Path, where: BuildTarget) -> Built:
    kernel = read_kernel(str(path), op=None)
    built: Built = registry.load("builders", kernel.manifest.binding).build(kernel, where)
    return built


def bind(built: Built, dtype: str = "float32") -> Any:
    return registry.load("builders", built.builder).bind(built, NormOp(), dtype)


def candidate_error(path: Path, where: BuildTarget) -> CandidateError:
    with pytest.raises(CandidateError) as caught:
        build(path, where)
    return caught.value


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def check_norm(call: Any, device: str = "cpu", factor: float = 1.0) -> None:
    import torch

    x, weight = torch.randn(5, 96, device=device), torch.randn(96, device=device)
    expected = factor * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(call(x, weight, 1e-6), expected)


# ---- tvm-ffi


def test_a_build_computes_and_the_second_is_a_hit(shared_cache: Path) -> None:
    first = build(KERNELS / "scaled_norm.cpp", target(shared_cache))
    started = time.perf_counter()
    second = build(KERNELS / "scaled_norm.cpp", target(shared_cache))
    assert time.perf_counter() - started < HIT_S
    assert (first.cached, second.cached) == (False, True)
    assert second.artifact == first.artifact
    assert first.command is not None
    assert "-o kernel.so" in first.command
    check_norm(bind(second))


def test_editing_only_an_included_header_builds_again(folder: Path, tmp_path: Path) -> None:
    where = target(tmp_path / "cache")
    first = build(folder / "scaled_norm.cpp", where)
    edit(folder / "scaled_norm.h", "1.0", "2.0")
    second = build(folder / "scaled_norm.cpp", where)
    assert not second.cached
    check_norm(bind(second), factor=2.0)
    check_norm(bind(first))
    edit(folder / "scaled_norm.h", "2.0", "1.0")
    third = build(folder / "scaled_norm.cpp", where)
    assert third.cached
    assert third.artifact == first.artifact


def test_a_new_header_that_hides_another_builds_again(folder: Path, tmp_path: Path) -> None:
    where = target(tmp_path / "cache")
    (folder / "include").mkdir()
    (folder / "scaled_norm.h").rename(folder / "include" / "scaled_norm.h")
    edit(folder / "scaled_norm.cpp", "// dtypes: [float32]", "// dtypes: [float32]\n// flags: [-O0, -Iinclude]")
    assert not build(folder / "scaled_norm.cpp", where).cached
    assert build(folder / "scaled_norm.cpp", where).cached
    (folder / "scaled_norm.h").write_text("constexpr double kFactor = 3.0;\n")
    second = build(folder / "scaled_norm.cpp", where)
    assert not second.cached
    check_norm(bind(second), factor=3.0)


def test_arguments_come_in_the_manifests_order(shared_cache: Path) -> None:
    import torch

    call = bind(build(KERNELS / "reordered.cpp", target(shared_cache)))
    out = call(torch.full((3, 5), 7.0), torch.full((5,), 11.0), 0.5)
    assert out.flatten()[:5].tolist() == [0.5, 5.0, 3.0, 11.0, 7.0]


def test_an_argument_that_the_op_does_not_have_is_named(shared_cache: Path) -> None:
    import torch

    built = build(KERNELS / "reordered.cpp", target(shared_cache))
    for args, said in ((["out", "wieght"], "did you mean 'weight'?"), (["x"], "must name `out` once")):
        with pytest.raises(CandidateError, match=said) as caught:
            bind(changed(built, args=args))(torch.ones(3, 5), torch.ones(5), 0.5)
        assert caught.value.code == "bind_failed"


def test_a_missing_entry_names_what_is_exported(shared_cache: Path) -> None:
    built = build(KERNELS / "scaled_norm.cpp", target(shared_cache))
    with pytest.raises(CandidateError, match="'other' is not exported; exported: scaled_norm") as caught:
        bind(changed(built, entry="other"))
    assert caught.value.code == "bind_failed"


def test_a_dtype_without_an_entry_is_not_supported(shared_cache: Path) -> None:
    built = build(KERNELS / "scaled_norm.cpp", target(shared_cache))
    with pytest.raises(CandidateError, match="no entry for float16, only for float32") as caught:
        bind(changed(built, entry={"float32": "scaled_norm"}), "float16")
    assert caught.value.code == "dtype_not_supported"


def changed(built: Built, **fields: Any) -> Built:
    manifest = built.kernel.manifest.model_copy(update=fields)
    return built.model_copy(update={"kernel": built.kernel.model_copy(update={"manifest": manifest})})


# ---- builds that fail


def test_a_compile_error_is_one_line_with_its_place(shared_cache: Path) -> None:
    path = KERNELS / "does_not_compile.cpp"
    error = candidate_error(path, target(shared_cache))
    assert (error.code, error.line) == ("build_failed", 6)
    assert error.message.startswith(f"{path}:6: 'undeclared' was not declared in this scope (log: ")
    log = Path(error.message.rpartition("(log: ")[2].removesuffix(")"))
    assert "undeclared" in log.read_text()


def test_an_error_in_a_header_is_placed_where_it_is_included(folder: Path, shared_cache: Path) -> None:
    edit(folder / "scaled_norm.h", "1.0", "undeclared")
    error = candidate_error(folder / "scaled_norm.cpp", target(shared_cache))
    assert error.line == 12
    assert f"{folder / 'scaled_norm.h'}:2: 'undeclared' was not declared" in error.message


def test_a_missing_symbol_fails_the_build_and_not_the_load(shared_cache: Path) -> None:
    error = candidate_error(KERNELS / "does_not_link.cpp", target(shared_cache))
    assert "undefined reference to `defined_nowhere(int)'" in error.message


def test_an_endless_compiler_is_ended_with_its_children(folder: Path, shared_cache: Path) -> None:
    started = time.monotonic()
    error = candidate_error(folder / "never_ends.cpp", target(shared_cache, timeout_s=1.5))
    assert time.monotonic() - started < 10
    assert error.code == "timed_out"
    while processes_naming(folder / "never_ends.cpp"):  # killed, and giving its memory back
        assert time.monotonic() - started < 20
        time.sleep(0.05)


def test_a_compiler_that_eats_memory_is_stopped(
    folder: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compile, "memory_limit", lambda: 400 * 1024**2)
    edit(folder / "scaled_norm.cpp", '"scaled_norm.h"', '"/dev/zero"')
    assert candidate_error(folder / "scaled_norm.cpp", target(shared_cache)).code == "build_failed"


def test_a_source_that_changed_since_it_was_read_is_refused(folder: Path, shared_cache: Path) -> None:
    kernel = read_kernel(str(folder / "scaled_norm.cpp"), op=None)
    edit(folder / "scaled_norm.cpp", "double sum = 0", "double sum = 1")
    with pytest.raises(UsageError, match="changed since it was read"):
        registry.load("builders", "tvm-ffi").build(kernel, target(shared_cache))


def test_a_header_that_changes_during_the_build_is_refused(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow-g++"
    script.write_text(f'#!/bin/sh\ng++ "$@" && touch "{folder}/scaled_norm.h"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(script))
        with pytest.raises(UsageError, match=r"scaled_norm\.h changed while"):
            build(folder / "scaled_norm.cpp", target(tmp_path / "cache"))


def processes_naming(path: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [command for command in found if str(path) in command]


# ---- the cache


BUILD_SCRIPT = """
import sys
from pathlib import Path
from e2e import registry
from e2e.protocols import BuildTarget
from e2e.reading import read_kernel
kernel = read_kernel(sys.argv[1], op=None)
built = registry.load("builders", "tvm-ffi").build(kernel, BuildTarget("cpu", None, Path(sys.argv[2]), 120.0))
print(built.artifact)
"""


def start_build(source: Path, cache: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", BUILD_SCRIPT, str(source), str(cache)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=KERNELS.parents[1])


def test_two_runs_may_build_the_same_thing_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    runs = [start_build(KERNELS / "scaled_norm.cpp", cache) for _ in range(2)]
    artifacts = {run.communicate(timeout=100)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(artifacts) == 1
    assert build(KERNELS / "scaled_norm.cpp", target(cache)).cached
    assert list((cache / "tmp").iterdir()) == []


def test_a_killed_build_leaves_nothing_that_matters(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = start_build(folder / "never_ends.cpp", cache)
    waited = time.monotonic()
    while not processes_naming(folder / "never_ends.cpp") or not list(cache.glob("tmp/*/log")):
        assert time.monotonic() - waited < 60
        time.sleep(0.05)
    (compiler,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    run.kill()
    run.communicate()
    os.killpg(int(compiler), signal.SIGKILL)
    (left,) = (cache / "tmp").iterdir()
    assert not build(folder / "scaled_norm.cpp", target(cache)).cached
    assert left.exists()  # it might still be somebody's; a day later it is nobody's
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(left, (long_ago, long_ago))
    build(folder / "reordered.cpp", target(cache))
    assert not left.exists()


def test_a_damaged_artifact_is_built_again(tmp_path: Path) -> None:
    where = target(tmp_path / "cache")
    artifact = Path(build(KERNELS / "scaled_norm.cpp", where).artifact)
    artifact.write_bytes(artifact.read_bytes()[:1000])
    again = build(KERNELS / "scaled_norm.cpp", where)
    assert not again.cached
    assert Path(again.artifact) == artifact
    for index in (tmp_path / "cache" / "index").iterdir():
        index.write_text("{")
    assert not build(KERNELS / "scaled_norm.cpp", where).cached
    assert build(KERNELS / "scaled_norm.cpp", where).cached


def test_a_cache_that_cannot_be_written_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="E2E_CACHE_DIR"):
        build(KERNELS / "scaled_norm.cpp", target(tmp_path / "file" / "cache"))


# ---- compilers and devices


def test_no_compiler_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"no C\+\+ compiler.*apt install g\+\+.*e2e doctor"):
        build(KERNELS / "scaled_norm.cpp", target(tmp_path))


def test_no_nvcc_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_toolchain, "_USUAL_NVCC", tmp_path / "nvcc")
    monkeypatch.setattr(raw, "find_nvrtc", lambda: None)
    with pytest.raises(EnvironmentFault, match=r"no CUDA compiler.*install the CUDA toolkit.*e2e doctor"):
        build(KERNELS / "bare_norm.cu", target(tmp_path, device="cuda"))


@pytest.mark.parametrize("says", ["exit 1", "echo broken >&2; exit 3"])
def test_a_compiler_that_does_not_run_is_no_fault_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    for name in ("g++", "nvcc"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    with pytest.raises(EnvironmentFault, match="does not run"):
        build(KERNELS / "scaled_norm.cpp", target(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="does not run"):
        build(KERNELS / "bare_norm.cu", target(tmp_path, device="cuda"))


def test_a_cuda_kernel_in_a_cpu_run_names_the_candidate_that_runs_here(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"kernels/rmsnorm\.cpp.*e2e doctor"):
        build(KERNELS / "bare_norm.cu", target(tmp_path))


def test_a_cpu_kernel_in_a_cuda_run_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pass --device cpu"):
        build(KERNELS / "scaled_norm.cpp", target(tmp_path, device="cuda"))


def flagged(name: str, *flags: str) -> Kernel:
    kernel = read_kernel(str(KERNELS / name), op=None)
    return kernel.model_copy(update={"manifest": kernel.manifest.model_copy(update={"flags": list(flags)})})


@pytest.mark.parametrize(
    "flag",
    [
        *("-fplugin=x.so", "-B/tmp", "-specs=x", "-wrapper sh", "@file", "-o x", "-Wl,-rpath,/x", "-x", "c"),
        *("-fuse-ld=/x", "-fmodule-mapper=|sh", "-fdump-tree-all", "-fprofile-use=/x", "-DX=$(id)", "'"),
    ],
)
def test_flags_that_start_programs_or_write_files_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=r"scaled_norm\.cpp:1: flags: "):
        checked_flags(flagged("scaled_norm.cpp", flag), nvcc=False)


@pytest.mark.parametrize(
    "flag",
    ["-ccbin=/x", "--run", "-Xcompiler -fplugin=x", "-Xcompiler=-O2,-B/x", "-Xptxas --x=/y", "-odir x"],
)
def test_nvcc_flags_are_held_to_the_same_rule(flag: str) -> None:
    with pytest.raises(UsageError, match="may not be given to nvcc"):
        checked_flags(flagged("bare_norm.cu", flag), nvcc=True)


def test_ordinary_flags_pass() -> None:
    host = ["-O2", "-march=native", "-ffast-math", "-fopenmp", "-std=c++20", "-DN=4", "-Wall", "-lm"]
    assert checked_flags(flagged("scaled_norm.cpp", *host), nvcc=False) == host
    nvcc = ["--use_fast_math", "-maxrregcount 64", "-Xptxas -O3", "-Xcompiler=-O2,-Wall", "-arch=sm_90a"]
    assert checked_flags(flagged("bare_norm.cu", *nvcc), nvcc=True) == [
        *("--use_fast_math", "-maxrregcount=64", "-Xptxas", "-O3", "-Xcompiler", "-O2,-Wall"),
        "-arch=sm_90a",
    ]
    assert checked_flags(flagged("scaled_norm.cpp", "-I", "inc"), nvcc=False) == [f"-I{KERNELS / 'inc'}"]


@pytest.mark.parametrize(
    ("built_for", "device", "runs"),
    [
        (["sm_90"], "90", True),
        (["sm_90a"], "90", True),
        (["sm_80"], "89", True),
        (["sm_52"], "90", False),
        (["sm_90a"], "100", False),
        (["compute_80"], "90", True),
        (["sm_52", "compute_100"], "90", False),
    ],
)
def test_architectures_are_compared(built_for: list[str], device: str, runs: bool) -> None:
    assert runs_on(built_for, device) is runs


# ---- what compilers say


@pytest.mark.parametrize(
    ("log", "text", "line"),
    [
        ("In file included from k.cpp:1:\na.h:3:1: error: no x\nk.cpp:9:1: error: later", "no x", 3),
        ('k.cu(14): error: identifier "y" is undefined\n  x = y;\n', 'identifier "y" is undefined', 14),
        ('k.cu(2): catastrophic error: cannot open source file "q.h"', 'cannot open source file "q.h"', 2),
        ("k.cu(2): error #20-D: bad", "bad", 2),
        ("k.cpp:1:10: fatal error: q.h: No such file", "q.h: No such file", 1),
        ("ptxas /tmp/x.ptx, line 20; error   : Arguments mismatch", "Arguments mismatch", None),
        (
            "ptxas error   : Entry function 'f' uses too much shared data",
            "Entry function 'f' uses too much",
            None,
        ),
        ("nvcc fatal   : Unknown option '-march=native'", "Unknown option '-march=native'", None),
        (
            "/usr/bin/ld: /tmp/a.o: in function `f':\nk.cpp:(.text+0x1): undefined reference to `g()'",
            "`g()'",
            None,
        ),
        ("/usr/bin/ld: cannot find -lnope: No such file", "cannot find -lnope", None),
        ("cc1plus: out of memory allocating 65536 bytes", "out of memory", None),
        ("warning: a\nsomething odd\n\n", "something odd", None),
        ("", "without a message", None),
    ],
)
def test_the_first_error_is_found(log: str, text: str, line: int | None) -> None:
    found = first_error(log)
    assert text in found.text
    assert found.line == line


@pytest.mark.parametrize(
    "log",
    [
        "host_config.h(1): error: #error -- unsupported GNU version! gcc versions later than 15 are not",
        "nvcc fatal   : Unsupported gpu architecture 'compute_150'",
        "/tmp/x.s: fatal error: error writing: No space left on device",
    ],
)
def test_what_is_the_machines_fault_is_not_the_kernels(log: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be built here"):
        raise_failure(read_kernel(str(KERNELS / "bare_norm.cu"), op=None), log, tmp_path / "log")


def test_ptxas_resources_are_readable() -> None:
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'norm' for 'sm_90'\n"
        "ptxas info    : Function properties for norm\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem, 400 bytes cmem[0]\n"
    )
    assert resources(log) == ["norm: 32 registers, 128 bytes shared memory, 28 bytes spilled"]


# ---- nvcc, without a device


@needs_nvcc
@pytest.mark.nvcc
def test_a_bare_kernel_builds_and_reports_its_resources(folder: Path, shared_cache: Path) -> None:
    where = target(shared_cache, device="cuda")
    first = build(folder / "bare_norm.cu", where)
    started = time.perf_counter()
    assert build(folder / "bare_norm.cu", where).cached
    assert time.perf_counter() - started < HIT_S
    assert first.artifact.endswith("kernel.cubin")
    assert len(first.resources) == 1
    assert first.resources[0].startswith("bare_norm: ")
    assert "registers" in first.resources[0]


@needs_nvcc
@pytest.mark.nvcc
def test_a_cuda_compile_error_is_one_line_with_its_place(shared_cache: Path) -> None:
    error = candidate_error(KERNELS / "does_not_compile.cu", target(shared_cache, device="cuda"))
    assert (error.code, error.line) == ("build_failed", 7)
    assert 'identifier "undeclared" is undefined' in error.message


@needs_nvcc
@pytest.mark.nvcc
def test_a_path_that_a_shell_would_read_never_reaches_nvcc(tmp_path: Path) -> None:
    strange = tmp_path / "$(touch ran)"
    shutil.copytree(KERNELS, strange)
    with pytest.raises(UsageError, match=r"a shell reads '\$'; rename it"):
        build(strange / "bare_norm.cu", target(tmp_path, device="cuda"))
    assert not build(strange / "scaled_norm.cpp", target(tmp_path)).cached


@needs_nvcc
@pytest.mark.nvcc
def test_flags_for_another_device_fail_before_the_build(shared_cache: Path) -> None:
    kernel = flagged("bare_norm.cu", "-arch=sm_75")
    with pytest.raises(CandidateError, match="built for sm_75, and this device is sm_90"):
        registry.load("builders", "raw").build(kernel, target(shared_cache, device="cuda"))


@pytest.mark.parametrize("memory", ["not json", "[]", "3", "\xff", "[" * 200_000])
def test_what_is_remembered_of_a_compiler_is_asked_again_where_it_is_damaged(tmp_path: Path, memory: str) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "openmp.json").write_text(memory, encoding="latin-1")
    assert not has_openmp(Compiler(("false",), "a compiler that builds nothing"), tmp_path)


# ---- Python


def test_a_python_kernel_is_its_function(shared_cache: Path) -> None:
    built = build(KERNELS / "plain_norm.py", target(shared_cache))
    call = bind(built)
    check_norm(call)
    assert call.__name__ == "plain_norm"
    assert bind(built) is call


def test_python_arguments_come_in_the_manifests_order(folder: Path, shared_cache: Path) -> None:
    edit(folder / "plain_norm.py", "# entry: plain_norm", "# entry: plain_norm\n# args: [weight, x, eps]")
    edit(folder / "plain_norm.py", "(x, weight, eps)", "(weight, x, eps)")
    built = build(folder / "plain_norm.py", target(shared_cache))
    check_norm(bind(built))
    with pytest.raises(CandidateError, match="args: no 'epsilon' in this op"):
        bind(changed(built, args=["weight", "x", "epsilon"]))


def test_a_failing_import_is_told_with_its_line(shared_cache: Path) -> None:
    built = build(KERNELS / "fails_on_import.py", target(shared_cache))
    with pytest.raises(CandidateError, match="No module named 'no_such_package_anywhere'") as caught:
        bind(built)
    assert (caught.value.code, caught.value.line) == ("bind_failed", 7)
    assert not [name for name in sys.modules if built.kernel.sha256[:16] in name]


def test_a_python_syntax_error_fails_the_build_with_its_line(folder: Path, shared_cache: Path) -> None:
    edit(folder / "plain_norm.py", "    return x *", "    return return x *")
    error = candidate_error(folder / "plain_norm.py", target(shared_cache))
    assert (error.code, error.line) == ("build_failed", 13)


def test_a_missing_python_entry_names_what_is_there(shared_cache: Path) -> None:
    built = build(KERNELS / "plain_norm.py", target(shared_cache))
    with pytest.raises(CandidateError, match="'fancy_norm' is not in it; it has: plain_norm"):
        bind(changed(built, entry="fancy_norm"))


def test_a_python_file_that_changes_during_the_run_is_refused(folder: Path, shared_cache: Path) -> None:
    built = build(folder / "plain_norm.py", target(shared_cache))
    edit(folder / "plain_norm.py", "eps)", "1.0)")
    with pytest.raises(CandidateError, match="changed during the run"):
        bind(built)


def test_an_installed_callable_is_bound_by_its_name(shared_cache: Path) -> None:
    kernel = read_kernel("torch.nn.functional:silu", op="rms_norm")
    built = registry.load("builders", "python").build(kernel, target(shared_cache))
    import torch

    assert built.artifact == "torch.nn.functional:silu"
    assert bind(built) is torch.nn.functional.silu


# ---- on a device


@pytest.mark.gpu
def test_a_bare_kernel_computes_on_the_current_stream(folder: Path, shared_cache: Path) -> None:
    import torch

    call = bind(build(folder / "bare_norm.cu", target(shared_cache, device="cuda")))
    check_norm(call, "cuda")
    wide = torch.randn(64, 7, device="cuda").t()  # not contiguous, and neither is what empty_like makes of it
    weight = torch.randn(64, device="cuda")
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    out = call(wide, weight, 1e-6)
    torch.testing.assert_close(out, expected)
    assert out.stride() == torch.empty_like(wide).stride()
    assert call(torch.empty(0, 64, device="cuda"), weight, 1e-6).shape == (0, 64)
    stream = torch.cuda.Stream()
    x = torch.zeros(4096, 4096, device="cuda")
    ones = torch.ones(4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(2.0)
        late = call(x, ones, 0.0)
    torch.cuda.synchronize()
    torch.testing.assert_close(late, torch.ones_like(late))


@pytest.mark.gpu
def test_a_refused_launch_has_cudas_own_name_for_it(folder: Path, shared_cache: Path) -> None:
    import torch

    edit(folder / "bare_norm.cu", "block: [128]", "block: [2048]")
    call = bind(build(folder / "bare_norm.cu", target(shared_cache, device="cuda")))
    with pytest.raises(CandidateError, match=r"CUDA_ERROR_INVALID_VALUE.*grid") as caught:
        call(torch.ones(2, 64, device="cuda"), torch.ones(64, device="cuda"), 1e-6)
    assert caught.value.code == "candidate_raised"


@pytest.mark.gpu
def test_more_shared_memory_than_usual_is_asked_for(folder: Path, shared_cache: Path) -> None:
    edit(folder / "bare_norm.cu", '"4 * 128"', '"4 * 20000"')
    check_norm(bind(build(folder / "bare_norm.cu", target(shared_cache, device="cuda"))), "cuda")
    edit(folder / "bare_norm.cu", '"4 * 20000"', '"4 * 200000"')
    with pytest.raises(CandidateError, match=r"800000 bytes of shared memory.*CUDA_ERROR"):
        check_norm(bind(build(folder / "bare_norm.cu", target(shared_cache, device="cuda"))), "cuda")


@pytest.mark.gpu
def test_a_missing_bare_entry_fails_the_bind(folder: Path, shared_cache: Path) -> None:
    built = build(folder / "bare_norm.cu", target(shared_cache, device="cuda"))
    with pytest.raises(CandidateError, match=r"'other' cannot be loaded: .*CUDA_ERROR_NOT_FOUND"):
        bind(changed(built, entry="other"))


def test_architectures_are_read_from_flags() -> None:
    flags = ["-O3", "-arch=sm_90a", "-gencode=arch=compute_80,code=compute_80"]
    assert architectures(flags) == ["sm_90a", "compute_80"]


# ---- Scalars of other ops


def raw_values(op_name: str, scalars: tuple[Any, ...], names: list[str]) -> list[Any]:
    """What a raw kernel would be launched with on the op's example, for those arguments."""
    op = registry.load_op(op_name)
    call = OpCall(op.example("float32", "cpu", 1).tensors, scalars)
    spec = str(KERNELS / "bare_norm.cu")
    built = Built(kernel=read_kernel(spec, op=None), builder="raw", artifact="", seconds=0.0, cached=True)
    return [value.value for value in raw._values(names, op, built, call)[0]]


def test_an_absent_scalar_reaches_a_raw_kernel_as_zero() -> None:
    found = raw_values("attention", (0.5, True, None, None), ["scale", "causal", "softcap", "window", "keys"])
    assert found == [0.5, True, 0.0, 0, 64]


def test_a_raw_kernel_takes_no_text_and_is_told_so() -> None:
    assert scalar_types(registry.load_op("cross_entropy"))["reduction"] == "str"
    with pytest.raises(CandidateError, match="`reduction` is text or a list, which a raw kernel cannot take"):
        raw_values("cross_entropy", (-100, "mean", 0.0), ["ignore_index", "reduction"])


def test_what_to_build_for_is_said_once() -> None:
    assert stated_architectures(built_for(flagged("bare_norm.cu"), "sm_90a")) == ["sm_90a"]
    with pytest.raises(UsageError, match="both say what to build for"):
        stated_architectures(built_for(flagged("bare_norm.cu", "-arch=sm_75"), "sm_90"))
    with pytest.raises(ValidationError):
        Manifest.model_validate({**flagged("bare_norm.cu").manifest.model_dump(), "arch": "hopper"})


def built_for(kernel: Kernel, *arch: str) -> Kernel:
    fields = {**kernel.manifest.model_dump(), "arch": list(arch)}
    return kernel.model_copy(update={"manifest": Manifest.model_validate(fields)})


@needs_nvcc
@pytest.mark.nvcc
def test_a_stated_architecture_reaches_nvcc_and_without_any_it_is_left_to_it(tmp_path: Path) -> None:
    kernel = flagged("bare_norm.cu")
    known = built_for(kernel, "sm_90", "sm_100")
    nowhere = replace(target(tmp_path, device="cuda"), arch=None)
    assert "arch=compute_100,code=sm_100" in nvcc_command(known, nowhere).argv
    assert "-gencode" not in nvcc_command(kernel, nowhere).argv
    assert not registry.load("builders", "raw").build(kernel, nowhere).cached
