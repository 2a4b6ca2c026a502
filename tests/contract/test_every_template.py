"""Every template is a kernel of a registered op that builds and passes as it is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.errors import EnvironmentFault, UsageError
from e2e.kernel_template import TEMPLATES, Language, kernel_text, templates, write_kernel
from e2e.numerics.compare import exactly, judge_outputs
from e2e.numerics.exercise import run_calls
from e2e.numerics.op_level import OpExaminer
from e2e.ops._inputs import Draw
from e2e.protocols import BuildTarget, OpCall
from e2e.reading import read_kernel

torch.set_num_threads(1)

EVERY = [(op, language) for language in Language for op in templates(language)]
DTYPES = ["float32", "float16", "bfloat16"]


def test_there_are_templates_and_each_op_has_one_in_every_language() -> None:
    assert templates(Language.CPP)
    assert templates(Language.CPP) == templates(Language.CU) == templates(Language.TRITON)
    assert {*templates(Language.CPP)} <= {*registry.names("ops")}
    assert {path.suffix for path in TEMPLATES.iterdir()} == {".cpp", ".cu", ".h", ".triton"}


@pytest.mark.parametrize(("op", "language"), EVERY)
def test_it_describes_itself(op: str, language: Language, tmp_path: Path) -> None:
    file = write_kernel(op, language, tmp_path / f"own{'.py' if language is Language.TRITON else f'.{language}'}")
    kernel = read_kernel(str(file), op=None)
    assert (kernel.manifest.op, kernel.manifest.entry, kernel.block_line) == (op, op, 1)
    assert kernel.manifest.device == ("cpu" if language is Language.CPP else "cuda")
    assert kernel.manifest.dtypes == DTYPES
    text = file.read_text()
    assert "$" not in text
    assert "//!" not in text and "#!" not in text
    assert ("`backward` in the block" in text) == (kernel.manifest.backward == "reference")
    assert f"e2e check {file}" in text
    if language is Language.TRITON:
        ast.parse(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every template is written and built once."""
    return tmp_path_factory.mktemp("templates")


@pytest.mark.parametrize("op", templates(Language.CPP))
def test_it_builds_and_is_right_on_every_input_in_every_dtype(op: str, folder: Path) -> None:
    assert wrong_inputs(op, Language.CPP, folder, device="cpu") == []


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "language"), [item for item in EVERY if item[1] is not Language.CPP])
def test_it_is_right_on_a_gpu(op: str, language: Language, folder: Path) -> None:
    assert wrong_inputs(op, language, folder, device="cuda") == []


@pytest.mark.nvcc
@pytest.mark.parametrize("op", templates(Language.CU))
def test_it_builds_for_a_gpu(op: str, tmp_path: Path) -> None:
    file = tmp_path / "own.cu"
    text = kernel_text(op, Language.CU, name="own.cu").replace("// dtypes:", "// flags: [-arch=sm_90]\n// dtypes:")
    file.write_text(text)
    kernel = read_kernel(str(file), op=None)
    target = BuildTarget(device="cuda", arch=None, cache=tmp_path / "cache", timeout_s=240)
    assert Path(registry.load("builders", "tvm-ffi").build(kernel, target).artifact).is_file()


# ---- What only some calls have


def attention_call(
    mask: Tensor | None = None, *, softcap: float | None = None, window: int | None = None, keys: int = 13
) -> OpCall:
    """Five queries at the end of the keys, two heads to a key head, and values of a width that fills no block."""
    draw = Draw.of("bfloat16", "cpu", 1)
    q, k, v = (draw.made(draw.normal(2, *shape)) for shape in ((4, 5, 32), (2, keys, 32), (2, keys, 40)))
    return OpCall((q, k, v, mask), (0.3, mask is None, softcap, window))


def experts_call() -> OpCall:
    """Weights of a token's choices in float32, as routers leave them."""
    x, indices, weights, *others = registry.load_op("moe_experts").example("bfloat16", "cpu", 1).tensors
    return OpCall((x, indices, weights.float(), *others), ())


