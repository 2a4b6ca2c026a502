"""TensorBoard on a run's folder, as a person sees it: a real server, a real Chromium, and the trace of a real GPU.

The profiler plugin loads Google's chart library from the internet; here a stub answers for it, so that the plugin's own
tables and views can be seen without. `E2E_SCREENSHOTS=FOLDER` keeps pictures.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import viewer
from e2e.profile import timeline
from e2e.schema.result import Result
from e2e.store import Run
from tests import results
from tests.unit.test_timeline import REAL

pytestmark = [pytest.mark.browser, pytest.mark.slow]
BASELINE, CANDIDATE = "baseline:eager+F.rms_norm", "candidate:eager"
RUNS = ("baseline.eager.F.rms_norm", "candidate.eager")
VIEW = 1
"""Place of the list of views."""
STUB = """
(() => {
  const nothing = new Proxy(function () {}, {
    get: (_, name) => name === Symbol.toPrimitive ? () => '' : name === 'then' ? undefined : nothing,
    apply: () => nothing, construct: () => nothing,
  });
  window.google = {charts: {load: () => {}, setOnLoadCallback: f => setTimeout(f, 0)}, visualization: nothing};
})();
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the GPU trace as its baseline's, and one in which a kernel is faster as its candidate's."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    result: Result = results.result()
    Run(folder).finish(result)
    for arm in (BASELINE, CANDIDATE):
        with gzip.open(REAL) as file:
            content = json.load(file)
        for event in content["traceEvents"]:
            if arm == CANDIDATE and event.get("cat") == "kernel" and "layer_norm_kernel" in event["name"]:
                event["dur"] /= 2
        raw = folder / "raw.json"
        raw.write_text(json.dumps(content))
        timeline.store(raw, folder / "traces", arm=arm, steps=4)
    return folder


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    """Of the server that `e2e trace` starts."""
    made = viewer.prepare(run, None)
    found = re.search(r"http://\S+?(?=/#)", made.text)
    assert found is not None
    with subprocess.Popen(made.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(f"{found.group()}/data/plugin/pytorch_profiler/runs", '"loading": false')
            yield found.group()
        finally:
            process.terminate()


def wait_for(url: str, words: str) -> None:
    """Until the server answers, and has read the traces."""
    end = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if words in reply.read().decode():
                    return
        except OSError:
            pass
        assert time.monotonic() < end, f"{url} never had {words!r}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1500, "height": 900})
    opened.route(
        re.compile(r"^https?://(?!127\.0\.0\.1)"),
        lambda route: (
            route.fulfill(content_type="text/javascript", body=STUB)
            if "charts/loader.js" in route.request.url
            else route.abort()
        ),
    )
    yield opened
    opened.close()


def keep(page: Any, name: str) -> None:
    if folder := os.environ.get("E2E_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def profiler(page: Any, address: str) -> Any:
    """The profiler plugin's own frame, past its waiting."""
    page.goto(f"{address}/#pytorch_profiler")
    frame = page.frame_locator("iframe").first
    frame.get_by_text(re.compile("^normal$", re.IGNORECASE)).first.wait_for(timeout=60_000)
    return frame


def choose(frame: Any, place: int, name: str) -> None:
    """An entry of one of the plugin's drop-down lists, which become ready one after the other."""
    frame.locator(".MuiSelect-root").nth(place).click()
    frame.get_by_role("option", name=name, exact=True).click()


def test_the_profiler_lists_one_run_for_each_arm(address: str) -> None:
    with urllib.request.urlopen(f"{address}/data/plugin/pytorch_profiler/runs") as reply:
        assert set(RUNS) == set(json.load(reply)["runs"])


def test_the_operator_view_shows_device_times(page: Any, address: str) -> None:
    frame = profiler(page, address)
    choose(frame, VIEW, "Operator")
    row = frame.locator("tr").filter(has_text="aten::addmm").first
    row.wait_for(timeout=60_000)
    calls, own_us, total_us = map(int, row.inner_text().split("\t")[1:4])
    assert (calls, own_us, total_us) == (4, 100, 100), "0 is what the plugin shows of launches that it does not know"
    row.scroll_into_view_if_needed()
    keep(page, "tensorboard-operator")


def test_the_diff_view_shows_what_the_device_did_in_both_arms(page: Any, address: str) -> None:
    frame = profiler(page, address)
    frame.get_by_text(re.compile("^diff$", re.IGNORECASE)).first.click()
    for place, name in enumerate([RUNS[0], "worker", "1", RUNS[1], "worker", "1"]):
        choose(frame, place, name)
    frame.get_by_text("Operator View").wait_for(timeout=60_000)
    frame.locator(".ant-select-selector").first.click()
    frame.locator(".ant-select-item-option").filter(has_text=re.compile("^Device Duration")).first.click()
    frame.locator(".ant-select-selection-item-remove").first.click()
    frame.get_by_text("Operator View").click()
    frame.locator(".ant-select-dropdown").wait_for(state="hidden")
    row = frame.locator("tr").filter(has_text="aten::native_layer_norm").first
    head = [cell.strip() for cell in frame.locator("thead").first.inner_text().split("\t")]
    found = dict(zip(head, row.inner_text().split("\t"), strict=False))
    before, after = (float(found[f"{arm} Device Duration (us)"]) for arm in ("Baseline", "Exp"))
    assert before > 0
    assert after == pytest.approx(before / 2, rel=0.01), "the candidate's kernel was made twice as fast"
    row.scroll_into_view_if_needed()
    keep(page, "tensorboard-diff")


def test_scalars_and_the_verdict_are_there(page: Any, address: str) -> None:
    with urllib.request.urlopen(f"{address}/data/plugin/scalars/tags") as reply:
        tags = json.load(reply)
    assert "step time, ms" in tags["candidate.eager"]
    assert "peak allocated, MiB" in tags["baseline.eager.F.rms_norm"]
    page.goto(f"{address}/#text")
    page.get_by_text("matched by PyTorch").first.wait_for(timeout=60_000)
