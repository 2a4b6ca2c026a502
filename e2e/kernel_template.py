"""`e2e new kernel`: a kernel file that builds and passes `e2e check` as it is, to start from.

For C++ and CUDA a frame holds the binding, made from the op's signature, and a file per op the loops; both languages
share the loops. For Triton a file per op holds everything below the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from string import Template

from e2e import registry
from e2e.errors import EnvironmentFault, UsageError
from e2e.signatures import Argument, Signature, signature_of
from e2e.yaml_lines import printable

TEMPLATES = Path(__file__).parent / "templates"


class Language(StrEnum):
    """What a kernel can be written in."""

    CU = "cu"
    CPP = "cpp"
    TRITON = "triton"


_MATHS = {Language.CU: ".h", Language.CPP: ".h", Language.TRITON: ".triton"}
_INLINE = {Language.CU: "__host__ __device__ inline", Language.CPP: "inline", Language.TRITON: ""}
_SHARED = ("array", "frame")
"""Files that are of no op."""
_DTYPES = {
    Language.CPP: {"float32": "float", "float16": "_Float16", "bfloat16": "BFloat16"},
    Language.CU: {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"},
}
_PARAMETERS = {
    "Tensor": "TensorView",
    "Tensor?": "Optional<TensorView>",
    "float": "double",
    "int": "int64_t",
    "bool": "bool",
}
"""What tvm-ffi hands over for each kind of argument."""
_TYPES = re.compile(r"^//! (?P<type>\w+): (?P<names>.+)\n", re.MULTILINE)
"""A line of a template on tensors whose elements have a type of their own: `//! int64_t: ids`."""


def templates(language: Language) -> list[str]:
    """Ops that there is a template for."""
    stems = {path.stem for path in TEMPLATES.glob(f"*{_MATHS[language]}")}
    return sorted(stems - {*_SHARED})


def write_kernel(op: str, language: Language, file: Path | None) -> Path:
    """Write the op's template to a file that does not exist yet, by default named after the op; its path.

    Raises:
        UsageError: no such op, no template for it, a name that is no kernel file's, or the file exists.
        EnvironmentFault: it cannot be written.
    """
    registry.path_of("ops", op.partition(":")[0])
    if op not in templates(language):
        known = ", ".join(templates(language))
        raise UsageError(f"there is no {language} template for {printable(op)}; there are some for: {known}")
    suffix = ".py" if language is Language.TRITON else f".{language}"
    file = file or Path(f"{op}{suffix}")
    if file.suffix != suffix:
        raise UsageError(f"--out {printable(str(file))}: a {language} kernel's file ends with {suffix}")
    text = kernel_text(op, language, name=str(file))
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError(f"{file} exists, and nothing is overwritten: give another --out") from error
    except OSError as error:
        raise EnvironmentFault(f"cannot write {printable(str(file))}: {error.strerror}") from error
    return file


def kernel_text(op: str, language: Language, *, name: str) -> str:
    """The template, filled in; `name` is what the file will be called."""
    signature = signature_of(op)
    assert signature is not None, f"{op} states its schema as a literal"
    suffix = "triton" if language is Language.TRITON else language.value
    fields = {"op": op, "file": name, "inline": _INLINE[language]}
    maths = _filled(f"{op}{_MATHS[language]}", fields)
    fields["maths"] = _TYPES.sub("", maths)
    if language is not Language.TRITON:
        own = {name: found["type"] for found in _TYPES.finditer(maths) for name in found["names"].split(", ")}
        fields |= {"array": _filled("array.h", fields), **_binding(signature, _DTYPES[language], own)}
    return _filled(f"frame.{suffix}", fields).rstrip() + "\n"


def _filled(name: str, fields: dict[str, str]) -> str:
    return Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(fields)


def _binding(signature: Signature, dtypes: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The op's arguments and outputs as the entry receives them, and as the loops do.

    `own`: element types of tensors that do not have the call's dtype.
    """
    count = signature.outputs
    outs = [Argument("Tensor", "out" if count == 1 else f"out{place}") for place in range(count)]
    arguments = [*signature.arguments, *outs]
    tensors = [argument for argument in arguments if argument.kind.startswith("Tensor")]
    real = [argument for argument in tensors if argument.name not in own]

    def typed(item: Argument) -> str:
        return f"Array<{own.get(item.name, 'T')}>" if item in tensors else _PARAMETERS[item.kind]

    def handed_on(dtype: str) -> str:
        return ", ".join(
            f"array<{own.get(item.name, dtype)}>({item.name})" if item in tensors else item.name for item in arguments
        )

    is_one = [f"has({item.name}, dtype)" for item in real]
    is_one += [f"has({item.name}, DLDataType{{kDLInt, 64, 1}})" for item in tensors if own.get(item.name) == "int64_t"]
    return {
        "parameters": ", ".join(f"{_PARAMETERS[item.kind]} {item.name}" for item in arguments),
        "array_parameters": ", ".join(f"{typed(item)} {item.name}" for item in arguments),
        "names": ", ".join(item.name for item in arguments),
        "first": real[0].name,
        "one_dtype": " && ".join(is_one),
        **{dtype: handed_on(kind) for dtype, kind in dtypes.items()},
    }
