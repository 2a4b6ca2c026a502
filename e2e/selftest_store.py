"""Where self-tests are kept: a file for people, and the newest of every machine for later results to quote."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from e2e.cache import cache_folder
from e2e.errors import EnvironmentFault
from e2e.schema.evidence import DeviceFacts
from e2e.schema.selftest import SelftestNote, SelftestReport
from e2e.stats import detectable
from e2e.store import Run

MAX_NOTE_BYTES = 64 * 2**10


def keep(report: SelftestReport, out: Path) -> Path:
    """Write the report under `out`; the newest whole one of this machine is remembered as well."""
    stamp = report.created.replace("-", "").replace(":", "").partition("+")[0]
    path = Run(out, place=f"--out {out}").write_text(f"selftest-{stamp}Z.json", report.model_dump_json(indent=1) + "\n")
    note = note_of(report)
    if note is not None and not report.is_interrupted:
        place = _place(report.device)
        Run(place.parent).write_text(place.name, note.model_dump_json() + "\n")
    return path


def note_of(report: SelftestReport) -> SelftestNote | None:
    """What later results quote; None where no run was finished."""
    if report.identical is None or report.noise is None:
        return None
    noise, wrong = report.noise, [catch for catch in report.catches if catch.kind == "wrong"]
    return SelftestNote(
        created=report.created,
        workload=report.workload,
        runs=report.identical.runs,
        confirmed=report.identical.confirmed,
        half_width=noise.half_width,
        workers=noise.workers,
        smallest_effect=detectable(noise.worker_sd, workers=noise.workers, level=report.policy.level),
        wrong_caught=sum(catch.is_right for catch in wrong),
        wrong=len(wrong),
        faults=len(report.faults),
    )


def newest(device: DeviceFacts | None) -> SelftestNote | None:
    """The newest self-test of a machine like this; None where there is none, or none that can be read."""
    if device is None:
        return None
    try:
        with _place(device).open("rb") as stream:
            return SelftestNote.model_validate_json(stream.read(MAX_NOTE_BYTES), strict=True)
    except (OSError, ValidationError, EnvironmentFault):
        return None


def _place(device: DeviceFacts) -> Path:
    """One file for each device name and number of threads: what else differs is another machine's noise."""
    key = hashlib.sha256(f"{device.name}\n{device.count_threads}".encode()).hexdigest()[:16]
    return cache_folder() / "selftest" / f"{key}.json"
