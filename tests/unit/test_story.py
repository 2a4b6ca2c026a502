from __future__ import annotations

import re

import pytest

from e2e import registry
from e2e.schema.evidence import ModelFacts, OpCheck, Origin, SiteRecord
from e2e.schema.kernel import Kernel
from e2e.schema.policy import Budgets, Policy
from e2e.schema.result import Attempts, CellResult, Region, Regions, Result, Resumption, SetUp, Standing
from e2e.schema.verdict import Estimate, Reason
from e2e.schema.words import Label, Outcome, ReasonCode, Stage, Trust
from e2e.store import load
from e2e.story import Story, tell
from e2e.wording import arm, clean, count, duration, estimate, percent, ratio, size, span
from tests import fakes, results

FORMATS = registry.names("reports")


def render(result: Result, style: str = "text") -> str:
    return str(registry.load("reports", style).render(result))


def facts(story: Story) -> dict[str, str]:
    return {label: text for section in story.sections for label, text in section.facts}


def rows(story: Story, title: str) -> dict[str, tuple[str, ...]]:
    table = next(section.table for section in story.sections if section.title.startswith(title))
    assert table is not None
    return {row[0]: row[1:] for row in table.rows}


def one_cell(**changes: object) -> Result:
    cell = CellResult(cell=results.cell(), evidence=results.evidence(**changes), verdict=results.verdict())
    return results.result([cell])


def test_the_headline_is_the_outcome_and_why() -> None:
    story = tell(results.result())
    assert story.outcome == "REFUTED: matched by PyTorch"
    assert story.subject == "llama-infer, prefill 8 x 2048 bfloat16, NVIDIA H200"
    where = "prefill 8 x 2048 bfloat16 of llama-infer"
    opponent = "the strongest PyTorch path"
    assert story.sentence == f"rms_norm by kernels/rmsnorm.cu makes {where} at least 1 % faster than {opponent}."


def test_the_story_table_tells_isolated_in_context_control_and_ceiling() -> None:
    speed = rows(tell(results.result()), "Speed")
    assert speed["op alone: own module"] == ("406 us", "39.0 us", "10.4x", "")
    assert speed["op alone: F.rms_norm"] == ("40.5 us", "39.0 us", "1.04x", "")
    assert speed["step: best PyTorch, eager with F.rms_norm"] == (
        "71.28 ms",
        "71.27 ms",
        "1.000x +- 0.002 (0.998 to 1.002)",
        "REFUTED *",
    )
    assert speed["step: eager as shipped"] == (
        "82.60 ms",
        "71.27 ms",
        "1.159x +- 0.003 (1.156 to 1.162)",
        "CONFIRMED",
    )
    assert speed["step: identical code"] == ("", "", "1.000x +- 0.001 (0.999 to 1.001)", "control")
    assert speed["step: any kernel at most"] == ("", "", "1.026x +- 0.002 (1.024 to 1.028)", "ceiling")


def test_evidence_is_in_plain_words() -> None:
    said = facts(tell(results.result()))
    assert "error at most 1.06x the baseline's own (allowed 2x); 2 of 2 wrong kernels" in said["op drift"]
    assert "KL 2.1e-05 (baseline 2e-05)" in said["model drift"]
    assert "same top token 99.67 % (baseline 99.69 %)" in said["model drift"]
    assert said["ran"].startswith("at 33 of 33 sites, 33 calls per step")
    assert "5.23 GiB with the kernel, 5.23 GiB without (the same)" in said["memory"]
    assert said["resolved"].startswith("half-width 0.21 % for a margin of 1 %: 40 mirrored blocks in 5 workers")
    assert said["verified"] == "32 of 640 timed steps replayed in another process: no mismatch"
    warm = "first step 410 ms (PyTorch 410 ms), warm step 71.3 ms (PyTorch 71.3 ms)"
    assert said["set-up"] == f"build 3.10 s, load 21.0 ms, {warm}; inputs on the device beforehand"
    assert "its author says 12.9x against eager at 16384 x 2048; here 10.4x alone" in said["claim"]
    assert said["not tested"].startswith("other shapes, dtypes, devices and versions; training")
    assert said["cannot see"] == "power draw; page cache state"


def test_of_a_training_step_it_is_told_how_its_arms_share_the_state() -> None:
    evidence = results.evidence().model_copy(update={"training": fakes.training()})
    cell = CellResult(cell=results.cell(), evidence=evidence, verdict=results.verdict())
    timed = [arm for arm in evidence.arms if arm.step_s is not None]
    said = facts(tell(results.result([cell])))["state"]
    assert said == f"{len(timed)} arms train one state by turns, every segment from one snapshot"
    assert "state" not in facts(tell(results.result()))


