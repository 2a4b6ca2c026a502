"""A result without what is nobody else's business: folders, host names, and where a model and its data lie. Pure.

Prompts and tensors are in no result; the files that hold them are named there, and lose their folders here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from e2e.arm_names import ADOPTED
from e2e.schema.result import Result

_END = r"\s/\\:;,'\"()<>|"
_ABSOLUTE = re.compile(rf"(?:(?<=-I)|(?<=-L)|(?<![\w.:/\\-]))(?:~|[A-Za-z]:)?(?:[\\/][^{_END}]+)+[\\/]?")
"""From the root, a home or a drive; not the fraction `a/b`, and not what follows a scheme's colon."""
_FORTH = re.compile(rf"(?:\.\.?/)+(?:[^{_END}]+/)*(?=[^{_END}])")
"""The way from the current folder to a file elsewhere."""
_SHORTEST_NAME = 4
"""A host's name shorter than this would be found in too many words."""


def shareable(result: Result, hosts: Iterable[str] = ()) -> Result:
    """The same result with every path cut to its last part, without those host names and environment variables.

    What was measured stays as it is. The copy is for reading: no digest fits it any more.
    """
    known = sorted(set(_relative_paths(result)), key=lambda path: -len(path))
    hidden = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in hosts if len(name) >= _SHORTEST_NAME]
    raw = result.model_dump(mode="json")
    raw["environment"].pop("variables", None)
    return Result.model_validate(_cut(raw, known, hidden))


def _relative_paths(result: Result) -> Iterator[str]:
    """Those that look like something else wherever they are said."""
    found: list[str | None] = list(result.command)
    for kernel in result.kernels:
        found += [kernel.spec.partition(":")[0], kernel.path, *kernel.others]
    if result.workload is not None:
        model = result.workload.model
        found += [result.workload.data.path, result.workload.policy, model.factory]
        found += [model.id] if (model.id or "").count("/") > 1 else []  # with one it is a hub's name
    if result.policy is not None:
        found += [name.removeprefix(ADOPTED) for name in result.policy.opponents]
    yield from (path for path in found if path and "/" in path.strip("/") and "=" not in path)


def _cut(value: Any, known: Sequence[str], hidden: Sequence[re.Pattern[str]]) -> Any:
    if isinstance(value, dict):
        return {_cut(key, known, hidden): _cut(inner, known, hidden) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, known, hidden) for inner in value]
    return _cut_text(value, known, hidden) if isinstance(value, str) else value


def _cut_text(text: str, known: Sequence[str], hidden: Sequence[re.Pattern[str]]) -> str:
    for path in known:
        text = text.replace(path, _last(path))
    text = _ABSOLUTE.sub(lambda found: _last(found.group()), _FORTH.sub("", text))
    for name in hidden:
        text = name.sub("...", text)
    return text


def _last(path: str) -> str:
    return PurePosixPath(path.replace("\\", "/")).name or "..."
