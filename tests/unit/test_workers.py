"""Which confinement a candidate's processes get, and when it is given up: with zygotes that are no processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e import workers as module
from e2e.errors import E2EError, EnvironmentFault
from e2e.integrity.sandbox import Confinement
from e2e.processes import WorkerFault
from e2e.schema.words import ReasonCode, Trust
from e2e.workers import CandidateFault, Member, Workers
from tests import fakes

SANDBOX = Confinement(("sandbox", "--"), "sandbox")
USUAL = Confinement(("namespace", "--"))


class Worker:
    """Opens the workload, or raises."""

    def __init__(self, problem: str | None) -> None:
        self.problem = problem
        self.clean = False
        self.opening: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}

    def send(self, do: str, **fields: Any) -> None:
        self.asked = fields

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        if self.problem is not None:
            raise WorkerFault(self.problem, kind="raised", code="environment")
        return {"opened": self.asked["what"]}

    def close(self) -> None: ...


class Refusing(Worker):
    """Finds nothing where it looks."""

    def call(self, do: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        raise WorkerFault("no such file", kind="raised")


class Zygote:
    """One whose workers have a problem in a sandbox, or which does not come up in one."""

    in_sandbox: str | None = None
    comes_up = True

    def __init__(self, modules: object, *, environment: dict[str, str], prefix: tuple[str, ...], log: Path) -> None:
        self.prefix, self.environment, self.log = prefix, environment, log
        self.threads = ["python"]
        self.closed = False

    def spawn(self, request: object, *, log: Path) -> Worker:
        if self.prefix == SANDBOX.prefix and not self.comes_up:
            raise EnvironmentFault("could not import torch")
        return Worker(self.in_sandbox if self.prefix == SANDBOX.prefix else None)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def zygotes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Zygote]:
    class Own(Zygote):
        """Class attributes of one test only."""

    monkeypatch.setattr(module, "Zygote", Own)
    monkeypatch.setattr(module, "sandbox", lambda writable, cuda: SANDBOX)
    monkeypatch.setattr(module, "namespace", lambda cuda: USUAL)
    monkeypatch.setenv("E2E_CACHE_DIR", str(tmp_path / "cache"))
    return Own


def crew(folder: Path, **policy: Any) -> Workers:
    made = Workers(
        device="cpu",
        seed=7,
        policy=fakes.policy(**policy),
        scratch=folder,
        members=[Member(fakes.kernel())],
    )
    made.start()
    return made


def test_only_the_candidates_processes_live_in_the_sandbox(zygotes: type[Zygote], tmp_path: Path) -> None:
    made = crew(tmp_path)
    assert [USUAL.prefix, SANDBOX.prefix] == [made._zygotes[clean].prefix for clean in (True, False)]  # type: ignore[attr-defined]
    assert made.fresh("open", clean=False, what="w").facts == {"opened": "w"}
    assert (Trust.SANDBOXED, []) == (made.trust, made.remarks())


def test_in_the_sandbox_what_libraries_keep_goes_to_the_candidates_own_folder(
    zygotes: type[Zygote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    made = crew(tmp_path)
    inside, outside = (made._zygotes[clean].environment for clean in (False, True))  # type: ignore[attr-defined]
    assert "HF_TOKEN" not in inside
    assert ("/caches", None) == (outside["XDG_CACHE_HOME"], outside.get("HF_HUB_OFFLINE"))
    assert Path(inside["XDG_CACHE_HOME"]).is_relative_to(tmp_path / "cache" / "compiled")
    assert ("/caches/huggingface", "1") == (inside["HF_HOME"], inside["HF_HUB_OFFLINE"])


def test_a_zygote_that_does_not_come_up_in_the_sandbox_comes_up_without(zygotes: type[Zygote], tmp_path: Path) -> None:
    zygotes.comes_up = False
    made = crew(tmp_path)
    first = made._zygotes[False]
    assert made.fresh("open", clean=False, what="w").facts == {"opened": "w"}
    assert first.closed  # type: ignore[attr-defined]
    assert made.trust is Trust.SAME_USER
    (said,) = made.remarks()
    assert "in the sandbox the workload does not open (could not import torch)" in said


def test_a_workload_that_does_not_open_in_the_sandbox_opens_without_and_the_report_says_so(
    zygotes: type[Zygote], tmp_path: Path
) -> None:
    zygotes.in_sandbox = "Read-only file system: '/home/x'\nmore"
    made = crew(tmp_path)
    assert made.fresh("open", clean=False, what="w").facts == {"opened": "w"}
    (said,) = made.remarks()
    assert "(Read-only file system: '/home/x')" in said


def test_a_candidate_cannot_get_rid_of_the_sandbox_once_it_works(zygotes: type[Zygote], tmp_path: Path) -> None:
    made = crew(tmp_path)
    made.fresh("open", clean=False, what="w")
    zygotes.in_sandbox = "no space left"
    with pytest.raises(EnvironmentFault, match="no space left"):
        made.fresh("open", clean=False, what="w")
    assert made.trust is Trust.SANDBOXED


def test_who_deletes_files_of_the_run_is_accused_and_not_e2e(zygotes: type[Zygote], tmp_path: Path) -> None:
    made = crew(tmp_path, sandbox=False)
    for zygote in made._zygotes.values():
        zygote.log.touch()
    worker: Any = Refusing(None)
    worker.clean = True
    with pytest.raises(E2EError, match="a process without the candidate failed: no such file"):
        made.require(worker, "compare_ops")
    made._zygotes[True].log.unlink()
    with pytest.raises(CandidateFault, match="deleted; then no such file") as caught:
        made.require(worker, "compare_ops")
    assert caught.value.fault.code is ReasonCode.TAMPERED


def test_a_policy_can_do_without_it(zygotes: type[Zygote], tmp_path: Path) -> None:
    made = crew(tmp_path, sandbox=False)
    assert made._zygotes[False].prefix == USUAL.prefix  # type: ignore[attr-defined]
    assert made.trust is Trust.SAME_USER
    (said,) = made.remarks()
    assert "the policy has `sandbox: false`" in said


def test_kernels_without_host_code_are_device_code_however_they_live(zygotes: type[Zygote], tmp_path: Path) -> None:
    raw = fakes.kernel().model_copy(update={"manifest": fakes.kernel().manifest.model_copy(update={"binding": "raw"})})
    made = crew(tmp_path, sandbox=False)
    made.members = [Member(raw)]
    assert (Trust.RAW, []) == (made.trust, made.remarks())
    made.members.append(Member(fakes.kernel()))
    assert made.trust is Trust.SAME_USER
