"""What is fuzzed, one target a kind of input: cases that hypothesis draws, and what has to hold for each."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import ValidationError

from e2e import registry, store
from e2e.capture_files import find_captures
from e2e.cli import run
from e2e.configuration import BUILT_IN_POLICIES, load_policy, load_workload
from e2e.errors import E2EError
from e2e.integrity.channel import Channel, ChannelClosed, ChannelGarbage, ChannelTimeout
from e2e.preflight import check_fit, check_model, check_task
from e2e.profile_store import PROFILE
from e2e.reading import read_kernel
from e2e.schema.answers import ANSWERS, checked
from e2e.schema.kernel import Manifest
from e2e.schema.workload import Workload, cells_of
from e2e.signatures import signature_of
from tests import profiles, results
from tests.fuzz.mutations import ODD_TEXTS, VALUES, changed_document, changed_text

REPOSITORY = Path(__file__).parents[2]
FIXTURES = REPOSITORY / "tests" / "formats"
LIMIT_S = 20
"""An example that takes longer hangs."""
CODES = frozenset({0, 2, 6, 10, 11, 12, 13, 14})
"""What a command may end with on any input: 1 and 70 are faults of ours."""


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    name: str
    cases: st.SearchStrategy[Any]
    holds: Callable[[Any, Path], None]
    """Raises AssertionError where a case shows a fault; works in an empty folder, which is the current one."""
    weight: int = 1
    """How many examples it gets, relative to the others."""


def attempt(target: Target, case: Any) -> None:
    """Try one case in a folder of its own, within the time limit; nothing may be left outside of it.

    Raises:
        AssertionError: the case shows a fault.
    """
    with tempfile.TemporaryDirectory(prefix="e2e-fuzz-") as name:
        outer = Path(name)
        inner = outer / "a" / "b"
        inner.mkdir(parents=True)
        with _within(inner), _limited(), _cached_in(outer / "cache"):
            target.holds(case, inner)
        left = sorted(str(path.relative_to(outer)) for path in outer.rglob("*"))
        strange = [path for path in left if not path.startswith(("a/b", "cache")) and path != "a"]
        assert not strange, f"written outside: {strange}"


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    with contextlib.chdir(folder):
        yield


@contextlib.contextmanager
def _cached_in(cache: Path) -> Iterator[None]:
    """`E2E_CACHE_DIR` of this example."""
    before = os.environ.get("E2E_CACHE_DIR")
    os.environ["E2E_CACHE_DIR"] = str(cache)
    try:
        yield
    finally:
        if before is None:
            del os.environ["E2E_CACHE_DIR"]
        else:
            os.environ["E2E_CACHE_DIR"] = before


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused_at(call: Callable[[], Any], *places: str) -> None:
    """It works, or raises an error of ours that names one of the places.

    Raises:
        AssertionError: the message does not. Anything else that it raises goes through.
    """
    before, raised = _tree(Path()), None
    try:
        call()
    except E2EError as error:
        raised = error
    assert before == _tree(Path()), "a reader wrote into its input's folder"
    if raised is not None:
        assert raised.exit_code in CODES, raised.message
        assert any(place in raised.message for place in places), f"none of {places} is in {raised.message!r}"
        assert all(char.isprintable() or char == "\n" for char in raised.message), f"controls in {raised.message!r}"


def ends_well(*arguments: str) -> tuple[int, str]:
    """A command of the command line ends with a code of its own; gives code and message.

    Raises:
        AssertionError: it does not, or a refusal says nothing.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    said = err.getvalue()
    assert code in CODES, f"e2e {' '.join(arguments)} ended with {code}: {said}{_details(said)}"
    assert code not in (2, 6) or said.startswith("e2e: error: "), f"code {code} without a word"
    assert "Traceback" not in said + out.getvalue()
    return code, said


def _details(said: str) -> str:
    """The traceback that the command put aside."""
    for word in said.split():
        path = Path(word.rstrip(".;,)"))
        if path.is_absolute() and path.is_file():
            return "\n" + path.read_text()
    return ""


def _tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


# ---- workloads, policies, --set


def _texts(*patterns: str) -> list[str]:
    return [path.read_text() for pattern in patterns for path in sorted(REPOSITORY.glob(pattern))]


WORKLOADS = _texts("workloads/*.yaml")
POLICIES = [path.read_text() for path in sorted(BUILT_IN_POLICIES.glob("*.yaml"))]


def _as_yaml(document: Any) -> str:
    return str(yaml.safe_dump(document, allow_unicode=True, sort_keys=False))