def test_a_first_step_that_a_cache_shortened_is_not_shown_as_cold() -> None:
    costs = SetUp(warm_step_s=0.01, baseline_first_step_s=0.4, baseline_warm_step_s=0.01)
    said = facts(tell(results.result(set_up=costs)))["set-up"]
    assert said.startswith("first step not known: compiled before (PyTorch 400 ms)")


def test_every_source_of_memory_figures_is_in_the_details() -> None:
    figures = rows(tell(results.result()), "Memory")
    assert figures["taken from the device"] == ("2.91 GiB", "2.91 GiB", "the same")
    assert not any(section.title.startswith("Memory") for section in tell(results.incorrect()).sections)


def test_an_objective_of_memory_is_what_the_sentence_and_the_memory_line_say() -> None:
    policy = Policy(name="lean", objective="memory")
    less = results.memory_use().model_copy(update={"peak_allocated_bytes": 5_000_000_000})
    memory = results.verdict().memory.model_copy(update={"outcome": Outcome.CONFIRMED, "candidate": less})
    cell = CellResult(cell=results.cell(), evidence=results.evidence(), verdict=results.verdict(memory=memory))
    story = tell(results.result([cell], policy=policy))
    assert story.sentence is not None
    assert (
        "need at least 1 % less memory than the strongest PyTorch path, and no more than 1 % slower" in story.sentence
    )
    assert not any("*" in row[-1] for row in rows(story, "Speed").values()), "no speed decides"
    assert facts(story)["memory"].startswith("CONFIRMED: 4.66 GiB with the kernel, 5.23 GiB without (-591 MiB)")


def test_random_weights_and_overrides_are_on_the_first_screen() -> None:
    story = tell(results.result())
    assert any(mark.startswith("RANDOM WEIGHTS") for mark in story.marks)
    assert "Overrides of the workload file: model.weights=random" in story.marks
    assert tell(results.result(random_weights=False, overrides={}, cells=[])).marks == ()


def test_what_the_command_line_changed_of_the_policy_is_on_the_first_screen() -> None:
    own = {"name": "standard", "looks": [5, 8, 12], "level": 0.9779, "budgets.cell_s": 900.0}
    rules = Policy(name="strict", looks=[23], level=0.95, budgets=Budgets(cell_s=385.0))
    marks = tell(results.result(policy=rules, policy_overrides=own)).marks
    assert (
        "Chosen on the command line: policy strict instead of standard, looks [23] instead of [5, 8, 12], "
        "confidence level 0.95 instead of 0.9779, budget 385 s instead of 900 s"
    ) in marks


@pytest.mark.parametrize(
    ("names", "named"), [(["", "model.norm"], "the model"), (["model.norm", "model.layers.0"], "2 modules")]
)
def test_torch_compile_that_was_taken_off_is_on_the_first_screen(names: list[str], named: str) -> None:
    facts = ModelFacts(model_class="LlamaForCausalLM", parameters=10, dtypes={}, data="text", uncompiled=names)
    mark = f"TORCH.COMPILE TAKEN OFF {named}: arms are compiled in modes of their own."
    assert mark in tell(one_cell(model=facts)).marks


def test_a_chosen_seed_is_on_the_first_screen_and_a_fresh_one_is_not() -> None:
    origin = Origin(workload_sha256="0" * 64, weights="random", seed_chosen=True)
    assert "Chosen on the command line: seed 7" in tell(one_cell(origin=origin)).marks
    fresh = origin.model_copy(update={"seed_chosen": False})
    assert not any("command line" in mark for mark in tell(one_cell(origin=fresh)).marks)


def test_a_repeat_and_a_further_attempt_are_on_the_first_screen() -> None:
    marks = tell(results.result(repeats="first-run", attempts=Attempts(number=7, confirmed=2))).marks
    assert "Repeats first-run in a size planned beforehand; the two are never merged." in marks
    assert "Attempt 7 of rms_norm on llama-infer; of these 2 CONFIRMED." in marks
    assert not any("Attempt" in mark for mark in tell(results.result(attempts=Attempts(number=1, confirmed=1))).marks)


