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
SHARED = ("array", "frame", "maybe", "mixed", "word")
"""Files that are of no op."""
_DTYPES = {
    Language.CPP: {"float32": "float", "float16": "_Float16", "bfloat16": "BFloat16"},
    Language.CU: {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"},
}
_STEPS = {Language.CPP: "each<{0}<T>>({1}<T>({2}), {2});", Language.CU: "each<{0}<T>>(stream, {1}<T>({2}), {2});"}
"""A step on all of its items: its function, the one that says how many they are, and the arguments of both."""
_PARAMETERS = {
    "Tensor": "TensorView",
    "Tensor?": "Optional<TensorView>",
    "float": "double",
    "float?": "Optional<double>",
    "int": "int64_t",
    "int?": "Optional<int64_t>",
    "bool": "bool",
    "str": "String",
}
"""What tvm-ffi hands over for each kind of argument."""
_LOOPS = {"float?": ("Maybe<double>", "maybe"), "int?": ("Maybe<int64_t>", "maybe"), "str": ("Word", "word")}
"""What loops, which may run on a GPU, take in its place, and the function that makes it, in a file of that name."""
_FLOAT, _INT, _BOOL = "DLDataType{kDLFloat, 32, 1}", "DLDataType{kDLInt, 64, 1}", "DLDataType{kDLBool, 8, 1}"
_ELEMENTS = {
    "T": ("dtype", "one dtype"),
    "float": (_FLOAT, "float32"),
    "int64_t": (_INT, "int64"),
    "Mixed": (f"dtype, {_FLOAT}, {_BOOL}", "that dtype, float32 or bool"),
}
"""Dtypes of a tensor by the type that loops give its elements, and how a message says them."""
_HEADER = re.compile(r"^(?://|#)! (?:block (?P<field>.+)|(?P<type>\w+): (?P<names>.+))\n", re.MULTILINE)
"""Lines of a template on tensors whose elements have a type of their own, `//! int64_t: ids`, and for the block."""
_STEP = re.compile(r" void (?P<name>compute(?P<ending>\w*))\(")
"""The function of one step of the loops; `items` with the same ending says how many items it has."""


def templates(language: Language) -> list[str]:
    """Ops that there is a template for."""
    stems = {path.stem for path in TEMPLATES.glob(f"*{_MATHS[language]}")}
    return sorted(stems - {*SHARED})


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
    suffix, mark = ("triton", "#") if language is Language.TRITON else (language.value, "//")
    fields = {"op": op, "file": name, "inline": _INLINE[language]}
    maths = _filled(f"{op}{_MATHS[language]}", fields)
    header = list(_HEADER.finditer(maths))
    fields["maths"] = _HEADER.sub("", maths)
    fields["block"] = "".join(f"{mark} {found['field']}\n" for found in header if found["field"])
    if language is not Language.TRITON:
        own = {tensor: found["type"] for found in header if found["type"] for tensor in found["names"].split(", ")}
        arguments = _arguments(signature, own)
        fields["types"] = "".join(_filled(f"{part}.h", fields) for part in _parts(arguments, own))
        fields |= _binding(arguments, own, language)
        fields["steps"] = "\n  ".join(
            _STEPS[language].format(step["name"], f"items{step['ending']}", fields["names"])
            for step in _STEP.finditer(maths)
        )
    return _filled(f"frame.{suffix}", fields).rstrip() + "\n"


def _filled(name: str, fields: Mapping[str, str]) -> str:
    return Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(fields)


def _arguments(signature: Signature, own: Mapping[str, str]) -> list[Argument]:
    """The op's arguments, its outputs, then scratch memory, which only the template names."""
    count = signature.outputs
    outs = ["out"] if count == 1 else [f"out{place}" for place in range(count)]
    known = [*signature.arguments, *(Argument("Tensor", name) for name in outs)]
    return known + [Argument("Tensor", name) for name in own if name not in {item.name for item in known}]


def _parts(arguments: list[Argument], own: Mapping[str, str]) -> list[str]:
    """Files of the types that loops with these arguments know."""
    needed = {_LOOPS[item.kind][1] for item in arguments if item.kind in _LOOPS}
    return ["array", *sorted(needed), *(["mixed"] if "Mixed" in own.values() else [])]


def _binding(arguments: list[Argument], own: Mapping[str, str], language: Language) -> dict[str, str]:
    """Those arguments as the entry receives them, and as the loops do.

    `own`: element types of tensors that do not have the call's dtype.
    """
    elements = {item.name: own.get(item.name, "T") for item in arguments if item.kind.startswith("Tensor")}
    groups = {kind: [name for name, element in elements.items() if element == kind] for kind in _ELEMENTS}
    checks = [f"has({name}, {{{_ELEMENTS[kind][0]}}})" for kind, names in groups.items() for name in names]
    taken = [f"{', '.join(names)} in {_ELEMENTS[kind][1]}" for kind, names in groups.items() if names]
    dtypes = {
        dtype: ", ".join(_made(item, elements.get(item.name), kind) for item in arguments)
        for dtype, kind in _DTYPES[language].items()
    }
    return {
        "parameters": ", ".join(f"{_PARAMETERS[item.kind]} {item.name}" for item in arguments),
        "array_parameters": ", ".join(f"{_taken(item, elements.get(item.name))} {item.name}" for item in arguments),
        "names": ", ".join(item.name for item in arguments),
        "first": groups["T"][0],
        "dtypes_fit": " && ".join(checks),
        "taken": "; ".join(taken),
        **dtypes,
    }


def _taken(item: Argument, element: str | None) -> str:
    """Type of an argument of the loops; `element` is that of a tensor's elements."""
    if element is None:
        return _LOOPS[item.kind][0] if item.kind in _LOOPS else _PARAMETERS[item.kind]
    return "Mixed<T>" if element == "Mixed" else f"Array<{element}>"


def _made(item: Argument, element: str | None, dtype: str) -> str:
    """That argument, made from what the entry received in a call of that dtype."""
    if element is None:
        return f"{_LOOPS[item.kind][1]}({item.name})" if item.kind in _LOOPS else item.name
    if element == "Mixed":
        return f"mixed<{dtype}>({item.name})"
    return f"array<{dtype if element == 'T' else element}>({item.name})"