def _documents(texts: Sequence[str]) -> st.SearchStrategy[str]:
    return changed_text(texts) | changed_document([yaml.safe_load(text) for text in texts]).map(_as_yaml)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def workload_holds(text: str, folder: Path) -> None:
    """A workload file is read, or refused with its name."""
    _write(Path("w.yaml"), text)

    def load() -> None:
        loaded = load_workload("w.yaml")
        assert cells_of(loaded.workload)
        check_fit(loaded, read_kernel(str(REPOSITORY / "kernels" / "rmsnorm.cpp"), op=None))
        check_task(loaded)
        if loaded.workload.model.id is None:  # whether a hub has it, only the network knows
            check_model(loaded)

    refused_at(load, "w.yaml", *_others(text))


def _others(text: str) -> list[str]:
    """Other files that it names, and that a message may be about."""
    return [".py"] if ".py" in text else []


LENGTHS = ["prompt_tokens,output_tokens\n12,3\n500,40\n7,9\n", "prompt_tokens\n1\n2\n"]
FOR_LENGTHS = "name: w\ntask: causal-lm\nstep: prefill\nmodel: {id: none, dtype: float32}\ncells: {lengths: l.csv}\n"


def lengths_hold(text: str, folder: Path) -> None:
    """A table of lengths is read, or refused with its name."""
    _write(Path("w.yaml"), FOR_LENGTHS)
    _write(Path("l.csv"), text)
    refused_at(lambda: load_workload("w.yaml"), "l.csv", "w.yaml")


def policy_holds(text: str, folder: Path) -> None:
    """A policy file is read, or refused with its name."""
    _write(Path("p.yaml"), text)
    refused_at(lambda: load_policy("p.yaml", heeds_waivers=True), "p.yaml")


def _paths(model: Any, prefix: str = "") -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        found.append(prefix + name)
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
            found += _paths(field.annotation, f"{prefix}{name}.")
    return found


KEYS = st.sampled_from(_paths(Workload)) | st.text(max_size=10) | st.sampled_from(["model.config.", "cells.", ".", "="])
SETTINGS = st.lists(
    st.tuples(KEYS, st.sampled_from(["=", "", "==", " = "]), VALUES.map(json.dumps) | st.text(max_size=10)).map(
        "".join
    ),
    min_size=1,
    max_size=3,
)


def settings_hold(settings: list[str], folder: Path) -> None:
    """Overrides are laid over a workload, or refused with the override or the file they make wrong."""
    _write(Path("w.yaml"), WORKLOADS[0])
    refused_at(lambda: load_workload("w.yaml", settings), "--set", "w.yaml", *_others("".join(settings)))


# ---- kernels

KERNEL_TEXTS = {
    suffix: _texts(f"kernels/*{suffix}", f"tests/kernels/*{suffix}", f"tests/honest/*{suffix}")
    for suffix in (".cu", ".cpp", ".py")
}
FIELDS = st.sampled_from(sorted(Manifest.model_fields)) | st.text(max_size=8)
PLAUSIBLE = st.sampled_from(
    [
        *(
            "rms_norm",
            "linear",
            "module:Thing",
            "aten:silu.default",
            "patch",
            "reference",
            "norm",
            "x",
            "raw",
            "python",
        ),
        *([{"rstd": "rows, float32"}], {"x": 2}, ["x", "weight", "out"], {"grid": ["rows"], "block": [256]}),
        *([{"grid": [1], "block": [1], "entry": "norm"}], ["hidden % 8 == 0"], ["hidden // 0 == rows"], ["float32"]),
        *({"float32": "norm"}, {"speedup": 2.0}, "bshd", "return", "last", "int8", ["-O3"], "sm_90", "cuda", "module"),
    ]
)
BLOCKS = st.dictionaries(FIELDS, PLAUSIBLE | VALUES, max_size=6)


@st.composite
def kernels(draw: Callable[..., Any]) -> tuple[str, str]:
    """Suffix and text: a shipped kernel that was changed, or one under another block."""
    suffix = draw(st.sampled_from(sorted(KERNEL_TEXTS)))
    if draw(st.booleans()):
        return suffix, draw(changed_text(KERNEL_TEXTS[suffix]))
    mark = "#" if suffix == ".py" else "//"
    rows = ["/// e2e", *_as_yaml(draw(BLOCKS)).splitlines(), "///"]
    source = draw(st.sampled_from(KERNEL_TEXTS[suffix])).partition(f"{mark} ///\n")[2]
    return suffix, "\n".join([*(f"{mark} {row}" for row in rows), source])


def kernel_holds(case: tuple[str, str], folder: Path) -> None:
    """A kernel file is read, or refused with its name."""
    suffix, text = case
    name = f"k{suffix}"
    _write(Path(name), text)
    for op in (None, "rms_norm"):
        refused_at(partial(read_kernel, name, op=op), name)


# ---- kernels of other harnesses