def test_that_a_run_was_stopped_and_went_on_is_on_the_first_screen() -> None:
    at = {"at": "2026-12-01T10:00:00+00:00", "cell": 0}
    first = Resumption.model_validate({**at, "stage": None, "workers_finished": 0})
    second = Resumption.model_validate({**at, "stage": Stage.SCREEN, "workers_finished": 3})
    marks = tell(results.result().model_copy(update={"resumed": [first, second]})).marks
    thrown = "complete; what was half done was thrown away."
    assert f"Resumed 2026-12-01T10:00:00+00:00, with nothing of the cell {thrown}" in marks
    assert f"Resumed 2026-12-01T10:00:00+00:00, with stage screen and 3 verdict workers {thrown}" in marks


@pytest.mark.parametrize("trust", list(Trust))
def test_what_the_kernel_could_reach_is_among_the_evidence(trust: Trust) -> None:
    assert facts(tell(one_cell(trust=trust)))["trust"].startswith(f"{trust}: the kernel")
    assert "trust" not in facts(tell(one_cell())), "a run that did not record it"


def test_every_way_tried_is_shown_also_the_void_and_the_losing() -> None:
    tried = rows(tell(results.result()), "Every way tried")
    assert tried["PyTorch: eager with F.rms_norm"] == ("71.28 ms", "410 ms", "strongest")
    assert tried["PyTorch: compile reduce-overhead"] == ("-", "-", "void: ran eagerly while called compiled")
    assert tried["candidate: compile"] == ("75.01 ms", "31.4 s", "")


def test_device_kernels_are_new_gone_or_both() -> None:
    kernels = rows(tell(results.result()), "Operators")
    assert kernels["vectorized_layer_norm_kernel<bf16>"] == ("33", "1.34 ms", "-", "gone")
    assert kernels["rms_norm_kernel<bf16>"] == ("33", "-", "1.29 ms", "new")
    assert kernels["nvjet_tst_128x256"][-1] == ""


def test_a_wrong_kernel_has_no_speed_claim() -> None:
    story = tell(results.incorrect())
    assert story.outcome == "INCORRECT"
    assert not any(section.title.startswith("Speed") for section in story.sections)
    assert "(kernels/rmsnorm.cu:12, site model.layers.0.input_layernorm)" in story.reasons[0]
    assert "error 0.31, baseline 0.0016, allowed 0.0032" in facts(story)["wrong"]
    assert facts(story)["memory"] == "not measured"
    assert any("Ended after the stage `check`" in mark for mark in story.marks)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, "USAGE ERROR"),
        (6, "CANNOT RUN HERE"),
        (70, "FAULT IN E2E"),
        (130, "INTERRUPTED"),
    ],
)
@pytest.mark.parametrize("style", FORMATS)
def test_a_run_that_ended_early_renders_with_its_reason(code: int, words: str, style: str) -> None:
    text = render(results.ended_early(code, "no such device here"), style)
    assert "no such device here" in text
    assert words in text or style == "json"


def test_a_result_with_next_to_nothing_in_it_renders() -> None:
    bare = results.ended_early(130, "interrupted").model_copy(
        update={"workload": None, "policy": None, "kernels": [], "environment": {}, "stage": None}
    )
    for style in FORMATS:
        assert render(bare, style)
    assert tell(bare).sentence is None


@pytest.mark.parametrize("stage", list(Stage))
def test_a_stage_that_passed_says_so(stage: Stage) -> None:
    told = results.verdict(outcome=None, label=Label.PROMISING if stage is Stage.SCREEN else None, reasons=[])
    seen = results.evidence(stage_asked=stage, stage_finished=stage)
    story = tell(results.result([CellResult(cell=results.cell(), evidence=seen, verdict=told)]))
    assert story.outcome.startswith(f"{stage.upper()} PASSED")
    assert story.tone == "open"
    assert ("Speed, provisional" in [section.title for section in story.sections]) is (stage is Stage.SCREEN)
    assert story.sentence is not None
    assert story.sentence.endswith("builds.") is (stage is Stage.BUILD)


def two_cells(*, regions: Regions | None = None, **changes: object) -> Result:
    good = results.verdict(outcome=Outcome.CONFIRMED, label=None, reasons=[])
    good = good.model_copy(update={"latency": good.latency.model_copy(update={"blocks": 41})})
    cells = [
        CellResult(cell=results.cell(sequence=512), evidence=results.evidence(), verdict=good),
        CellResult(cell=results.cell(), evidence=results.evidence(), verdict=results.verdict()),
    ]
    told = results.verdict()
    whole = {"outcome": told.outcome, "label": told.label, "reasons": told.reasons, "latency": told.latency}
    return results.result(cells, regions=regions, **{**whole, **changes})


