"""Kernel specs: what is understood, and how mistakes are told."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.errors import UsageError
from e2e.reading import read_kernel
from e2e.schema.kernel import Kernel

KERNELS = Path(__file__).parents[1] / "kernels"
TVM = "TVM_FFI_DLL_EXPORT_TYPED_FUNC({0}, {0}_impl);\n"
LAUNCH = "launch: {grid: [1], block: [1]}"
BARE = 'extern "C" __global__ void {0}(float* x, float* w, float eps, float* out) {{}}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name: str, text: str, *, op: str | None = None) -> Kernel:
    Path(name).write_text(text)
    return read_kernel(name, op=op)


def refusal(spec: str, *, op: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_kernel(spec, op=op)
    return caught.value.message


def refused(name: str, text: str | bytes, *, op: str | None = None) -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return refusal(name, op=op)


def block(*rows: str, mark: str = "//") -> str:
    return "\n".join([f"{mark} /// e2e", *(f"{mark} {row}" for row in rows), f"{mark} ///", ""])


# ---- blocks


def test_a_block_is_read_with_what_the_source_adds(folder: Path) -> None:
    kernel = read("k.cpp", "// a licence\n" + block("op: rms_norm", "entry: go", "flags: [-O2]") + TVM.format("go"))
    assert kernel.manifest.op == "rms_norm"
    assert kernel.manifest.entry == "go"
    assert kernel.manifest.flags == ["-O2"]
    assert (kernel.manifest.binding, kernel.manifest.device) == ("tvm-ffi", "cpu")
    assert (kernel.format, kernel.block_line) == ("block", 2)
    assert kernel.path == str(folder / "k.cpp")


def test_a_raw_block_takes_its_dtypes_from_its_entries(folder: Path) -> None:
    rows = ("op: rms_norm", "entry: {float32: f, bfloat16: g}", "launch: {grid: [rows], block: [256]}")
    kernel = read("k.cu", block(*rows) + BARE.format("f") + BARE.format("g"))
    assert (kernel.manifest.binding, kernel.manifest.device) == ("raw", "cuda")
    assert kernel.manifest.dtypes == ["float32", "bfloat16"]


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(folder: Path) -> None:
    text = "\ufeff" + (block("op: rms_norm", "entry: f", mark="#") + "def f(*call): ...\n").replace("\n", "\r\n")
    Path("k.py").write_bytes(text.encode())
    assert read_kernel("k.py", op=None).manifest.binding == "python"


def test_the_blocks_of_other_tools_are_left_alone(folder: Path) -> None:
    text = "# /// script\n# dependencies = []\n# ///\n" + block("op: rms_norm", mark="#") + "def forward(*call): ...\n"
    assert read("k.py", text).block_line == 4


def test_every_mistake_in_a_block_comes_at_once(folder: Path) -> None:
    rows = (
        "op: rms_nrom",
        "entri: f",
        "entry: f",
        "dtypes: [float23]",
        "constraints: [hidden]",
        "claim: {speedup: 0}",
    )
    assert refused("k.cpp", block(*rows)).split("\n") == [
        "k.cpp:2: op: no op called 'rms_nrom'; did you mean 'rms_norm'? (see `e2e list ops`)",
        "k.cpp:3: entri: no such field; did you mean 'entry'?",
        "k.cpp:5: dtypes[0]: must be 'float32', 'float16' or 'bfloat16', not 'float23'; did you mean 'float32'?",
        "k.cpp:6: constraints: 'hidden' must be a comparison such as 'hidden % 8 == 0'",
        "k.cpp:7: claim.speedup: must be greater than 0, not 0",
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("k.cpp", "// /// e2e\n// op: rms_norm\n", "k.cpp:1: the e2e block is not closed"),
        (
            "k.cpp",
            "// /// e2e\n// op: rms_norm\nint x;\n",
            "k.cpp:3: the e2e block from line 1 is",
        ),
        ("k.cpp", block("op: a") + block("op: b"), "k.cpp:4: a second e2e block (first on line 1)"),
        ("k.cpp", "///// e2e\n", "k.cpp:1: an e2e block opens with exactly `// /// e2e`, not '///// e2e'"),
        ("k.cpp", "//  ///  E2E\n", "k.cpp:1: an e2e block opens with exactly"),
        ("k.cu", block("op: a", mark="#"), "k.cu:1: an e2e block opens with exactly `// /// e2e`"),
        ("k.py", block("op: a"), "k.py:1: an e2e block opens with exactly `# /// e2e`"),
        ("k.py", block("op: [", mark="#"), "k.py:2: not readable as YAML"),
        ("k.py", block("op: a", "op: b", mark="#"), "k.py:3: op: given twice (first on line 2)"),
        (
            "k.py",
            block("just words", mark="#"),
            "k.py:1: the e2e block must hold lines such as",
        ),
        ("k.py", block(mark="#"), "k.py:1: the e2e block must hold lines"),
        (
            "k.py",
            block("op: rms_norm", "entry: f g", mark="#"),
            "k.py:3: entry: 'f g' is not a",
        ),
        ("k.py", block("op: rms_norm", "entry: f", "binding: raw", mark="#"), "k.py:4: binding: a .py file"),
        ("k.cpp", block("op: rms_norm", "entry: f", "binding: python"), "k.cpp:4: binding: a .cpp file"),
        (
            "k.cpp",
            block("op: rms_norm", "entry: f", "binding: raw"),
            "k.cpp:4: binding: raw needs a",
        ),
        ("k.cu", block("op: rms_norm", "entry: f", "binding: raw"), "k.cu:1: launch: missing; raw needs one"),
        ("k.cu", block("op: rms_norm", "entry: f", "device: cpu"), "k.cu:4: device: a .cu file runs on cuda"),
        ("k.cpp", block("op: rms_norm", "entry: f", "dtypes: []"), "k.cpp:4: dtypes: must name at least one"),
        (
            "k.cpp",
            block("op: rms_norm", "entry: f", LAUNCH),
            "k.cpp:4: launch: only",
        ),
        (
            "k.cpp",
            block("op: rms_norm", "entry: {float32: f}", "dtypes: [float32, float16]"),
            "k.cpp:3: entry: no function for float16, which `dtypes` lists",
        ),
    ],
)
def test_a_damaged_block_is_told_with_its_line(folder: Path, name: str, text: str, said: str) -> None:
    assert said in refused(name, text)


def test_the_file_and_the_option_may_not_disagree_about_the_op(folder: Path) -> None:
    said = refused("k.py", block("op: rms_norm", "entry: f", mark="#"), op="module:Thing")
    assert said == "k.py:2: op: the file says 'rms_norm', where 'module:Thing' is wanted"


def test_an_op_with_a_parameter_is_checked_up_to_its_colon(folder: Path) -> None:
    kernel = read("k.py", block("op: module:LlamaMLP", "entry: f", mark="#") + "f = max\n")
    assert kernel.manifest.op == "module:LlamaMLP"
    assert "did you mean 'module'?" in refused("k.py", block("op: modul:X", "entry: f", mark="#"))
    assert "something must follow the colon" in refused("k.py", block("op: 'module:'", "entry: f", mark="#"))


# ---- files without a block


@pytest.mark.parametrize("stem", ["rms_norm", "rmsnorm", "RMSNorm", "rms-norm"])
def test_the_files_name_says_the_op(folder: Path, stem: str) -> None:
    kernel = read(f"{stem}.cu", "// text\n" + TVM.format("my_norm"))
    assert (kernel.manifest.op, kernel.manifest.entry) == ("rms_norm", "my_norm")
    assert (kernel.manifest.device, kernel.block_line) == ("cuda", None)


def test_the_option_says_the_op_when_the_name_does_not(folder: Path) -> None:
    assert read("k.cpp", TVM.format("f"), op="rms_norm").manifest.op == "rms_norm"
    assert "k.cpp:1: op: not stated" in refusal("k.cpp")
    assert "did you mean 'rms_norm'?" in refusal("k.cpp", op="rms_nor")


def test_the_function_named_like_the_op_is_the_entry(folder: Path) -> None:
    both = TVM.format("other") + TVM.format("rms_norm_forward")
    assert read("rms_norm.cpp", both).manifest.entry == "rms_norm_forward"
    python = "import torch\n\ndef helper(): ...\n\ndef rms_norm(x, w, eps): ...\n"
    assert read("k.py", python, op="rms_norm").manifest.entry == "rms_norm"


def test_the_only_public_function_is_the_entry(folder: Path) -> None:
    text = "@triton.jit\ndef kernel(): ...\n\ndef _helper(): ...\n\ndef launch(x, w, eps): ...\n"
    assert read("rms_norm.py", text).manifest.entry == "launch"


def test_functions_in_comments_are_not_functions(folder: Path) -> None:
    text = "// " + TVM.format("old") + "/* " + TVM.format("older") + "*/" + TVM.format("now")
    assert read("rms_norm.cpp", text).manifest.entry == "now"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "rms_norm.cpp",
            TVM.format("f") + TVM.format("g"),
            "entry: several functions could be the",
        ),
        ("rms_norm.cpp", "int main() {}", "entry: nothing is exported; add TVM_FFI_DLL_EXPORT_TYPED_FUNC"),
        ("rms_norm.cu", BARE.format("f"), "launch: missing; raw needs one"),
        ("rms_norm.cu", 'extern "C" {\n__global__ void __launch_bounds__(256) f() {}\n}', "launch: missing"),
        (
            "rms_norm.cpp",
            "#include <torch/extension.h>\nPYBIND11_MODULE(a, b) {}",
            "entry: nothing is exported",
        ),
        ("rms_norm.py", "x = 1", "entry: no public top-level function in it"),
        ("rms_norm.py", "def f(:\n", "rms_norm.py:1: not Python: "),
        ("rms_norm.py", "\n\n  x = 1\n", "rms_norm.py:3: not Python: unexpected indent"),
    ],
)
def test_what_the_source_does_not_say_is_asked_for(folder: Path, name: str, text: str, said: str) -> None:
    assert said in refused(name, text)


# ---- files that are no kernels


def test_a_missing_file_names_the_nearest(folder: Path) -> None:
    Path("rms_norm.cu").write_text("x")
    assert refusal("rms_nrom.cu") == "no such file: rms_nrom.cu; did you mean 'rms_norm.cu'?"
    assert "there is no folder 'nowhere' either" in refusal("nowhere/k.cu")
    assert "no such file: rmsnorm" in refusal("rmsnorm")


def test_a_folder_names_the_kernels_in_it(folder: Path) -> None:
    for name in ("sub", "odd.cu"):
        Path(name).mkdir()
        assert "is a folder; and no kernel file is in it" in refusal(name)
        (Path(name) / "a.cu").write_text("x")
        assert "is a folder; name one file in it: a.cu" in refusal(name)


def test_contents_that_are_no_source_are_refused(folder: Path) -> None:
    assert refused("k.cu", b"") == "k.cu is empty"
    assert refused("k.cu", b" \n ") == "k.cu is empty"
    assert refused("k.cu", b"\x7fELF\0\0") == "k.cu is a binary file, not source text"
    assert refused("k.cu", b"a\n\xff") == "k.cu:2: not UTF-8 text"
    assert "larger than 4 MiB" in refused("k.cu", b"x" * (4 * 1024 * 1024 + 1))


def test_a_pipe_does_not_hang(folder: Path) -> None:
    os.mkfifo("k.cu")
    assert refusal("k.cu") == "k.cu is not a regular file"
    os.symlink("/dev/zero", "z.cu")
    assert refusal("z.cu") == "z.cu is not a regular file"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        " ",
        "\0",
        "a\0.cu",
        "k.txt",
        "patch:a.b:c",
        "a:b:c",
        "k.py:f",
        "x" * 5000,
        "x" * 5000 + ".cu",
        ":f",
    ],
)
def test_other_specs_are_refused_in_one_line(folder: Path, spec: str) -> None:
    said = refusal(spec, op="rms_norm")
    assert "\n" not in said
    assert said.isprintable()


# ---- package.module:callable


def test_a_callable_is_found_without_importing_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "some_package").mkdir()
    (folder / "some_package" / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "some_package" / "kernels.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(folder))
    kernel = read_kernel("some_package.kernels:Class.norm", op="rms_norm")
    assert (kernel.manifest.entry, kernel.manifest.binding, kernel.path) == ("Class.norm", "python", None)
    before = kernel.sha256
    (folder / "some_package" / "kernels.py").write_text("raise SystemExit('edited')")
    assert read_kernel("some_package.kernels:Class.norm", op="rms_norm").sha256 != before
    assert refusal("some_package.missing:f", op="rms_norm") == "package 'some_package' has no module called 'missing'"
    assert "no module called 'no_such_package'" in refusal("no_such_package.a:f", op="rms_norm")
    assert "which op does it replace? Pass --op NAME" in refusal("some_package.kernels:f")


# ---- patches


def test_a_patch_is_named_by_a_callable_or_by_a_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "some_patches.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(folder))
    called = read_kernel("patch:some_patches:apply", op=None)
    source = "def apply(model):\n    pass\n\n\ndef helper(x):\n    pass\n"
    written = read("k.py", block("kind: patch", "entry: apply", mark="#") + source)
    for kernel in (called, written):
        manifest = kernel.manifest
        assert ("patch", "patch", "patch", "apply") == (manifest.kind, manifest.op, manifest.binding, manifest.entry)
    assert "apply" == read("one.py", block("kind: patch", mark="#") + source.partition("\n\n\n")[0]).manifest.entry


def test_a_patch_is_for_no_one_op(folder: Path) -> None:
    source = "def apply(model):\n    pass\n"
    assert "a patch changes what it likes" in refusal("patch:os.path:join", op="rms_norm")
    assert "a patch changes what it likes" in refused("k.py", block("kind: patch", mark="#") + source, op="rms_norm")
    assert "k.py:2: kind: a patch is `kind: patch` alone" in refused(
        "k.py", block("kind: patch", "op: rms_norm", mark="#") + source
    )
    assert "k.py:3: constraints: not for `kind: patch`" in refused(
        "k.py", block("kind: patch", 'constraints: ["rows > 1"]', mark="#") + source
    )
    assert "a .cu file is bound by" in refused("k.cu", block("kind: patch", "entry: apply") + BARE.format("apply"))


def test_what_is_no_patch_is_not_taken_for_one(folder: Path) -> None:
    assert "textwrap:fill is no patch: write patch:" in refusal("textwrap:fill", op="patch")
    assert "a patch is `kind: patch` alone" in refused("patch.py", "def apply(model):\n    pass\n")


# ---- the whole


def test_shipped_test_kernels_can_all_be_read() -> None:
    for path in sorted(KERNELS.glob("*.*")):
        if path.suffix in (".cu", ".cpp", ".py"):
            assert read_kernel(str(path), op=None).manifest.op


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys; from e2e.reading import read_kernel; "
        f"read_kernel({str(KERNELS / 'plain_norm.py')!r}, op=None); "
        "print(sorted({'torch', 'tvm_ffi', 'numpy'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


BLOCKISH = st.lists(
    st.sampled_from(["// /// e2e", "// ///", "// op: rms_norm", "// entry: f", "// ", "//", "# /// e2e", "// - a"])
    | st.text(max_size=30).map(lambda text: "// " + text)
    | st.text(max_size=30),
    max_size=8,
).map("\n".join)


@given(text=BLOCKISH | st.text(max_size=200), suffix=st.sampled_from([".cu", ".cpp", ".cc", ".py"]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_raises_anything_but_usage_error(tmp_path: Path, text: str, suffix: str) -> None:
    path = tmp_path / f"rms_norm{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(UsageError):
        read_kernel(str(path), op=None)


def test_kind_module_is_the_binding_of_that_name(tmp_path: Path) -> None:
    text = "# /// e2e\n# kind: module\n# op: rms_norm\n# entry: Norm\n{more}# ///\nclass Norm: ...\n"
    (tmp_path / "norm.py").write_text(text.format(more=""))
    manifest = read_kernel(str(tmp_path / "norm.py"), op=None).manifest
    assert (manifest.kind, manifest.binding) == ("op", "module")
    (tmp_path / "norm.py").write_text(text.format(more="# binding: python\n"))
    with pytest.raises(UsageError, match="kind: module, where `binding` says 'python'"):
        read_kernel(str(tmp_path / "norm.py"), op=None)
