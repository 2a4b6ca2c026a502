"""Signatures read as text are those that the loaded ops have."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import registry
from e2e.errors import UsageError
from e2e.listing import op_row, rows
from e2e.signatures import Argument, Signature, signature_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "swiglu_mlp.py"


@pytest.mark.parametrize("name", registry.names("ops"))
def test_what_the_file_says_is_what_the_op_has(name: str) -> None:
    op, signature = registry.load_op(name), signature_of(name)
    assert signature is not None, "state `schema` as a literal"
    assert op.schema == signature.schema
    assert set(op.alternatives) <= set(signature.alternatives), "state every name as a literal"
    if name not in ("aten", "module"):
        assert [*op.tensor_names, *op.scalar_names] == [argument.name for argument in signature.arguments]


@pytest.mark.parametrize("name", registry.names("ops"))
def test_every_op_is_listed_with_signature_and_alternatives(name: str) -> None:
    detail = {row.name: row.detail for row in rows("ops")}[name]
    op = registry.load_op(name)
    assert op.schema in detail
    assert all(alternative in detail for alternative in op.alternatives)
    assert op_row(name).detail == detail


def test_an_op_from_outside_is_listed_without_running_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "raise SystemExit('run')\nclass Base:\n    schema = '(Tensor x, int dim) -> Tensor'\n"
        "class Op(Base):\n    alternatives = {'plain': 1}\n"
    )
    assert signature_of(f"{file}:Op") == Signature("(Tensor x, int dim) -> Tensor", ("plain",))
    assert "one matmul for gate and up" in op_row(f"{EXAMPLE}:SwigluMlp").detail


@pytest.mark.parametrize(
    ("text", "words"), [("class Other: pass\n", "there is no 'Op' in it; it has: Other"), ("class\n", "cannot be read")]
)
def test_a_file_without_the_op_is_the_callers_mistake(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError, match=words):
        op_row(f"{tmp_path / 'own.py'}:Op")


def test_an_op_that_works_its_schema_out_has_no_signature_to_read(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Op:\n    schema = '(Tensor x)' + ' -> Tensor'\n")
    assert signature_of(f"{tmp_path / 'own.py'}:Op") is None
    assert "no signature" in op_row(f"{tmp_path / 'own.py'}:Op").detail


def test_arguments_and_outputs_are_counted() -> None:
    signature = Signature("(Tensor x, Tensor? bias, float eps) -> (Tensor, Tensor)", ())
    assert signature.arguments == [Argument("Tensor", "x"), Argument("Tensor?", "bias"), Argument("float", "eps")]
    assert signature.outputs == 2
