"""A profile in its run's folder: `profile.json` for programs, `report.md` for people."""

from __future__ import annotations

from pathlib import Path

import pydantic_core
from pydantic import ValidationError

from e2e.errors import StoredRunError
from e2e.profile_story import tell
from e2e.reports.md import written
from e2e.schema.profile import SCHEMA, ProfileReport
from e2e.store import PROFILE, Run, read_limited

MAX_BYTES = 64 * 2**20
"""Far beyond what a profile writes; a stored one comes from elsewhere and must not exhaust memory."""


def keep(report: ProfileReport, run: Run) -> None:
    """Write it into the run's folder.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    run.write_text("report.md", written(tell(report)))
    run.write_text(PROFILE, report.model_dump_json(indent=1) + "\n")


def load(folder: Path) -> ProfileReport:
    """The profile in a run's folder.

    Raises:
        StoredRunError: damaged, or of another schema version.
    """
    file = folder / PROFILE
    text = read_limited(file, MAX_BYTES)
    try:
        raw = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise StoredRunError(f"{file} is not whole, strict JSON: {error}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA:
        raise StoredRunError(f"{file} has schema {version!r}; this e2e reads {SCHEMA!r} only")
    try:
        return ProfileReport.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise StoredRunError(f"{file} is not a valid profile: {place}: {first['msg']}") from error