TREES = {
    "autokernel": "autokernel/kernel.py",
    "backendbench": "backendbench/rms_norm__default",
    "flashinfer_bench": "flashinfer_bench/solutions/somebody/rmsnorm/rmsnorm_h384/somebodys_rmsnorm.json",
    "hf_kernels": "hf_kernels/small_norms#RMSNorm",
    "kernelbench": "kernelbench/rms_norm.py",
    "robust_kbench": "robust_kbench/rmsnorm/kernel.cpp",
}
"""A spec in each folder of fixtures."""
FILES = {
    kind: sorted(path for path in (FIXTURES / kind).rglob("*") if path.is_file() and path.suffix != ".pyc")
    for kind in TREES
}


@st.composite
def foreign(draw: Callable[..., Any]) -> tuple[str, str, str]:
    """A harness, one of its files, and what stands in it now."""
    kind = draw(st.sampled_from(sorted(TREES)))
    path = draw(st.sampled_from(FILES[kind]))
    text = path.read_text()
    if path.suffix == ".json" and draw(st.booleans()):
        text = json.dumps(draw(changed_document([json.loads(text)])))
    else:
        text = draw(changed_text([text]))
    return kind, str(path.relative_to(FIXTURES)), text


def foreign_holds(case: tuple[str, str, str], folder: Path) -> None:
    """A kernel of another harness is read, or refused with the name of one of its files."""
    kind, changed, text = case
    for path in FILES[kind]:
        _write(Path(path.relative_to(FIXTURES)), path.read_text())
    _write(Path(changed), text)
    spec = TREES[kind]
    top = spec.partition("/")[0]
    for op in (None, "rms_norm", "module:Norm"):
        refused_at(partial(read_kernel, spec, op=op), top)


SPECS = st.text(max_size=30) | ODD_TEXTS | st.sampled_from(["a.b:c", "patch:", "patch:a:b", "x.py:", "json:loads", "#"])
OPS = st.none() | st.text(max_size=12) | st.sampled_from(["x.py:Op", "module:", "aten:x", ":", "rms_norm", ".py:"])


def spec_holds(case: tuple[str, str | None], folder: Path) -> None:
    """Whatever stands for a kernel and its op is refused in words."""
    spec, op = case
    refused_at(lambda: read_kernel(spec, op=op), "")


CODE = _texts("examples/*.py", "e2e/ops/rms_norm.py", "e2e/tasks/causal_lm.py")


def code_holds(text: str, folder: Path) -> None:
    """The file of an op or a task from outside is looked into without running it, or refused with its name."""
    _write(Path("own.py"), text)
    for name in ("Op", "SwigluMlp", "RmsNorm"):
        refused_at(partial(read_kernel, str(REPOSITORY / "kernels" / "rmsnorm.cpp"), op=f"own.py:{name}"), "own.py")
        refused_at(partial(signature_of, f"own.py:{name}"), "own.py")
    refused_at(lambda: registry.steps_of("own.py:Forecaster", Path()), "own.py")


# ---- stored runs

RESULT = json.loads((results.GOLDEN / store.RESULT).read_text())
RESULTS = [RESULT, {**RESULT, "method": "1"}]
SAMPLES = (results.GOLDEN / store.SAMPLES).read_text()
PROFILE_TEXT = profiles.report().model_dump_json()


@dataclass(frozen=True)
class StoredCase:
    """A run's files as somebody left them."""

    result: str
    samples: str
    signed: bool
    """Whether the digests fit, as where an older or a newer e2e wrote the files."""


stored_cases = st.builds(
    StoredCase,
    result=(changed_document(RESULTS, kinds=("near",), most=6) | changed_document(RESULTS, most=2)).map(json.dumps)
    | changed_text([json.dumps(RESULT, indent=1)]),
    samples=st.sampled_from([True, True, True, False]).flatmap(
        lambda kept: st.just(SAMPLES) if kept else changed_text([SAMPLES])
    ),
    signed=st.sampled_from([True, True, True, False]),
)


def stored_holds(case: StoredCase, folder: Path) -> None:
    """A stored run is shown and judged, or refused with its name; whatever stands in it."""
    place = Path("results") / "run"
    text, samples = case.result, case.samples
    if case.signed:
        text = _with_digest(text, samples)
    _write(place / store.RESULT, text)
    _write(place / store.SAMPLES, samples)
    digest = hashlib.sha256((place / store.RESULT).read_bytes()).hexdigest() if case.signed else "0" * 64
    _write(place / store.DIGEST, f"{digest}  {store.RESULT}\n")
    code, said = ends_well("report", str(place), "--format", "json")
    assert code == 0 or str(place) in said, said
    ends_well("gate", str(place))
    ends_well("history", "results", "--json")
    if code == 0:
        for style in registry.names("reports"):
            ends_well("report", str(place), "--format", style)
        ends_well("report", str(place), "--share")
        ends_well("compare", str(place), str(place))
        ends_well("adopt", str(place), "--out", "results/adopted", "--force", "to see")