def regions(*standings: Standing, rule: str | None = None) -> Regions:
    rows = [
        Region(batch=8, sequence=512, rows=4096, outcome=None, speedup=None, standing=standing)
        for standing in standings
    ]
    limits = "between rows 4096 and 16384 nothing was measured" if rule else None
    return Regions(cells=rows, rule=rule, limits=limits)


def test_a_sweep_shows_all_cells_and_the_deciding_one_first() -> None:
    story = tell(two_cells())
    assert {"prefill 8 x 512 bfloat16", "prefill 8 x 2048 bfloat16"} == set(rows(story, "Cells"))
    titles = [section.title for section in story.sections]
    assert titles[1] == "prefill 8 x 2048 bfloat16: Speed"
    assert titles.count("What to do next") == 1


def test_the_deciding_cell_comes_first_also_where_its_own_outcome_is_another() -> None:
    story = tell(two_cells(outcome=Outcome.INCONCLUSIVE, label=None))
    assert "prefill 8 x 2048 bfloat16: Speed" == story.sections[1].title


@pytest.mark.parametrize("style", ["text", "md"])
def test_a_sweep_says_where_the_kernel_wins_and_the_rule_that_follows(style: str) -> None:
    result = two_cells(regions=regions("wins", "neither", rule="rows <= 4096"))
    table = rows(tell(result), "Cells")
    assert ("4096", "1.000x +- 0.002 (0.998 to 1.002)", "CONFIRMED", "wins") == table["prefill 8 x 512 bfloat16"]
    assert ("16384", "neither") == (table["prefill 8 x 2048 bfloat16"][0], table["prefill 8 x 2048 bfloat16"][-1])
    text = render(result, style)
    assert "dispatch to the kernel where rows" in text
    assert "nothing was measured" in text


@pytest.mark.parametrize(
    ("said", "table"),
    [
        (("it wins in every cell; beyond them nothing was measured",), regions("wins", "wins")),
        (("no single threshold parts the cells where it wins from the rest",), regions("wins", "unknown")),
        ((), regions("neither", "loses")),
        ((), None),
    ],
)
def test_without_a_rule_a_sweep_says_why(said: tuple[str, ...], table: Regions | None) -> None:
    assert said == tell(two_cells(regions=table)).sections[0].lines


@pytest.mark.parametrize(("wins", "claimed"), [("any", "one or more"), ("all", "each")])
def test_what_a_sweep_tested_is_said_of_all_cells(wins: str, claimed: str) -> None:
    story = tell(two_cells(policy=Policy.model_validate({"name": "standard", "wins": wins})))
    assert story.sentence is not None
    assert f"makes {claimed} of 2 prefill cells of llama-infer at least 1 % faster than" in story.sentence
    assert story.sentence.endswith(", and none more than 1 % slower.")
    assert "llama-infer, 2 prefill cells, NVIDIA H200" == story.subject


def test_sites_that_were_left_out_are_named_with_the_reason() -> None:
    sites = [
        SiteRecord(fqn=f"model.norm{index}", owner="OddNorm", status="incompatible", reason="two weights")
        for index in range(6)
    ]
    seen = results.engagement().model_copy(update={"sites": sites, "coverage": 0.5})
    story = tell(one_cell(engagement=seen))
    said = [text for section in story.sections for label, text in section.facts if label == "left out"]
    assert said[0] == "model.norm0 (OddNorm): incompatible, two weights"
    assert said[-1] == "and 2 more sites"
    assert "coverage 50 %" in facts(story)["ran"]


def test_many_reasons_are_cut_and_counted() -> None:
    reasons = [Reason(code=ReasonCode.OP_ERROR_EXCEEDED, message=f"reason {index}") for index in range(20)]
    story = tell(results.result(reasons=reasons))
    assert story.reasons[0] == "reason 0 [op_error_exceeded]"
    assert story.reasons[-1] == "and 12 more in result.json"


def test_nothing_absent_is_shown_as_zero() -> None:
    check = results.evidence().model_check
    assert check is not None
    blind = check.model_copy(update={"kl_candidate": None, "kl_baseline": None, "top1_candidate": None})
    no_ratio = results.verdict().numerics.model_copy(update={"model_ratio": None, "worst_op_ratio": None})
    cell = CellResult(
        cell=results.cell(),
        evidence=results.evidence(model_check=blind),
        verdict=results.verdict(numerics=no_ratio),
    )
    said = facts(tell(results.result([cell])))
    assert "error against float32: not measured; KL - (baseline -)" in said["model drift"]
    assert "error not measured" in said["op drift"]


