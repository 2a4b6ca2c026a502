"""Findings of kernelguard are advice: shown where the package is there, and never more than that."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e import guard
from e2e.judge import judge
from e2e.reading import read_kernel
from e2e.schema.words import ReasonCode, ReasonKind, kind_of
from tests import results

KERNEL = Path(__file__).parents[1] / "kernels" / "plain_norm.py"
SAID = '{"matched_patterns": [{"pattern": "CODE_REPLACEMENT", "evidence": "__code__ assignment\\u001b"}]}'


def asked(said: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def ran(*command: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        assert options["input"] == KERNEL.read_bytes()
        return subprocess.CompletedProcess(command, 0, said.encode(), b"")

    monkeypatch.setattr(guard, "is_here", lambda: True)
    monkeypatch.setattr(subprocess, "run", ran)
    return guard.findings(read_kernel(str(KERNEL), op=None))


def test_what_matches_is_told_with_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["CODE_REPLACEMENT: __code__ assignment  (plain_norm.py)"] == asked(SAID, monkeypatch)


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"matched_patterns": 3}', '{"matched_patterns": [3]}', "Traceback"])
def test_what_is_no_finding_is_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [] == asked(said, monkeypatch)


def test_without_the_package_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "is_here", lambda: False)
    monkeypatch.setattr(subprocess, "run", None)
    assert [] == guard.findings(read_kernel(str(KERNEL), op=None))


def test_a_finding_is_advice_and_changes_no_outcome() -> None:
    result = results.result()
    assert result.policy is not None
    evidence = result.cells[0].evidence
    plain = judge(evidence, result.policy)
    found = judge(evidence.model_copy(update={"guard": ["TIMER_MONKEYPATCH: x (k.py)"]}), result.policy)
    assert (plain.outcome, plain.label, plain.reasons[0]) == (found.outcome, found.label, found.reasons[0])
    assert ReasonCode.GUARD_FINDING in [reason.code for reason in found.reasons]
    assert ReasonKind.ADVICE is kind_of(ReasonCode.GUARD_FINDING)


@pytest.mark.skipif(not guard.is_here(), reason="the extra `guard` is not installed")
def test_the_package_itself_finds_a_planted_trick() -> None:
    trick = Path(__file__).parents[1] / "cheats" / "kernels" / "rewrites_code.py"
    assert any("CODE_REPLACEMENT" in found for found in guard.findings(read_kernel(str(trick), op=None)))
