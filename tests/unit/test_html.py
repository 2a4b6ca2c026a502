"""The page is well-formed XML too, so a parser that forgives nothing reads it here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from e2e import registry
from e2e.schema.evidence import LossPath, TrainingCheck
from e2e.schema.result import CellResult, Region, Regions, Result
from e2e.schema.verdict import Estimate, Reason
from e2e.schema.words import Outcome, ReasonCode
from e2e.store import load
from tests import results

RUNS = sorted((Path(__file__).parents[2] / "results").glob("h200-*/result.json"))
HOSTILE = "\x1b[2J</style><script src='http://a.b/c'>x</script>\u202e & \"q\" \ud800"
QUIET = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "details", "summary"),
    *("h1", "h2", "p", "b", "small", "span", "ul", "li", "dl", "div", "dt", "dd", "pre", "code", "figure"),
    *("figcaption", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "text", "line", "rect", "circle"),
}
"""Elements that neither ask for anything nor run anything."""
_LADDER = "From the op alone to the step"


def page(result: Result) -> ElementTree.Element:
    text = str(registry.load("reports", "html").render(result))
    start, _, rest = text.partition("\n")
    assert "<!DOCTYPE html>" == start
    return ElementTree.fromstring(rest)


def words(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def sections(whole: ElementTree.Element) -> dict[str, ElementTree.Element]:
    found = {}
    for element in whole.iter():
        title = element.find("h2") if element.tag == "section" else element.find("summary")
        if title is not None:
            found[words(title)] = element
    return found


def sweep(**changes: object) -> Result:
    cells = [
        CellResult(cell=results.cell(batch=batch, sequence=sequence), evidence=results.evidence(), verdict=told)
        for batch, sequence, told in (
            (1, 512, results.verdict(outcome=Outcome.CONFIRMED)),
            (1, 2048, results.verdict()),
            (8, 512, results.verdict()),
        )
    ]
    told = [
        Region(
            batch=cell.cell.batch, sequence=cell.cell.sequence, rows=1, outcome=None, speedup=None, standing=standing
        )
        for cell, standing in zip(cells, ("wins", "neither", "loses"), strict=True)
    ]
    return results.result(cells, regions=Regions(cells=told, rule=None, limits=None), **changes)


def whole(result: Result) -> set[str]:
    return {element.tag for element in page(result).iter()}


@pytest.mark.parametrize("run", [results.GOLDEN, *(file.parent for file in RUNS)], ids=lambda run: run.name)
def test_a_page_asks_for_nothing_and_runs_nothing(run: Path) -> None:
    for element in page(load(run)).iter():
        assert element.tag in QUIET
        assert not {name for name in element.attrib if name in ("src", "href") or name.startswith("on")}
        assert "url(" not in (element.text or "")
        assert "@import" not in (element.text or "")


def test_browsers_are_told_to_refuse_what_the_page_does_not_need() -> None:
    policies = [meta.get("content", "") for meta in page(results.result()).iter("meta") if meta.get("http-equiv")]
    assert ["default-src 'none'; style-src 'unsafe-inline'"] == policies


def test_the_verdict_its_reasons_and_the_three_sentences_come_first() -> None:
    header = page(results.result()).find("body/header")
    assert header is not None
    said = words(header)
    assert "REFUTED matched by PyTorch" in said
    assert "Tested: rms_norm by kernels/rmsnorm.cu makes" in said
    assert "1.000x \u00b1 0.002 [matched_by_pytorch]" in said.replace("+-", "\u00b1")
    assert "RANDOM WEIGHTS" in said
    assert ["decision", "worth", "scope"] == [words(term) for term in header.iter("dt")]
    assert "tone-bad" == header.get("class")


def test_every_part_that_people_ask_for_has_its_section() -> None:
    found = sections(page(results.result()))
    for title in (
        "Speed",
        _LADDER,
        "Block by block",
        "Every block",
        "Evidence",
        "What to do next",
        "Every way tried (pilot runs)",
        "Memory, of either arm alone in a process",
        "Operators and device kernels, per step",
        "Errors of the op, input by input",
        "Wrong kernels made on purpose",
        "Sites, of one untimed step",
        "Reproduce",
        "Environment",
        "Policy",
        "Workload",
    ):
        assert title in found
    assert "e2e validate workloads/llama_infer.yaml --kernel kernels/rmsnorm.cu --seed 7" in words(found["Reproduce"])
    rows = [[words(cell) for cell in row if cell.get("class") != "strip"] for row in found[_LADDER].iter("tr")]
    assert ["its author's claim", "12.9x", "eager"] in rows
    assert ["the op alone", "10.4x", "the model's own module"] in rows
    assert ["the whole step", "1.16x", "eager as shipped"] in rows


def test_where_a_win_went_is_a_waterfall_that_ends_at_the_step() -> None:
    found = sections(page(results.result()))["Where it went, against eager as shipped"]
    rows = [[words(cell) for cell in row if cell.get("class") != "strip"] for row in found.iter("tr")]
    assert ["the op, alone and warm, 33 times", "-12,111.0 us", ""] == rows[1]
    assert ["the same work beside the op takes longer or shorter", "+400.0 us", "nvjet_tst_128x256"] == rows[3]
    assert ["unexplained", "+160.0 us", ""] == rows[-2]
    assert ["the step", "-11,330.0 us", ""] == rows[-1]
    bars = [(float(str(bar.get("x"))[:-1]), float(str(bar.get("width"))[:-1])) for bar in found.iter("rect")]
    *parts, (step, _) = bars
    ends = [(left, left + width) for left, width in parts]
    for before, after in pairwise(ends):
        assert any(one == pytest.approx(other, abs=0.5) for one in before for other in after), "each begins there"
    assert any(end == pytest.approx(step, abs=0.1) for end in ends[-1])
    assert "interval of the step's change: -11," in words(found)


def test_every_drawing_says_in_words_what_it_shows_and_stands_beside_its_numbers() -> None:
    for element in page(sweep()).iter():
        for svg in element.findall("svg"):
            title = svg.find("title")
            assert title is not None and title.text
            assert title.text == svg.get("aria-label")
            assert "img" == svg.get("role")
    for title, section in sections(page(results.result())).items():
        if any(True for _ in section.iter("svg")):
            assert list(section.iter("tbody")), title


def test_an_interval_is_drawn_where_it_lies() -> None:
    speed = sections(page(results.result()))["Speed"]
    places = {}
    for row in speed.iter("tr"):
        circles = [float(str(circle.get("cx")).rstrip("%")) for circle in row.iter("circle")]
        if circles:
            places[words(row[0])] = circles[0]
    best, shipped = places["step: best PyTorch, eager with F.rms_norm"], places["step: eager as shipped"]
    assert best < places["step: any kernel at most"] < shipped
    assert any("\u25b6" in words(row) and "10.4x" in words(row) for row in speed.iter("tr")), "beyond the axis"


def arrows(speedup: Estimate, *, best: Estimate | None = None) -> dict[str, int]:
    """Ends of drawings that lie beyond the axis, by row, with eager as shipped at that speed-up."""
    told = results.verdict()
    first, second = told.latency.against
    rows = [
        first.model_copy(update={"speedup": best or first.speedup}),
        second.model_copy(update={"speedup": speedup}),
    ]
    told = told.model_copy(update={"latency": told.latency.model_copy(update={"against": rows})})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(isolated=None), verdict=told)
    speed = sections(page(results.result([cell])))["Speed"]
    found = {}
    for row in speed.iter("tr"):
        number = sum(text.text in ("\u25b6", "\u25c0") for text in row.iter("text"))
        found.update({words(row[0]): number} if number else {})
    return found


def test_what_lies_far_beyond_the_deciding_interval_is_an_arrow() -> None:
    assert {} == arrows(results.estimate(1.159, 0.003))
    assert {"step: eager as shipped": 1} == arrows(results.estimate(11.0, 0.1))
    assert {"step: eager as shipped": 1} == arrows(results.estimate(0.1, 0.01))
    wide = arrows(results.estimate(1.9, 0.3), best=results.estimate(1.8, 0.1))
    assert "step: best PyTorch, eager with F.rms_norm" not in wide, "what decides is always drawn whole"


def test_a_sweep_has_a_heat_map_and_folds_the_cells_that_do_not_decide() -> None:
    found = page(sweep())
    tiles = [words(cell) for cell in found.iter("td") if "tile" in cell.get("class", "")]
    assert ["1.00x wins", "1.00x neither", "1.00x loses"] == tiles
    folded = [fold for fold in found.iter("details") if fold.get("class") == "cell"]
    titles = [words(summary) for fold in folded for summary in fold.findall("summary")]
    assert ["prefill 1 x 2048 bfloat16", "prefill 8 x 512 bfloat16"] == titles


def test_the_numbers_of_a_long_series_are_cut_with_a_word() -> None:
    many = [
        segment.model_copy(update={"worker": worker})
        for segment in results.segments()
        if segment.phase == "verdict" and segment.worker == 0
        for worker in range(30)
    ]
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=many), verdict=results.verdict())
    assert "and 40 more in samples.csv" in words(sections(page(results.result([cell])))["Every block"])


def test_names_from_files_are_text() -> None:
    kernel = results.kernel().model_copy(update={"spec": HOSTILE, "path": HOSTILE})
    sites = [site.model_copy(update={"fqn": HOSTILE, "reason": HOSTILE}) for site in results.engagement().sites]
    arms = [record.model_copy(update={"reason": HOSTILE}) for record in results.arms()]
    checks = [check.model_copy(update={"site": HOSTILE, "shape": HOSTILE}) for check in results.op_checks()]
    seen = results.evidence(
        op_checks=checks, arms=arms, engagement=results.engagement().model_copy(update={"sites": sites})
    )
    cell = CellResult(cell=results.cell(), evidence=seen, verdict=results.verdict())
    told = results.result(
        [cell],
        kernels=[kernel],
        reasons=[Reason(code=ReasonCode.CANDIDATE_RAISED, message=HOSTILE)],
        environment={HOSTILE: {HOSTILE: [HOSTILE]}, "packages": {HOSTILE: HOSTILE}},
        command=["e2e", HOSTILE],
        run_id=HOSTILE,
        overrides={HOSTILE: HOSTILE},
    )
    assert whole(told) <= QUIET
    text = str(registry.load("reports", "html").render(told))
    assert all(char.isprintable() or char in "\n\u00a0" for char in text)
    assert text.count("<style>") == 1
    text.encode()  # no lone surrogate is left


# ---- Nothing in a result is certain to be there


def emptied(value: Any) -> Iterator[Any]:
    """The same JSON with one part absent, for every part; of a list the first item stands for all."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {**value, key: None}
            yield from ({**value, key: other} for other in emptied(inner))
    elif isinstance(value, list) and value:
        yield []
        yield from ([other, *value[1:]] for other in emptied(value[0]))


