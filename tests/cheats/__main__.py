"""`python -m tests.cheats`: every cheat and every honest kernel through e2e; 0 only if each came out as it must."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from tests.cheats.fixtures import Fixture, Seen, fixtures
from tests.cheats.running import Range

GOOD = ("caught", "fair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cheats", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", metavar="NAME", help="a row, all rows of a letter, or files whose name contains this")
    parser.add_argument("--ci", action="store_true", help="the part that CI has time for")
    asked = parser.parse_args(arguments)
    chosen = [item for item in fixtures() if item.expected.device == asked.device and _is_chosen(item, asked)]
    if not chosen:
        parser.error(
            f"no fixture for {asked.device} is called {asked.only!r}; they lie in tests/cheats and tests/honest"
        )
    with tempfile.TemporaryDirectory(prefix="e2e-cheats-cache-") as cache:
        usual = os.environ.get("E2E_CACHE_DIR")
        os.environ["E2E_CACHE_DIR"] = cache
        try:
            counts = Counter(_run_all(chosen, asked.device))
        finally:
            os.environ.pop("E2E_CACHE_DIR")
            os.environ.update({} if usual is None else {"E2E_CACHE_DIR": usual})
    cheats = sum(not item.is_honest for item in chosen)
    print(
        f"\n{counts['caught']} of {cheats} cheats caught, {counts['missed']} missed, {counts['confirmed']} confirmed; "
        f"{counts['falsely accused']} of {len(chosen) - cheats} honest kernels falsely accused"
    )
    return 0 if set(counts) <= set(GOOD) else 1


def _is_chosen(fixture: Fixture, asked: argparse.Namespace) -> bool:
    if asked.ci and not fixture.expected.ci:
        return False
    row = fixture.expected.row
    return asked.only is None or asked.only in (row, row[0]) or (len(asked.only) > 1 and asked.only in fixture.name)


def _run_all(chosen: list[Fixture], device: str) -> list[str]:
    results = []
    with Range(device) as place:
        for fixture in chosen:
            seen = place.run(fixture)
            result = fixture.result(seen)
            results.append(result)
            _show(fixture, seen, result)
    return results


def _show(fixture: Fixture, seen: Seen, result: str) -> None:
    """One row of the table."""
    outcome = seen.outcome.value if seen.outcome else "passed"
    code = seen.codes[0].value if seen.codes else "-"
    row = f"{fixture.expected.row:4} {fixture.name:34} {result:15} {outcome:14} {code:24} {seen.seconds:5.1f} s"
    print(row, flush=True)
    if result not in GOOD:
        print(f"     {seen.said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
