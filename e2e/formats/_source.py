"""What a source says about itself: its functions and its binding. Read as text, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from e2e.errors import UsageError
from e2e.formats._functions import Function, is_whole, native_function, python_names, shows_all
from e2e.schema.kernel import Binding

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\")", re.DOTALL)
_EXPORTED = re.compile(r"\bTVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)\s*,\s*(?:(?:\w*::)*(\w+)\s*\))?")
_BARE = re.compile(
    r"(?P<c>extern\s*\"C\"\s*(?:\{\s*)?)?__global__\s+"
    r"(?:(?:void|static|inline|__launch_bounds__\s*\([^()]*\))\s+)*(?P<name>\w+)\s*\("
)
_C_BLOCK = re.compile(r"extern\s*\"C\"\s*\{")
_OF_TORCH = re.compile(r"\bTORCH_LIBRARY|\bSTABLE_TORCH_LIBRARY")
_PYBIND = re.compile(r"\bPYBIND11_MODULE\b")
_DEFINED = re.compile(r"\bm\s*\.\s*def\s*\(\s*\"(\w+)\"\s*,\s*(?:&?\s*(?:\w*::)*(\w+)\s*[,)])?")
_MAKERS = re.compile(r"TVM_FFI_DLL_EXPORT|__tvm_ffi_|\.\s*def\b|__global__")
"""What a macro that adds functions has in it."""
_OTHER_WAYS = re.compile(r"__tvm_ffi_\w|\.\s*attr\s*\(|\bclass_\s*<|\bdef_submodule\b")
"""Names that come into a library without an export that is read here."""
_DEFAULTS = re.compile(r"\barg\s*\(|_a\b")
_OF_CUDA = re.compile(r"#\s*include\s*[<\"]cuda")
_SUFFIX_OF = {
    "float32": ("f32", "fp32", "float32", "float"),
    "float16": ("f16", "fp16", "float16", "half"),
    "bfloat16": ("bf16", "bfloat16"),
}


@dataclass(frozen=True)
class Source:
    """The functions a kernel file offers, and how they are called."""

    binding: Binding
    functions: tuple[str, ...]
    """Names that could be an entry, in file order."""
    needs_cuda: bool
    unsupported: str | None = None
    """Why this kind of source cannot be used yet, in words."""
    known: Mapping[str, Function] = field(default_factory=dict)
    """What can be called from outside, by name."""
    is_whole: bool = False
    """Whether these are all the names that there are."""


def scan(text: str, suffix: str) -> Source:
    """Functions and binding of C++, CUDA or Python source.

    Raises:
        UsageError: Python source that does not parse; the message is `line N: reason`.
    """
    return _scan_python(text) if suffix == ".py" else _scan_native(text, suffix)


def pick_entry(source: Source, op: str | None) -> str | dict[str, str]:
    """The one function that can be meant: the only one, one named like the op, or one per dtype.

    Raises:
        UsageError: none, or several; the message lists them.
    """
    names = source.functions
    if not names:
        raise UsageError(_nothing(source))
    if len(names) == 1:
        return names[0]
    wanted = {_plain(op or ""), _plain(f"{op}_forward")}
    named = [name for name in names if _plain(name) in wanted]
    if len(named) == 1:
        return named[0]
    by_dtype = {dtype: [name for name in names if _ends(name, dtype)] for dtype in _SUFFIX_OF}
    if source.binding != "python" and sum(map(len, by_dtype.values())) == len(names):
        found = {dtype: matches[0] for dtype, matches in by_dtype.items() if len(matches) == 1}
        if len(found) == len(names):
            return found
    raise UsageError(f"several functions could be the entry: {', '.join(names[:10])}; state `entry:`")


def same_name(stem: str, names: list[str]) -> str | None:
    """The registered name that `stem` spells, underscores aside: `rmsnorm` is `rms_norm`."""
    return next((name for name in names if _plain(name) == _plain(stem)), None)


def _scan_native(text: str, suffix: str) -> Source:
    code = _COMMENTS.sub(lambda found: found.group(1) or "\n" * found.group().count("\n") or " ", text)
    exported = dict(_EXPORTED.findall(code))
    # Within an `extern "C" { }` block the functions do not repeat it.
    block = _C_BLOCK.search(code)
    found = [item for item in _BARE.finditer(code) if item["c"] or (block and block.start() < item.start())]
    bare = [item["name"] for item in found if not _is_template(code, item.start())]
    unsupported, binding = None, _binding(code, list(exported), bare)
    by_name = {"torch": dict(_DEFINED.findall(code)), "raw": dict(zip(bare, bare, strict=True))}.get(binding, exported)
    functions = list(by_name)
    if not functions and _OF_TORCH.search(code):
        unsupported = "operators registered with torch are not read; bind by PYBIND11_MODULE, or export with tvm-ffi"
    return Source(
        binding=binding,
        functions=tuple(functions),
        needs_cuda=suffix == ".cu" or bool(_OF_CUDA.search(code)),
        unsupported=unsupported,
        known={name: _native(code, inner, binding) for name, inner in by_name.items()},
        is_whole=bool(functions) and is_whole(code, _MAKERS) and not _OTHER_WAYS.search(code),
    )


def _native(code: str, name: str, binding: Binding) -> Function:
    """The function behind an export; where its definition is not found, a function and no more."""
    found = native_function(code, name) if name else None
    if found is None or (binding == "torch" and _DEFAULTS.search(code)):
        return Function(line=1)
    return found


def _binding(code: str, exported: list[str], bare: list[str]) -> Binding:
    if exported or "tvm/ffi/" in code:
        return "tvm-ffi"
    if _PYBIND.search(code):
        return "torch"
    return "raw" if bare else "tvm-ffi"


def _is_template(code: str, position: int) -> bool:
    return code[:position].rstrip().endswith(">")


def _scan_python(text: str) -> Source:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"line {error.lineno or 1}: not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError("line 1: Python cannot parse this source") from error
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    return Source(
        binding="python",
        functions=tuple(dict.fromkeys(names)),
        needs_cuda=False,
        known=python_names(tree),
        is_whole=shows_all(tree),
    )


def _nothing(source: Source) -> str:
    if source.binding == "python":
        return "no public top-level function in it; add one, or state `entry:`"
    return (
        "nothing is exported; add TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function), "
        'or write extern "C" __global__ functions and state `launch:`'
    )


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _ends(name: str, dtype: str) -> bool:
    return any(name.lower().endswith(f"_{suffix}") for suffix in _SUFFIX_OF[dtype])
