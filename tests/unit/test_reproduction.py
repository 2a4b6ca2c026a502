"""The script that gives a result's ratios without e2e: what it holds, and for what there is none."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from e2e.reproduction import script
from e2e.schema.evidence import SiteRecord
from e2e.schema.kernel import Kernel
from e2e.schema.result import CellResult, Result
from e2e.store import load
from tests import results

RESULTS = Path(__file__).parents[2] / "results"
MOST_LINES = 150


def text_of(result: Result) -> str:
    text, why_not = script(result, "workloads/")
    assert text is not None, why_not
    return text


def why_not(result: Result) -> str:
    text, reason = script(result, "")
    assert text is None
    return reason


def with_kernel(**changes: Any) -> Result:
    kernel = results.kernel()
    manifest = kernel.manifest.model_copy(
        update={k: v for k, v in changes.items() if k in type(kernel.manifest).model_fields}
    )
    own = {k: v for k, v in changes.items() if k in Kernel.model_fields}
    return results.result(kernels=[kernel.model_copy(update={"manifest": manifest, **own})])


def in_arms(candidate: str, *opponents: str) -> Result:
    told = results.verdict()
    rows = [told.latency.against[0].model_copy(update={"arm": name}) for name in opponents]
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": rows})})
    return results.result(
        [CellResult(cell=results.cell(), evidence=results.evidence(candidate=candidate), verdict=told)]
    )


def imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return names


@pytest.mark.parametrize("name", ["h200-prefill", "h200-decode"])
def test_a_stored_runs_script_is_one_short_page_of_python_without_e2e(name: str) -> None:
    result = load(RESULTS / name)
    text = text_of(result)
    assert MOST_LINES > len(text.splitlines())
    found = imported(text)
    assert {"torch", "transformers", "tvm_ffi"} <= found
    assert "e2e" not in found
    assert result.run_id in text
    assert "$" not in text


def test_it_has_the_arms_that_the_verdict_compares_and_what_e2e_found_of_them() -> None:
    text = text_of(results.result())
    assert "eager with F.rms_norm: 1.000x +- 0.002 (0.998 to 1.002)" in text
    for arm in ("candidate:eager", "baseline:eager+F.rms_norm", "baseline:eager"):
        assert f"    {arm!r}: lambda:" in text
    assert "lambda x, weight, eps: F.rms_norm(" in text
    assert 'cuda_files=[str(HERE / "kernel" / "rmsnorm.cu")]' in text


def test_a_compiled_candidate_is_an_operator_and_an_eager_one_a_call() -> None:
    compiled = text_of(in_arms("candidate:reduce-overhead", "baseline:max-autotune"))
    assert 'library.impl("reproduction::kernel", "cuda", kernel)' in compiled
    assert "mode='max-autotune'" in compiled
    assert "library" not in text_of(in_arms("candidate:eager", "baseline:eager"))


def test_a_graph_is_captured_where_an_arm_is_one() -> None:
    assert "def in_graph(" in text_of(in_arms("candidate:cuda-graph", "baseline:cuda-graph"))
    assert "in_graph" not in text_of(in_arms("candidate:eager", "baseline:eager"))


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("torch", 'torch.utils.cpp_extension.load("reproduced"'),
        ("python", 'spec_from_file_location("reproduced"'),
    ],
)
def test_a_kernel_is_loaded_by_its_own_binding_and_returns_its_output(binding: str, words: str) -> None:
    text = text_of(with_kernel(binding=binding))
    assert words in text
    assert "    return BUILT.rms_norm_forward(x, weight, eps)" in text
    ast.parse(text)


def test_layers_alike_are_one_pattern_and_a_site_without_the_kernel_breaks_it_up() -> None:
    def at(calls: list[int]) -> str:
        sites = [
            SiteRecord(fqn=f"model.layers.{n}.norm", owner="Norm", status="patched", calls=number)
            for n, number in enumerate(calls)
        ]
        seen = results.evidence(engagement=results.engagement().model_copy(update={"sites": sites}))
        return text_of(results.result([CellResult(cell=results.cell(), evidence=seen, verdict=results.verdict())]))

    assert '"""\nmodel.layers.*.norm\n"""' in at([1, 1, 1])
    assert '"""\nmodel.layers.0.norm model.layers.2.norm\n"""' in at([1, 0, 1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"op": "attention"}, "it is for rms_norm, layer_norm"),
        ({"args": ["weight", "x"]}, "this one has args"),
        ({"workspace": [{"scratch": "rows, float32"}]}, "this one has workspace"),
        ({"path": None}, "one source file of its own"),
        ({"others": ["/repo/kernels/norm.h"]}, "one source file of its own"),
        ({"binding": "raw"}, "does not load kernels of binding raw"),
        ({"entry": {"float32": "f"}}, "no entry for bfloat16"),
    ],
)
def test_a_kernel_that_takes_more_has_no_script_and_the_reason_says_what(changes: dict[str, Any], words: str) -> None:
    assert words in why_not(with_kernel(**changes))


def test_there_is_none_for_another_step_an_unknown_path_or_a_run_without_a_verdict() -> None:
    train = results.cell().model_copy(update={"step": "train"})
    cell = CellResult(cell=train, evidence=results.evidence(), verdict=results.verdict())
    assert "not for train of causal-lm" in why_not(results.result([cell]))
    assert "does not know the path other" in why_not(in_arms("candidate:eager", "baseline:eager+other"))
    assert "with a timed verdict" in why_not(results.incorrect())
    assert "with a timed verdict" in why_not(results.ended_early(6, "no GPU"))
