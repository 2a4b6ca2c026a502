"""Ops from outside the package: read in the parent, run in workers only."""

from __future__ import annotations

import hashlib
import os
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import outside, registry
from e2e.errors import UsageError
from e2e.preflight import check_repeat
from e2e.protocols import Op
from e2e.reading import read_kernel

EXAMPLE = Path(__file__).parents[2] / "examples" / "swiglu_mlp.py"
KERNEL = EXAMPLE.with_name("swiglu_mlp_kernel.py")
NAME = f"{EXAMPLE}:SwigluMlp"
WHOLE = """
class Op:
    name = schema = "op"
    tensor_names = scalar_names = ()
    alternatives = {}
    find_sites = own = forward_with = reference = allocate = dims = example = edge_calls = mutants = print
"""


def test_the_members_asked_of_an_op_are_those_of_the_protocol() -> None:
    public = {name for name in vars(Op) if not name.startswith("_")} | set(typing.get_type_hints(Op))
    assert public == set(outside.OP.members)


@pytest.mark.parametrize("name", ["rms_norm", "module:LlamaMLP", "a.py", "", ":", "dir/a.cpp:Op"])
def test_other_names_are_no_places(name: str) -> None:
    assert outside.place_of(name) is None


def test_an_op_is_loaded_from_its_file() -> None:
    op = registry.load_op(NAME)
    assert op.name == "swiglu_mlp"
    assert op.tensor_names == ("x", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
    assert type(op) is type(registry.load_op(NAME)), "the file runs once in a process"


def test_a_file_that_changed_meanwhile_is_refused() -> None:
    assert registry.load_op(NAME, hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()) is not None
    with pytest.raises(UsageError, match="changed during the run"):
        registry.load_op(NAME, "0" * 64)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Op:\n    pass\n", "Op is no op"),
        ("class Op:\n    name = 'op'\n", "Op lacks tensor_names, "),
        ("class Other:\n    pass\n", "there is no 'Op' in it; it has: Other"),
        ("import no_such_module_anywhere\n", "own.py:1: ModuleNotFoundError"),
        ("x = 1\n\nclass Op:\n    def __init__(self):\n        raise OSError('disk')\n", "own.py:5: OSError: disk"),
        ("class Op\n", "own.py:1: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "own.py:2: SystemExit: 3"),
        (
            "class Op:\n    @property\n    def name(self):\n        return 1 / 0\n",
            "own.py:4: ZeroDivisionError: division",
        ),
        (
            "class E(Exception):\n    def __str__(self):\n        return 1\n\nraise E\n",
            "E: <exception str() failed>",
        ),
        ("raise ValueError('a\\n\\x1b[31mb')\n", "own.py:1: ValueError: a  [31mb"),
        (f"{WHOLE}Op.tensor_names = 'x'\n", "own.py: Op: tensor_names is not a tuple of texts (see docs/ops.md)"),
        (f"{WHOLE}Op.schema = 3\nOp.dims = {{}}\n", "own.py: Op: schema is not a text, dims is not a method"),
        (f"{WHOLE}Op.alternatives = []\n", "own.py: Op: alternatives is not a mapping by name"),
    ],
)
def test_a_file_without_the_op_is_the_callers_mistake(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        registry.load_op(f"{tmp_path / 'own.py'}:Op")
    assert words in caught.value.message


def test_the_parent_reads_the_file_and_does_not_run_it(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("raise SystemExit('run')\nclass Op: ...\n")
    kernel = read_kernel(str(KERNEL), op=f"{file}:Op")
    assert kernel.manifest.op == f"{file}:Op"
    assert kernel.op_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert read_kernel(str(KERNEL.parents[1] / "kernels" / "rmsnorm.cpp"), op=None).op_sha256 is None


@pytest.mark.parametrize(
    ("name", "words"), [("none.py:Op", "cannot be read: No such file"), (f"{EXAMPLE}:two words", "is not the name of")]
)
def test_a_file_that_cannot_be_read_is_the_callers_mistake(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_kernel(str(KERNEL), op=name)


def test_a_kernel_may_not_choose_the_op_that_judges_it(tmp_path: Path) -> None:
    """Guards a decision: an op from outside says what is right, so only the caller names one."""
    kernel = tmp_path / "k.py"
    kernel.write_text("# /// e2e\n# op: own.py:Op\n# ///\ndef k(x):\n    return x\n")
    with pytest.raises(UsageError, match="for the caller to name"):
        read_kernel(str(kernel), op=None)


def raised_by(call: Callable[[], object]) -> str | None:
    try:
        call()
    except ZeroDivisionError as error:
        found = outside.fault_in(error)
        return found.message if found else None
    raise AssertionError("it raised nothing")


def test_what_an_op_raises_later_is_its_callers_mistake_and_what_it_calls_is_not(tmp_path: Path) -> None:
    file, kernel = tmp_path / "own.py", tmp_path / "kernel.py"
    file.write_text(
        f"{WHOLE}    def dims(self, call):\n        return 1 / 0\n    def own(self, call):\n        call()\n"
    )
    kernel.write_text("def broken():\n    return 1 / 0\n")
    op = registry.load_op(f"{file}:Op")
    assert f"op {file}:8: ZeroDivisionError: division by zero" == raised_by(lambda: op.dims(None))
    assert raised_by(lambda: op.own(lambda: 1 / 0)) is None
    scope: dict[str, Callable[[], object]] = {}
    exec(compile(kernel.read_text(), str(kernel), "exec"), scope)
    assert raised_by(lambda: op.own(scope["broken"])) is None


def test_a_pipe_is_no_file_of_an_op(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.py")
    with pytest.raises(UsageError, match=r"own\.py is not a regular file"):
        outside.sha256_of(outside.Place(tmp_path / "own.py", "Op", outside.OP))


def test_a_repeat_wants_the_same_op(monkeypatch: pytest.MonkeyPatch) -> None:
    from e2e.configuration import LoadedWorkload
    from e2e.request import Repeat
    from e2e.schema.words import Outcome
    from tests import results

    run = results.result(outcome=Outcome.INCONCLUSIVE)
    workload = LoadedWorkload(results.workload(), Path("w.yaml"), {}, str(run.environment.get("workload_sha256")))
    run = run.model_copy(update={"environment": {"workload_sha256": workload.sha256}})
    kernel = run.kernels[0].model_copy(update={"op_sha256": "1" * 64})
    with pytest.raises(UsageError, match=r"op .* has changed since"):
        check_repeat(Repeat(run, 5), workload, [kernel])
