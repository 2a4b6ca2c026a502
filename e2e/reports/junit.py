"""JUnit XML, for the test pages of CI systems: a run is a test that passes by the same rule as the exit code."""

from __future__ import annotations

from xml.etree import ElementTree

from e2e.attempts import ops_of
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Outcome
from e2e.story import Story, reason_line, tell
from e2e.wording import LABELS, clean, outcome_word


class JUnitReport:
    """One suite with a test for the run, and in a sweep one for every cell."""

    def render(self, result: Result) -> str:
        """The document."""
        story = tell(result)
        suites = ElementTree.Element("testsuites", name="e2e")
        name = clean(result.workload.name) if result.workload else "e2e"
        suite = ElementTree.SubElement(suites, "testsuite", name=name, timestamp=clean(result.created))
        _properties(suite, result, story)
        cases = [_run(suite, result, story)]
        cases += [_cell(suite, result, cell) for cell in result.cells] if len(result.cells) > 1 else []
        cases[0].set("time", f"{result.seconds:.3f}")
        suite.set("time", f"{result.seconds:.3f}")
        suite.set("tests", str(len(cases)))
        for kind, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(count, str(sum(case.find(kind) is not None for case in cases)))
        ElementTree.indent(suites)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _properties(suite: ElementTree.Element, result: Result, story: Story) -> None:
    found = ElementTree.SubElement(suite, "properties")
    values = [("run", result.run_id), ("headline", story.outcome), ("subject", story.subject)]
    values += [(f"signing.{label}", text) for label, text in story.signing]
    for name, value in values:
        ElementTree.SubElement(found, "property", name=name, value=clean(value, 1000))


def _run(suite: ElementTree.Element, result: Result, story: Story) -> ElementTree.Element:
    case = _case(suite, result, story.sentence or story.subject)
    if result.error is not None:
        _add(case, "error", story.outcome, story.reasons)
    elif result.outcome not in (Outcome.CONFIRMED, None):
        _add(case, "failure", story.outcome, story.reasons)
    return case


def _cell(suite: ElementTree.Element, result: Result, cell: CellResult) -> ElementTree.Element:
    """A cell without a gain fails only with the whole: one gain may be all that a policy asks of a sweep."""
    case = _case(suite, result, cell.cell.title)
    outcome, label = cell.verdict.outcome, cell.verdict.label
    if outcome not in (Outcome.CONFIRMED, None):
        kind = "skipped" if result.outcome is Outcome.CONFIRMED else "failure"
        said = f"{outcome_word(outcome)}{f': {LABELS[label]}' if label else ''}"
        _add(case, kind, said, tuple(map(reason_line, cell.verdict.reasons)))
    return case


def _case(suite: ElementTree.Element, result: Result, name: str) -> ElementTree.Element:
    op = ops_of(result) if result.kernels else "e2e"
    return ElementTree.SubElement(suite, "testcase", classname=clean(op), name=clean(name))


def _add(case: ElementTree.Element, kind: str, message: str, lines: tuple[str, ...]) -> None:
    found = ElementTree.SubElement(case, kind, message=message)
    if kind != "skipped":
        found.set("type", message.partition(":")[0])
    found.text = "\n".join(lines)


PLUGIN = JUnitReport()