HOSTILE = "\x1b[2Jev|l <script>`x`</script>\nname\u202e"


def hostile() -> Result:
    kernel = results.kernel().model_copy(update={"spec": HOSTILE})
    wrong = results.op_checks()[0].model_copy(update={"status": "wrong", "message": HOSTILE, "site": HOSTILE})
    assert isinstance(wrong, OpCheck)
    assert isinstance(kernel, Kernel)
    reasons = [Reason(code=ReasonCode.CANDIDATE_RAISED, message=HOSTILE)]
    arms = [record.model_copy(update={"reason": HOSTILE, "name": HOSTILE}) for record in results.arms()[:1]]
    rest = one_cell(op_checks=[wrong], arms=arms)
    return rest.model_copy(update={"kernels": [kernel], "reasons": reasons})


@pytest.mark.parametrize("style", [style for style in FORMATS if style != "json"])
def test_a_candidates_words_steer_neither_terminal_nor_page(style: str) -> None:
    text = render(hostile(), style)
    assert all(char.isprintable() or char in "\n\u00a0" for char in text)
    assert "\\x1b" in text
    if style == "md":
        assert not re.search(r"(?<!\\)<script", text)


def test_the_text_report_is_plain_and_narrow_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = render(results.result())
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_first_screen_holds_the_whole_story() -> None:
    screen = "\n".join(render(results.result()).splitlines()[:44])
    for words in (
        "REFUTED",
        "tested",
        "identical code",
        "any kernel at most",
        "ran ",
        "memory",
        "not tested",
    ):
        assert words in screen
    assert "What to do next" in screen


def test_colour_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31mREFUTED" in render(results.result())


@pytest.mark.parametrize("style", sorted(results.REPORTS))
def test_the_stored_result_renders_exactly_as_before(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    expected = (results.GOLDEN / results.REPORTS[style]).read_text(encoding="utf-8")
    assert expected == render(load(results.GOLDEN), style)


def test_the_stored_result_is_the_builders() -> None:
    assert load(results.GOLDEN).model_copy(update={"samples_sha256": None}) == results.result()


# ---- Words for numbers


def interval(point: float, half: float) -> Estimate:
    return Estimate(
        point_estimate=point,
        lower_bound=point - half,
        upper_bound=point + half,
        confidence_level=0.95,
        look=5,
    )


def test_durations_choose_their_unit() -> None:
    assert [
        *map(duration, (None, 0.0, 0.07128, 0.001826, 4.06e-4, 1.2e-8, 1.5)),
        duration(120.2, digits=3),
    ] == ["-", "0 s", "71.28 ms", "1.826 ms", "406.0 us", "12.00 ns", "1.500 s", "120 s"]


def test_intervals_show_the_decimals_they_deserve() -> None:
    assert estimate(interval(1.26, 0.06)) == "1.26x +- 0.06 (1.20 to 1.32)"
    assert estimate(interval(1.159, 0.003)) == "1.159x +- 0.003 (1.156 to 1.162)"
    assert estimate(interval(1.0001, 0.0002)) == "1.0001x +- 0.0002 (0.9999 to 1.0003)"
    assert estimate(None) == "-"


def test_other_numbers_read_well() -> None:
    assert [ratio(10.41), ratio(0.976), ratio(None)] == ["10.4x", "0.976x", "-"]
    assert [percent(0.01), percent(0.9967, digits=5), percent(None)] == ["1 %", "99.67 %", "-"]
    assert [*map(size, (5_620_000_000, -1_572_864, 12, None))] == ["5.23 GiB", "-1.50 MiB", "12 bytes", "-"]
    assert [span(90), span(130), span(10_800)] == ["90 s", "2 min 10 s", "3 h 0 min"]
    assert [count(1, "site"), count(0, "site"), count(1000, "call")] == ["1 site", "0 sites", "1,000 calls"]


def test_arms_are_named_in_words() -> None:
    assert arm("baseline:eager") == "eager as shipped"
    assert arm("baseline:eager+F.rms_norm") == "eager with F.rms_norm"
    assert arm("candidate:reduce-overhead") == "compile reduce-overhead"
    assert arm("sham:compile") == "identical code (compile)"
    assert arm("headroom:eager") == "op replaced by nothing (eager)"
    assert arm("mutant") == "mutant"


def test_cleaning_keeps_one_printable_line() -> None:
    assert clean(" a\n b \x1b[2J") == "a b \\x1b[2J"
    assert clean("a" * 50, 7) == "aaaa..."
