"""NVRTC in the place of nvcc: found, asked, bounded, readable.

On a machine with libnvrtc and CUDA `python -m pytest tests/unit/test_nvrtc.py` also compares it with nvcc.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from e2e import registry
from e2e.builders import _nvrtc, raw
from e2e.builders._nvrtc import Found, find_nvrtc, nvrtc_command, nvrtc_compiler
from e2e.builders._nvrtc_program import Nvrtc, build, included
from e2e.builders._toolchain import Compiler, find_nvcc
from e2e.errors import CandidateError, EnvironmentFault
from e2e.protocols import BuildTarget, Built
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel

KERNELS = Path(__file__).parents[1] / "kernels"
TWO_PASS, BROKEN = KERNELS / "two_pass_norm.cu", KERNELS / "does_not_compile.cu"
NVCC, NVRTC = find_nvcc(), find_nvrtc()
needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="no libnvrtc")
needs_both = pytest.mark.skipif(NVRTC is None or NVCC is None, reason="needs libnvrtc and nvcc")


@dataclass
class FakeLibrary:
    """Compiles anything but `undeclared`, and remembers what it was asked."""

    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def version(self) -> tuple[int, int]:
        return 13, 5

    def compile(self, source: bytes, name: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        self.asked.append((name, list(options)))
        if b"undeclared" in source:
            return None, f'{name}(7): error: identifier "undeclared" is undefined'
        return b"cubin of " + source[:4], "ptxas info    : Compiling entry function 'f' for 'sm_90'"


# ---- The program


def test_a_build_leaves_a_cubin_and_the_files_that_went_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / "more").mkdir(parents=True)
    source = folder / "k.cu"
    source.write_text('#include "beside.h"\n#include <far.h>\n#include <absent.h>\n')
    (folder / "beside.h").write_text('#  include "beside.h"\n')
    (folder / "more" / "far.h").write_text("")
    library = FakeLibrary()
    words = [f"-I{folder}/more", "-MD", "-MF", f"{tmp_path}/d", "-o", f"{tmp_path}/k.cubin", str(source)]
    code, log = build(library, ["-arch=sm_90", *words])
    assert (code, "Compiling entry" in log) == (0, True)
    assert (tmp_path / "k.cubin").read_bytes() == b"cubin of #inc"
    assert library.asked == [(str(source), [f"-I{folder}", "-arch=sm_90", f"-I{folder}/more"])]
    named = (tmp_path / "d").read_text().replace("\\ ", " ")
    assert [name in named for name in ("k.cu", "beside.h", "far.h", "absent.h")] == [True, True, True, False]
    assert included(source, [folder / "more"]) == [source, folder / "beside.h", folder / "more" / "far.h"]


def test_a_failed_build_leaves_the_log_and_nothing_else(tmp_path: Path) -> None:
    code, log = build(FakeLibrary(), ["-MD", "-MF", f"{tmp_path}/d", "-o", f"{tmp_path}/k.cubin", str(BROKEN)])
    assert (code, log.startswith(f"{BROKEN}(7): error")) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_it_says_its_version() -> None:
    assert build(FakeLibrary(), ["--version"]) == (0, "NVRTC 13.5")


class FakeFunctions:
    """What ctypes would find in the library: C functions that write where pointers say."""

    def __init__(self, *, fails: str | None = None, cubin: bytes = b"\x7fELF") -> None:
        self.fails, self.cubin, self.log = fails, cubin, b"said\0"
        self.options: list[bytes] = []
        self.nvrtcGetErrorString = Said()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 6 if name == self.fails else self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> int:
        if name == "nvrtcVersion":
            for pointer, value in zip(arguments, (12, 9), strict=True):
                pointer._obj.value = value
        elif name == "nvrtcCompileProgram":
            self.options = list(arguments[2])
        elif name in ("nvrtcGetProgramLogSize", "nvrtcGetCUBINSize"):
            arguments[1]._obj.value = len(self._text(name))
        elif name in ("nvrtcGetProgramLog", "nvrtcGetCUBIN"):
            ctypes.memmove(arguments[1], self._text(name), len(self._text(name)))
        return 0

    def _text(self, name: str) -> bytes:
        return self.log if "Log" in name else self.cubin


class Said:
    """nvrtcGetErrorString."""

    restype: Any = None

    def __call__(self, code: int) -> bytes:
        return b"NVRTC_ERROR_COMPILATION"


def test_the_librarys_functions_are_called_as_its_header_says() -> None:
    functions: Any = FakeFunctions()
    library = Nvrtc(functions)
    assert library.version() == (12, 9)
    assert library.compile(b"source", "k.cu", ["-arch=sm_90", "-w"]) == (b"\x7fELF", "said")
    assert functions.options == [b"-arch=sm_90", b"-w"]
    assert functions.nvrtcGetErrorString.restype is ctypes.c_char_p


def test_without_a_cubin_or_with_an_error_there_is_none() -> None:
    broken: Any = FakeFunctions(fails="nvrtcCompileProgram")
    assert Nvrtc(broken).compile(b"", "k.cu", []) == (None, "said")
    broken.log = b""
    assert Nvrtc(broken).compile(b"", "k.cu", []) == (None, "nvrtcCompileProgram: NVRTC_ERROR_COMPILATION")
    virtual: Any = FakeFunctions(cubin=b"")
    assert Nvrtc(virtual).compile(b"", "k.cu", [])[0] is None
    with pytest.raises(OSError, match="nvrtcCreateProgram: NVRTC_ERROR_COMPILATION"):
        Nvrtc(FakeFunctions(fails="nvrtcCreateProgram")).compile(b"", "k.cu", [])  # type: ignore[arg-type]


def test_a_library_that_does_not_load_ends_the_program_with_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "libnvrtc.so.13"
    damaged.write_bytes(b"not a library")
    argv = [sys.executable, "-P", str(Path(_nvrtc.__file__).with_name("_nvrtc_program.py")), str(damaged), "--version"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert "cannot be used" in ran.stderr


# ---- What it is called with


def kernel_of(*flags: str, arch: Sequence[str] = ()) -> Kernel:
    kernel = read_kernel(str(TWO_PASS), op=None)
    manifest = kernel.manifest.model_copy(update={"flags": list(flags), "arch": list(arch)})
    return kernel.model_copy(update={"manifest": manifest})


def words_of(kernel: Kernel, *, arch: str | None = "90") -> list[str]:
    target = BuildTarget("cuda", arch, Path("cache"), 60)
    found = Found(Path("lib/libnvrtc.so.13"), (Path("include"),))
    return nvrtc_command(kernel, target, Compiler(("nvrtc",), "NVRTC 13.5"), found)[1:]


def test_flags_about_device_code_are_kept_and_others_left_out() -> None:
    kept = ["--use_fast_math", "-DX=1", "-maxrregcount=32", "-std=c++20"]
    dropped = ["-O2", "-lcublas", "-Xcompiler", "-Wall", "--expt-relaxed-constexpr", "-g"]
    words = words_of(kernel_of(*kept, *dropped, "-Xptxas", "-dlcm=cg"))
    assert words == ["-arch=sm_90", "-default-device", "-Xptxas", "-v", "-Iinclude", *kept, "-Xptxas", "-dlcm=cg"]
    assert "-std=c++17" in words_of(kernel_of())


def test_it_builds_for_the_device_or_for_the_newest_that_runs_on_it() -> None:
    assert words_of(kernel_of(), arch="100")[0] == "-arch=sm_100"
    assert words_of(kernel_of(arch=["sm_80", "sm_86", "sm_100"]), arch="89")[0] == "-arch=sm_86"
    assert words_of(kernel_of("-arch=sm_90a"), arch=None)[0] == "-arch=sm_90a"
    with pytest.raises(CandidateError, match="built for sm_100, and this device is sm_90"):
        words_of(kernel_of(arch=["sm_100"]))
    with pytest.raises(EnvironmentFault, match="NVRTC builds for one device"):
        words_of(kernel_of(), arch=None)


def test_the_newest_library_of_the_first_place_that_has_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "lib64").mkdir()
    (tmp_path / "include" / "cccl").mkdir(parents=True)
    for name in ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.9.2", "libnvrtc-builtins.so.14", "libnvrtc.so.alt"):
        (tmp_path / "lib64" / name).touch()
    found = find_nvrtc()
    assert found is not None
    assert found.shared_object == tmp_path / "lib64" / "libnvrtc.so.13"
    assert found.headers[:2] == (tmp_path / "include", tmp_path / "include" / "cccl")


# ---- As a builder


def built(path: Path, cache: Path, *, arch: str = "90") -> Built:
    kernel = read_kernel(str(path), op=None)
    result: Built = registry.load("builders", "raw").build(kernel, BuildTarget("cuda", arch, cache, 120))
    return result


def test_with_nvcc_nobody_looks_for_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(raw, "find_nvcc", lambda: Path("nvcc"))
    monkeypatch.setattr(raw, "find_nvrtc", unexpected)
    monkeypatch.setattr(raw, "_by_nvcc", lambda kernel, target: "a recipe")
    monkeypatch.setattr(raw, "build_once", lambda recipe, target: recipe)
    assert built(TWO_PASS, tmp_path) == "a recipe"


@needs_nvrtc
def test_without_nvcc_a_bare_kernel_is_built_and_the_compiler_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "find_nvcc", lambda: None)
    first = built(TWO_PASS, tmp_path)
    assert first.compiler is not None
    assert first.compiler.startswith("NVRTC ")
    assert [row.partition(":")[0] for row in sorted(first.resources)] == ["apply", "scales"]
    assert Path(first.artifact).read_bytes()[:4] == b"\x7fELF"
    assert built(TWO_PASS, tmp_path).cached


@needs_nvrtc
def test_an_error_of_nvrtc_is_one_line_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "find_nvcc", lambda: None)
    with pytest.raises(CandidateError, match='identifier "undeclared" is undefined') as caught:
        built(BROKEN, tmp_path)
    assert (caught.value.code, caught.value.line) == ("build_failed", 7)


@needs_both
@pytest.mark.nvcc
@pytest.mark.parametrize("file", ["rmsnorm_raw.cu", "leaky_integrator.cu"])
def test_both_compilers_take_the_shipped_bare_kernels(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[2] / "kernels" / file
    by_nvcc = built(path, tmp_path)
    monkeypatch.setattr(raw, "find_nvcc", lambda: None)
    by_nvrtc = built(path, tmp_path)
    names = [sorted(row.partition(":")[0] for row in item.resources) for item in (by_nvcc, by_nvrtc)]
    assert names[0] == names[1] != []
    assert str(by_nvcc.compiler).startswith("nvcc ")


@needs_nvrtc
@pytest.mark.gpu
def test_what_both_compilers_make_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from e2e.measure.devices import find_device

    arch = find_device("cuda", kernel_device="cuda").arch
    assert arch is not None
    op, results = registry.load_op("rms_norm"), []
    call = op.example("float32", "cuda", 1)
    for nvcc in [NVCC, None] if NVCC else [None]:
        monkeypatch.setattr(raw, "find_nvcc", lambda nvcc=nvcc: nvcc)
        kernel = registry.load("builders", "raw").bind(built(TWO_PASS, tmp_path, arch=arch), op, "float32")
        results.append(kernel(*call.tensors, *call.scalars))
    for found in results:
        torch.testing.assert_close(found, op.reference(*call.tensors, *call.scalars))


@needs_nvrtc
def test_a_build_by_another_version_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NVRTC is not None
    compiler = nvrtc_compiler(NVRTC)
    monkeypatch.setattr(raw, "find_nvcc", lambda: None)
    assert not built(TWO_PASS, tmp_path).cached
    monkeypatch.setattr(raw, "nvrtc_compiler", lambda found: replace(compiler, identity="NVRTC 99.0 in /elsewhere"))
    assert not built(TWO_PASS, tmp_path).cached
