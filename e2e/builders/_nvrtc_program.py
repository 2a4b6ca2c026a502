"""A compiler's command line over NVRTC: a program of its own, so that a build is bounded and cannot take e2e down.

    python _nvrtc_program.py LIBRARY [NVRTC's options] [-MD -MF DEPENDENCIES] -o CUBIN SOURCE
    python _nvrtc_program.py LIBRARY --version

Imports nothing of e2e. Ends with 0 and a cubin, or with 1 and NVRTC's log on stderr.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_INCLUDE = re.compile(rb"^\s*#\s*include\s*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)


class Library(Protocol):
    """The part of libnvrtc that is used."""

    def version(self) -> tuple[int, int]:
        """Major and minor."""
        ...

    def compile(self, source: bytes, name: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """The cubin, or None where there is none, and the log."""
        ...


class Nvrtc:
    """libnvrtc, by ctypes.

    Source:
        nvrtc.h of the CUDA toolkit; every function gives 0 for success.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> tuple[int, int]:
        """Major and minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._need("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: bytes, name: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """The cubin, or None where there is none, and the log."""
        program = ctypes.c_void_p()
        self._need("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self._library.nvrtcCompileProgram(program, len(options), given)
        log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if code:
            return None, log or self._said("nvrtcCompileProgram", code)
        return self._bytes("nvrtcGetCUBIN", program) or None, log

    def _bytes(self, getter: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._need(f"{getter}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if size.value:
            self._need(getter, program, buffer)
        return buffer.raw

    def _need(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise OSError(self._said(function, code))

    def _said(self, function: str, code: int) -> str:
        said = self._library.nvrtcGetErrorString(code) or b"unknown"
        return f"{function}: {said.decode(errors='replace')}"


@dataclass(frozen=True)
class _Asked:
    source: Path
    cubin: Path
    dependencies: Path | None
    options: list[str]

    @property
    def folders(self) -> list[Path]:
        """Where includes are looked for: beside the source, then as stated."""
        stated = [Path(option.removeprefix("-I")) for option in self.options if option.startswith("-I")]
        return [self.source.parent, *stated]


def _parsed(words: Sequence[str]) -> _Asked:
    *rest, source = words
    found: dict[str, str] = {}
    options = []
    left = iter(rest)
    for word in left:
        if word in ("-o", "-MF"):
            found[word] = next(left)
        elif word != "-MD":
            options.append(word)
    dependencies = found.get("-MF")
    return _Asked(Path(source), Path(found["-o"]), Path(dependencies) if dependencies else None, options)


def included(source: Path, folders: Sequence[Path]) -> list[Path]:
    """Every file that the source may include, of those that are there: NVRTC does not say which it read."""
    found, waiting = [source], [source]
    while waiting:
        file = waiting.pop()
        for name in _INCLUDE.findall(file.read_bytes()):
            places = (folder / name.decode(errors="surrogateescape") for folder in (file.parent, *folders))
            path = next((place for place in places if place.is_file()), None)
            if path is not None and path not in found:
                found.append(path)
                waiting.append(path)
    return found


def build(library: Library, words: Sequence[str]) -> tuple[int, str]:
    """Exit code and log of one command line."""
    if list(words) == ["--version"]:
        return 0, "NVRTC {}.{}".format(*library.version())
    asked = _parsed(words)
    options = [f"-I{asked.source.parent}", *asked.options]
    cubin, log = library.compile(asked.source.read_bytes(), str(asked.source), options)
    if cubin is None:
        return 1, log
    asked.cubin.write_bytes(cubin)
    if asked.dependencies is not None:
        names = [str(path).replace(" ", "\\ ") for path in included(asked.source, asked.folders)]
        asked.dependencies.write_text(f"kernel: {' '.join(names)}\n", errors="surrogateescape")
    return 0, log


def main(arguments: Sequence[str]) -> int:
    """Run one command line."""
    path, *words = arguments
    try:
        code, log = build(Nvrtc(ctypes.CDLL(path)), words)
    except (OSError, AttributeError) as error:  # absent, damaged, or without a function
        code, log = 1, f"{path} cannot be used: {error}"
    print(log, file=sys.stdout if code == 0 else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