def test_every_report_bears_every_part_that_may_be_absent() -> None:
    few = [segment for segment in results.segments() if segment.block == 0]
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=few), verdict=results.verdict())
    rendered = 0
    for raw in emptied(results.result([cell]).model_dump(mode="json")):
        try:
            result = Result.model_validate(raw)
        except ValidationError:
            continue  # it has to be there
        for style in ("text", "html", "junit", "github"):
            assert registry.load("reports", style).render(result)
        rendered += 1
    assert rendered > 150


# ---- What only the page shows


def test_drift_by_depth_has_a_row_for_every_layer() -> None:
    found = sections(page(results.result()))["Drift by depth"]
    rows = [[words(cell) for cell in row if cell.get("class") != "strip"] for row in found.iter("tr")]
    assert ["model.layers.0", "0.001", "0.001", "1.02x"] == rows[1]
    assert 1 + 16 == len(rows)


def test_memory_over_the_step_is_a_curve_for_each_arm_and_its_peak_in_a_table() -> None:
    found = sections(page(results.result()))["Memory over the step"]
    rows = [[words(cell) for cell in row] for row in found.iter("tr")]
    assert ["with the kernel", "147 MiB", "99 %", "147 MiB"] == rows[1]
    assert "eager with F.rms_norm" == rows[2][0]
    assert 2 * 80 == len(list(found.iter("circle")))


def test_a_loss_path_is_drawn_step_by_step_with_its_numbers() -> None:
    path = LossPath(
        optimizer="adamw",
        steps=3,
        loss_first=4.0,
        loss_last=3.0,
        losses=[4.0, 3.5, 3.0],
        losses_candidate=[4.0, 3.25, None],
        envelope=0.1,
        allowed=0.2,
        apart=None,
        bias_allowed=0.1,
    )
    check = TrainingCheck(
        parameters=1, with_gradient_baseline=1, with_gradient_candidate=1, missing=[], paths=[path], status="wrong"
    )
    cell = CellResult(cell=results.cell(), evidence=results.evidence(training=check), verdict=results.verdict())
    found = sections(page(results.result([cell])))["Loss path, adamw"]
    rows = [[words(item) for item in row] for row in found.iter("tr")]
    assert [["0", "4", "4", "0"], ["1", "3.5", "3.25", "0.25"], ["2", "3", "-", "-"]] == rows[1:]
    assert 3 + 2 == len(list(found.iter("circle")))