@pytest.mark.parametrize(
    ("op", "call"),
    [
        pytest.param("attention", attention_call(softcap=1.5), id="softcap"),
        pytest.param("attention", attention_call(softcap=2.0, window=4), id="softcap and window"),
        pytest.param("attention", attention_call(torch.arange(65).reshape(5, 13) % 3 != 0), id="flat mask"),
        pytest.param("attention", attention_call(torch.linspace(-4, 4, 130).reshape(2, 1, 5, 13)), id="float32 mask"),
        pytest.param("attention", attention_call(keys=0), id="no keys"),
        pytest.param("moe_experts", experts_call(), id="float32 weights"),
    ],
)
def test_what_only_some_calls_have_is_right_too(op: str, call: OpCall, folder: Path) -> None:
    plugin = registry.load_op(op)
    base = plugin.alternatives["maths" if op == "attention" else "loop"](*call.tensors, *call.scalars)
    value = bind(op, Language.CPP, folder, device="cpu")("bfloat16")(*call.tensors, *call.scalars)
    assert judge_outputs(value, base, exactly(plugin, call), ratio=2.0)[0] is None


def test_a_tensor_of_another_dtype_is_refused_in_words(folder: Path) -> None:
    x, indices, *others = experts_call().tensors
    function = bind("moe_experts", Language.CPP, folder, device="cpu")("bfloat16")
    words = "down, out in one dtype; gated in float32; indices in int64; weights in that dtype, float32 or bool"
    with pytest.raises(TypeError, match=f"moe_experts takes x, gate_up, {words}"):
        function(x, indices.int(), *others)


def bind(op: str, language: Language, folder: Path, *, device: str) -> Callable[[str], Callable[..., Any]]:
    """The op's template, built: for a dtype, a function of the op's call."""
    file = folder / f"{op}_{language}{'.py' if language is Language.TRITON else f'.{language}'}"
    if not file.exists():
        write_kernel(op, language, file)
    kernel = read_kernel(str(file), op=None)
    builder = registry.load("builders", kernel.manifest.binding)
    arch = None if device == "cpu" else "{}{}".format(*torch.cuda.get_device_capability())
    built = builder.build(kernel, BuildTarget(device=device, arch=arch, cache=folder / "cache", timeout_s=240))
    return lambda dtype: builder.bind(built, registry.load_op(op), dtype)


def wrong_inputs(op: str, language: Language, folder: Path, *, device: str) -> list[Any]:
    """On which inputs, and in which way, the op's template is not what `e2e check` wants."""
    plugin, function = registry.load_op(op), bind(op, language, folder, device=device)
    calls, outputs, found = folder / "calls", folder / "outputs.st", []
    for dtype in DTYPES:
        examiner = OpExaminer(plugin, device)
        examiner.draw(dtype=dtype, seed=3, path=calls)
        remarks = run_calls(plugin, function(dtype), inputs=calls, outputs=outputs, constraints=[], device=device)
        rows = examiner.compare_ops(outputs=outputs, ratio=2.0)
        found += [row for row in rows if row["status"] != "passed"]
        found += [item for item in remarks if item["layout"] or item["inputs_changed"] or item["aliased"]]
    return found


# ---- What cannot be written


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "own.cpp").write_text("mine")
    with pytest.raises(UsageError, match="nothing is overwritten"):
        write_kernel("rms_norm", Language.CPP, tmp_path / "own.cpp")
    assert (tmp_path / "own.cpp").read_text() == "mine"


@pytest.mark.parametrize(
    ("op", "file", "words"),
    [
        ("rms_nrom", None, "did you mean 'rms_norm'"),
        ("module:LlamaMLP", None, "no cpp template for module:LlamaMLP; there are some for: .*rms_norm"),
        ("rms_norm", "own.cu", "ends with .cpp"),
    ],
)
def test_what_cannot_be_written_says_what_can(op: str, file: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        write_kernel(op, Language.CPP, tmp_path / file if file else None)


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot write"):
        write_kernel("rms_norm", Language.CPP, tmp_path / "none" / "own.cpp")
