"""Which compiler flags a manifest may hold.

A manifest comes with the candidate, and the parent runs the compiler: a flag must not start a program, load
a plug-in, or write elsewhere. So flags are allowed by form, not refused by name; values hold no character
that a shell reads, since nvcc starts its tools through one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from e2e.errors import CandidateError, UsageError
from e2e.protocols import BuildTarget
from e2e.schema.kernel import Kernel

_HOST = re.compile(
    r"-O(?:[0-3sgz]|fast)?|-std=[\w+]+|-g\d?|-pthread|-w|-pedantic|-march=[\w.+-]+|-m[\w.+-]+(?:=[\w.,+-]+)?"
    r"|-f(?!plugin|dump|profile|module|use-ld|opt-info|auto-profile|sanitize|test-coverage|instrument)"
    r"[\w-]+(?:=[\w.,+-]+)?"
    r"|-[DU]\w+(?:=[\w.:+-]*)?|-W(?![lap],)[\w-]*(?:=[\w-]+)?|-l[\w.+-]+"
)
_PATH = re.compile(r"-(?P<kind>[IL])(?P<path>[\w./+-]*)")
_NVCC = re.compile(
    r"--?(?:use_fast_math|extra-device-vectorization|expt-relaxed-constexpr|expt-extended-lambda|extended-lambda"
    r"|lineinfo|generate-line-info|restrict|Ofast-compile=\w+|split-compile=\d+|threads=\d+"
    r"|(?:maxrregcount|ftz|prec-div|prec-sqrt|fmad)=\w+|diag-suppress=[\d,]+)"
    r"|-std=[\w+]+|-O[0-3]|-[DU]\w+(?:=[\w.:+-]*)?|-l[\w.+-]+|-w|-g|-G"
)
_NVCC_ARCH = re.compile(r"--?(?:arch=(?P<arch>sm_\d+[af]?)|gencode=(?P<code>arch=compute_\d+[af]?,code=\w+))")
_PASSED_ON = {
    "-Xptxas": re.compile(r"-?-[\w=,.-]+"),
    "--ptxas-options": re.compile(r"-?-[\w=,.-]+"),
    "-Xcudafe": re.compile(r"--diag_suppress=\w+"),
}
_HOST_OPTIONS = ("-Xcompiler", "--compiler-options")


def checked_flags(kernel: Kernel, *, nvcc: bool) -> list[str]:
    """The manifest's flags, one word each, with relative `-I` and `-L` taken from the source's folder.

    Raises:
        UsageError: flags that are not allowed; all of them.
    """
    words = [word for flag in kernel.manifest.flags for word in _split(flag)]
    kept: list[str] = []
    refused: list[str] = []
    rest = iter(words)
    for word in rest:
        found = _PATH.fullmatch(word)
        if found:
            path = found["path"] or next(rest, "")
            kept.append(f"-{found['kind']}{Path(kernel.path or '.').parent / path}")
        elif nvcc:
            kept += _nvcc_words(word, rest, refused)
        elif _HOST.fullmatch(word):
            kept.append(word)
        else:
            refused.append(word)
    if refused:
        where = f"{kernel.spec}:{kernel.block_line or 1}"
        tool = "nvcc" if nvcc else "the C++ compiler"
        raise UsageError(
            f"{where}: flags: {', '.join(map(repr, refused))} may not be given to {tool} from a manifest; "
            "allowed are optimisation, dialect, target, warnings, macros, include folders and libraries"
        )
    return kept


def architectures(flags: list[str]) -> list[str]:
    """Devices that nvcc flags build for, such as `sm_90a` and `compute_80` (PTX); empty when not stated."""
    found = [match for flag in flags if (match := _NVCC_ARCH.fullmatch(flag))]
    return [match["arch"] or match["code"].partition("code=")[2] for match in found]


def stated_architectures(kernel: Kernel) -> list[str]:
    """What the kernel's block says to build for, by `arch` or by its flags.

    Raises:
        UsageError: flags that are not allowed, or that say it a second time.
    """
    flagged = architectures(checked_flags(kernel, nvcc=True))
    if flagged and kernel.manifest.arch:
        raise UsageError(f"{kernel.shown}: arch and flags both say what to build for; keep `arch`")
    return kernel.manifest.arch or flagged


def target_architectures(kernel: Kernel, target: BuildTarget) -> list[str]:
    """`stated_architectures`, of which one must run on the target's device, if that is known.

    Raises:
        UsageError: flags that are not allowed, or that say it a second time.
        CandidateError: `build_failed`: none of them runs there.
    """
    stated = stated_architectures(kernel)
    if target.arch is not None and stated and not runs_on(stated, target.arch):
        raise CandidateError(
            f"{kernel.spec}: it is built for {', '.join(stated)}, and this device is sm_{target.arch}",
            code="build_failed",
            line=kernel.block_line,
        )
    return stated


def runs_on(built_for: list[str], device: str) -> bool:
    """Whether code for `built_for` runs on a device of architecture `device` (`90`).

    Source:
        CUDA programming guide, binary and PTX compatibility: same major and no newer minor; PTX onwards.
    """
    number = int(device)
    for name in built_for:
        found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name)
        if found is None:
            return True  # `code=native` and the like: nvcc knows
        built = int(found[2])
        onwards = found[1] == "compute" or built // 10 == number // 10
        if built == number or (onwards and built < number and not found[3]):
            return True
    return False


def _split(flag: str) -> list[str]:
    try:
        return shlex.split(flag)
    except ValueError:
        return [flag]


def _nvcc_words(word: str, rest: Iterator[str], refused: list[str]) -> list[str]:
    option, equals, value = word.partition("=")
    if word in ("-gencode", "-arch", "--gencode", "--arch", "-maxrregcount", "--maxrregcount"):
        word = f"{word}={next(rest, '')}"
    if _NVCC.fullmatch(word) or _NVCC_ARCH.fullmatch(word):
        return [word]
    if option in _PASSED_ON or option in _HOST_OPTIONS:
        value = value if equals else next(rest, "")
        parts = value.split(",") if option in _HOST_OPTIONS else [value]
        form = _PASSED_ON.get(option, _HOST)
        if all(form.fullmatch(part) for part in parts):
            return [option, value]
        word = f"{option} {value}"
    refused.append(word)
    return []