def _with_digest(text: str, samples: str) -> str:
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if isinstance(document, dict) and "samples_sha256" in document:
        document["samples_sha256"] = hashlib.sha256(samples.encode("utf-8", "surrogatepass")).hexdigest()
        return json.dumps(document)
    return text


def profile_holds(text: str, folder: Path) -> None:
    """A stored profile is shown, or refused with its name."""
    place = Path("results") / "profile"
    _write(place / PROFILE, text)
    code, said = ends_well("report", str(place))
    assert code == 0 or str(place) in said, said
    ends_well("report", str(place), "--format", "md")


@st.composite
def captures(draw: Callable[..., Any]) -> bytes:
    """A file that begins as safetensors do, or nearly."""
    about = {"op": "rms_norm", "dtype": "float32", "calls": "[]"}
    header = draw(changed_document([{"__metadata__": about}]).map(json.dumps) | st.text(max_size=30))
    body = header.encode("utf-8", "surrogatepass")
    length = draw(st.just(len(body)) | st.sampled_from([0, 1, 2**63, len(body) + 9]))
    return struct.pack("<Q", length) + body


def captures_hold(content: bytes, folder: Path) -> None:
    """A file of captured inputs is looked into, or refused with its name."""
    Path("c.safetensors").write_bytes(content)
    refused_at(lambda: find_captures("c.safetensors", op="rms_norm"), "c.safetensors")


# ---- what a worker sends


@st.composite
def frames(draw: Callable[..., Any]) -> bytes:
    """Bytes that are nearly a message."""
    body = draw(VALUES.map(json.dumps).map(str.encode) | st.binary(max_size=40))
    length = draw(st.just(len(body)) | st.sampled_from([0, 1, 2**24, 2**32 - 1]))
    return struct.pack("!I", length) + body


def frame_holds(raw: bytes, folder: Path) -> None:
    """The parent reads an object, or gets one of three errors."""
    ours, theirs = socket.socketpair()
    with contextlib.closing(Channel(ours)) as channel, contextlib.closing(theirs):
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ChannelClosed, ChannelGarbage, ChannelTimeout):
            assert isinstance(channel.receive(1.0), dict)


def answer_holds(case: tuple[str, Any], folder: Path) -> None:
    """An answer has the form that its request asks for, or is nonsense: no other error."""
    do, answer = case
    with contextlib.suppress(ValidationError):
        checked(do, answer)


# ---- command lines

WORDS = st.sampled_from(
    [
        *(
            "--seed",
            "--budget",
            "--device",
            "--op",
            "--kernel",
            "--set",
            "--policy",
            "--format",
            "--until",
            "--workers",
        ),
        *(
            "--repeat",
            "--again",
            "--json",
            "--help",
            "-1",
            "nan",
            "1e9",
            "cuda:99",
            "gpu",
            "none.yaml",
            "none.cu",
            "x=y",
        ),
        *("rms_norm", "cpp", "text", "results", "a/../b", "--", "-x", "--no-trace", "--events", "--captures"),
    ]
) | st.text(max_size=8)
SAFE = ("gate", "report", "compare", "history", "adopt", "list", "new", "validate", "profile", "check")
"""Commands that end before a worker starts, since no file of those names exists."""


def command_holds(case: tuple[str, list[str]], folder: Path) -> None:
    """A command line is refused or obeyed."""
    command, words = case
    if command in ("validate", "profile", "check"):
        words = ["no-such-file", *words]
    ends_well(command, *words)


TARGETS = (
    Target("workload", _documents(WORKLOADS), workload_holds, weight=3),
    Target("policy", _documents(POLICIES), policy_holds),
    Target("lengths", changed_text(LENGTHS) | st.text(max_size=40), lengths_hold),
    Target("code", changed_text(CODE), code_holds),
    Target("settings", SETTINGS, settings_hold, weight=2),
    Target("kernel", kernels(), kernel_holds, weight=4),
    Target("foreign", foreign(), foreign_holds, weight=3),
    Target("spec", st.tuples(SPECS, OPS), spec_holds, weight=2),
    Target("stored", stored_cases, stored_holds, weight=2),
    Target(
        "profile",
        changed_document([json.loads(PROFILE_TEXT)]).map(json.dumps) | changed_text([PROFILE_TEXT]),
        profile_holds,
    ),
    Target("captures", captures(), captures_hold),
    Target("frame", frames(), frame_holds, weight=2),
    Target("answer", st.tuples(st.sampled_from(sorted(ANSWERS)), VALUES), answer_holds, weight=2),
    Target("command", st.tuples(st.sampled_from(SAFE), st.lists(WORDS, max_size=4)), command_holds, weight=2),
)
