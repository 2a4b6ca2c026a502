"""Flags to calls; prints; exit codes. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from e2e.errors import INTERNAL_FAULT, INTERRUPTED, E2EError, EnvironmentFault, StoredRunError, UsageError
from e2e.kernel_template import Language
from e2e.schema.words import Stage

if TYPE_CHECKING:
    from e2e.protocols import Progress
    from e2e.request import Request
    from e2e.schema.profile import ProfileReport
    from e2e.schema.result import Result

DISTRIBUTION = "e2e-kernel-validation"
MOST_SEED = 2**31 - 1
"""Beyond it, step seeds, which count up from a multiple of the run's, would not fit into 64 bits."""

app = typer.Typer(
    name="e2e",
    help="Says whether a kernel's win survives the real workload.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

new = typer.Typer(help="Write a file to start from.", rich_markup_mode=None, no_args_is_help=False)
app.add_typer(new, name="new")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, result.json, or run id.")]
OverridesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a workload field.")
]
PolicyOption = Annotated[str | None, typer.Option(metavar="FILE", help="Policy file or built-in name.")]
DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to run.")]
SanitizeOption = Annotated[
    bool, typer.Option("--sanitize", help="Also under sanitizers: ASan and UBSan of C++, compute-sanitizer on a GPU.")
]
SeedOption = Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of inputs and schedule.")]
WholeBudget = Annotated[float | None, typer.Option(metavar="SECONDS", min=1.0, help="Time for all of it.")]


class Listed(StrEnum):
    """What `list` can list."""

    OPS = "ops"
    WORKLOADS = "workloads"
    KERNELS = "kernels"
    FORMATS = "formats"
    REASONS = "reasons"


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    import importlib.metadata

    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    _emit(f"e2e {version}\n")
    raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        # Not 0: in CI an empty command must never pass for a passed stage.
        _emit(context.get_help() + "\n")
        raise typer.Exit(UsageError.exit_code)


@app.command()
def validate(
    context: typer.Context,
    workload: Annotated[
        str | None, typer.Argument(metavar="WORKLOAD", help="Workload file, or a shipped name.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="SPEC", help="The candidate: path or module:callable. Several stand together."),
    ] = None,
    until: Annotated[Stage, typer.Option(help="How far to go.")] = Stage.VERDICT,
    op: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.py:CLASS", help="Op to replace, if the kernel names none.")
    ] = None,
    overrides: OverridesOption = None,
    policy: PolicyOption = None,
    device: DeviceOption = "auto",
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", min=1.0, help="Time for each cell.")] = None,
    seed: SeedOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Result on stdout, all else on stderr.")] = False,
    events: Annotated[str | None, typer.Option(metavar="FILE", help="Progress as JSON lines.")] = None,
    trace: Annotated[bool, typer.Option("--trace/--no-trace", help="Profile each arm once, untimed.")] = True,
    sanitize: SanitizeOption = False,
    repeat: Annotated[
        str | None, typer.Option(metavar="RUN", help="A fresh run of an INCONCLUSIVE one; needs --workers.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Worker processes of the repeat, planned beforehand; 5 to 200.")
    ] = None,
    again: Annotated[
        str | None, typer.Option(metavar="RUN", help="That run's kernel, workload and policy, in today's environment.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Finish a run that was stopped.")] = None,
) -> int:
    """Does the kernel's win survive the workload?"""
    request = _request(context)  # reads all the rest from the context, as `--repeat` and `--again` lay two together
    from e2e.pipeline import validate as run_validation
    from e2e.progress import Several, events_to, for_people

    with contextlib.ExitStack() as stack:
        listeners: list[Progress] = [stack.enter_context(contextlib.closing(for_people(sys.stderr)))]
        if events is not None:
            recorded = stack.enter_context(events_to(events))
            recorded.start(request.command)
            listeners.append(recorded)
        result = run_validation(request, Several(listeners))
        code = _code_of(result)
        if events is not None:
            recorded.finish(code=code, outcome=result.outcome, run=result.run_id)
    _emit(_rendered(result, "json" if as_json else "text"))
    return code


@app.command()
def profile(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="Workload file, or a shipped name.")],
    op: Annotated[
        list[str] | None, typer.Option(metavar="NAME|FILE.py:CLASS", help="This op only; may be repeated.")
    ] = None,
    overrides: OverridesOption = None,
    policy: PolicyOption = None,
    device: DeviceOption = "auto",
    budget: WholeBudget = None,
    seed: SeedOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Profile on stdout as JSON, all else on stderr.")] = False,
) -> int:
    """Where the step's time goes, and the most any kernel for each op could win. Takes no kernel."""
    from e2e.profiling import profile as run_profile
    from e2e.progress import for_people
    from e2e.request import Request

    request = Request(
        workload=workload,
        kernels=(),
        overrides=tuple(overrides or ()),
        policy=policy,
        device=device,
        budget_s=budget,
        seed=seed,
        out=out,
        command=("e2e", *context.obj),
    )
    with contextlib.closing(for_people(sys.stderr)) as progress:
        report = run_profile(request, ops=tuple(op or ()), progress=progress)
    _emit(_profile_rendered(report, "json" if as_json else "text"))
    return report.error.code if report.error is not None else 0


@app.command()
def check(
    context: typer.Context,
    kernel: Annotated[str, typer.Argument(metavar="SPEC", help="The candidate: path or module:callable.")],
    op: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.py:CLASS", help="Op it computes, if the kernel names none.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="DTYPE", help="One of those that it declares; all if not given.")
    ] = None,
    captures: Annotated[
        str | None, typer.Option(metavar="FILE|RUN", help="On inputs that `e2e profile` captured, not on drawn ones.")
    ] = None,
    device: DeviceOption = "auto",
    seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of the inputs.")] = None,
    sanitize: SanitizeOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as JSON, all else on stderr.")] = False,
) -> int:
    """Is the kernel right? On its op's own inputs, without a workload."""
    from e2e.check import CheckRequest
    from e2e.check import check as run_check
    from e2e.check_story import tell
    from e2e.judge import exit_code
    from e2e.progress import for_people
    from e2e.reports.text import printed

    request = CheckRequest(
        kernel=kernel,
        op=op,
        dtypes=tuple(dtype or ()),
        captures=captures,
        device=device,
        seed=seed,
        sanitize=sanitize,
        command=("e2e", *context.obj),
    )
    with contextlib.closing(for_people(sys.stderr)) as progress:
        report = run_check(request, progress)
    _emit(report.model_dump_json(indent=1) + "\n" if as_json else printed(tell(report)))
    return exit_code(report.outcome)


@app.command()
def gate(
    run: RunArgument,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="Judge under another policy.")] = None,
) -> int:
    """Judge a stored run again; the exit code is the verdict's."""
    from datetime import UTC, datetime

    from e2e.gate import regate
    from e2e.store import load
    from e2e.surroundings import surroundings

    other = None
    if policy is not None:
        from e2e.configuration import load_policy

        other = load_policy(policy, heeds_waivers=True)
    stored = load(run)
    gated = regate(stored, other, surroundings(stored.kernels), datetime.now(UTC).date())
    _emit(gated.text)
    return gated.code


@app.command()
def report(
    run: RunArgument,
    style: Annotated[
        str, typer.Option("--format", metavar="text|md|html|json|junit|github", help="How to render it.")
    ] = "text",
    share: Annotated[
        bool, typer.Option("--share", help="Leave out folders, host name and environment variables.")
    ] = False,
) -> int:
    """Render a stored run."""
    from e2e.store import PROFILE, find
    from e2e.unfinished import shown

    folder = find(run)
    if (folder / PROFILE).is_file():
        if share:
            raise UsageError("--share goes with a validation's run, and this is a profile")
        from e2e import profile_store

        _emit(_profile_rendered(profile_store.load(folder), style))
        return 0
    stored = shown(run)
    if share:
        import platform

        from e2e.sharing import shareable

        stored = shareable(stored, [platform.node()])
    _emit(_rendered(stored, style))
    return 0


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, result.json, or run id.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The later one, or the other kernel's.")],
) -> int:
    """Two runs of one workload: what moved between them."""
    from e2e.comparison import compare as compare_runs
    from e2e.reports.text import printed
    from e2e.store import load

    _emit(printed(compare_runs(load(first), load(second))))
    return 0


@app.command()
def history(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON.")] = False,
) -> int:
    """All runs of a folder, and how each kernel fared over time."""
    from e2e.past_runs import read, tell
    from e2e.reports.text import printed

    found = read(folder)
    if as_json:
        import json

        rows = [row.model_dump(mode="json") for row in found.rows]
        _emit(json.dumps({"rows": rows, "unreadable": found.unreadable}, indent=1) + "\n")
    else:
        _emit(printed(tell(found)))
    return 0


@app.command()
def adopt(
    run: RunArgument,
    alternative: Annotated[
        str | None, typer.Option(metavar="NAME", help="PyTorch's own path that matched the kernel, in its place.")
    ] = None,
    force: Annotated[str | None, typer.Option(metavar="REASON", help="Write it although it is not CONFIRMED.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where its folder goes.")] = Path("adopted"),
) -> int:
    """Write what production needs after CONFIRMED: a guarded module and its test."""
    from e2e.adoption import adopt as write
    from e2e.store import find, load

    written = write(find(run), load(run), out=out, alternative=alternative, forced=force)
    _emit(written.text)
    return 0


@app.command()
def trace(
    run: RunArgument,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; the first free from 6006.")] = None,
) -> int:
    """Open a run's profiles in TensorBoard."""
    from e2e.store import find
    from e2e.viewer import prepare

    viewer = prepare(find(run), port)
    _emit(viewer.text)
    return viewer.serve()


@app.command()
def selftest(
    context: typer.Context,
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Workload file, or a shipped name.")
    ] = "tiny_llama_infer",
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of planted times.")] = 20,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="Plant kernels of this op only; may be repeated.")
    ] = None,
    identical: Annotated[
        bool,
        typer.Option("--identical", help="Plant no gains and losses: identical code alone, in a third of the time."),
    ] = False,
    overrides: OverridesOption = None,
    policy: PolicyOption = None,
    device: DeviceOption = "auto",
    budget: WholeBudget = None,
    seed: SeedOption = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report goes.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as JSON, all else on stderr.")] = False,
) -> int:
    """What this machine can tell apart, and whether wrong kernels are caught on it."""
    from e2e import selftest as own
    from e2e.progress import for_people
    from e2e.reports.text import printed
    from e2e.request import Request
    from e2e.selftest_story import tell
    from e2e.trials import SIZES

    request = Request(
        workload=workload,
        kernels=(),
        overrides=tuple(overrides or ()),
        policy=policy,
        device=device,
        budget_s=budget,
        seed=seed,
        out=out,
        command=("e2e", *context.obj),
    )
    with contextlib.closing(for_people(sys.stderr)) as progress:
        sizes = () if identical else SIZES
        report = own.selftest(request, runs=runs, ops=tuple(op or ()), sizes=sizes, progress=progress)
    _emit(report.model_dump_json(indent=1) + "\n" if as_json else printed(tell(report)))
    return own.exit_code(report)


@app.command()
def doctor() -> int:
    """What works here, and which verdicts are possible."""
    from e2e.doctor import diagnose, render

    diagnosis = diagnose()
    _emit(render(diagnosis))
    return diagnosis.code


@new.command("kernel")
def new_kernel(
    op: Annotated[str, typer.Argument(metavar="OP", help="What it computes; `e2e list ops` has them.")],
    lang: Annotated[Language, typer.Option(help="What to write it in.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; by default OP and the suffix, here.")
    ] = None,
) -> int:
    """Write a kernel file that builds and passes `e2e check` as it is."""
    from e2e.kernel_template import write_kernel

    file = write_kernel(op, lang, out)
    _emit(f"{file}\n")
    with contextlib.suppress(OSError):
        print(f"next: e2e check {shlex.quote(str(file))}", file=sys.stderr)
    return 0


@app.command("list")
def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")],
    op: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.py:CLASS", help="This op alone, also one from outside.")
    ] = None,
) -> int:
    """List ops, workloads, kernels, formats or reasons."""
    from e2e.listing import aligned, op_row, rows

    if op is not None and what is not Listed.OPS:
        raise UsageError(f"--op goes with `e2e list ops`, not with {what}")
    _emit(aligned([op_row(op)] if op is not None else rows(what)) or f"no {what} in this folder\n")
    return 0


_WITH_RESUME = {"resume", "as_json", "events"}
"""What may be typed beside `--resume`: it is the same run still."""
_BESIDE = {"budget", "out", "as_json", "events", "trace"}
"""What may be typed beside `--repeat` and `--again`: anything else would make it another question."""


def _request(context: typer.Context) -> Request:
    """What was typed; of a stored run to be made once more what was typed for that, but for where things go.

    Raises:
        UsageError: something is missing, or beside `--repeat` or `--again` something is too much.
    """
    if context.params["resume"] is not None:
        return _resumed(context)
    from e2e.request import Again, Repeat, Request
    from e2e.store import find

    asked, stored = context.params, None
    if any(asked[name] is not None for name in ("repeat", "workers", "again")):
        asked, stored = _once_more(context)
    if not asked["kernel"] or asked["workload"] is None:
        missing = "option '--kernel'" if not asked["kernel"] else "argument 'WORKLOAD'"
        raise UsageError(f"Missing {missing} (see `e2e validate --help`)")
    is_again = context.params["again"] is not None
    return Request(
        workload=asked["workload"],
        kernels=tuple(asked["kernel"]),
        until=Stage(asked["until"]),  # some versions of typer convert only what they pass to the function
        op=asked["op"],
        overrides=tuple(asked["overrides"] or ()),
        policy=asked["policy"],
        device=asked["device"],
        budget_s=asked["budget"],
        seed=asked["seed"],
        out=Path(asked["out"]),
        traces=asked["trace"],
        sanitize=asked["sanitize"],
        repeat=Repeat(stored, asked["workers"]) if stored and not is_again else None,
        again=Again(stored, find(context.params["again"])) if stored and is_again else None,
        command=("e2e", *context.obj),
    )


def _once_more(context: typer.Context) -> tuple[dict[str, Any], Result]:
    """The options of a stored run under those that were typed now, and the run."""
    from e2e.store import load

    given = _given(context)
    how = {"again"} if "again" in given else {"repeat", "workers"}
    if not how <= given:
        raise UsageError("--repeat RUN and --workers N go together: a run to repeat, and in what size")
    if given - how - _BESIDE:
        option = f"--{min(how)}"
        only = "--workers, " if "workers" in how else ""
        raise UsageError(
            f"{option} takes workload, kernel, policy and options from the stored run; beside it only {only}"
            "--budget, --out, --json, --events and --no-trace may be given"
        )
    stored = load(context.params[min(how)])
    fresh = {"budget": None, "seed": None} | ({} if "again" in how else {"until": Stage.VERDICT})
    return {**_typed_for(stored), **fresh, **{name: context.params[name] for name in given}}, stored


def _given(context: typer.Context) -> set[str]:
    """Names of what was typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _resumed(context: typer.Context) -> Request:
    """The request that a stopped run was started with, and how far it came."""
    from dataclasses import replace

    from e2e.store import find
    from e2e.unfinished import load

    if _given(context) - _WITH_RESUME:
        raise UsageError("--resume takes everything from the stopped run; beside it go only --json and --events")
    folder = find(context.params["resume"])
    unfinished = load(folder)
    request = _request(_context_of(unfinished.result))
    return replace(request, out=folder.parent, resume=unfinished, command=tuple(unfinished.result.command))


def _typed_for(stored: Result) -> dict[str, Any]:
    """The options that a run was started with; those of the first one where it was itself one once more."""
    from e2e.store import load

    asked = _context_of(stored).params
    first = asked["repeat"] or asked["again"]
    return asked if first is None else _typed_for(load(first))


def _context_of(stored: Result) -> typer.Context:
    """The command that a run was started with, as if it were typed again.

    Raises:
        StoredRunError: it cannot be read.
    """
    command = typer.main.get_command(app).commands["validate"]  # type: ignore[attr-defined]
    try:
        if stored.command[:2] != ["e2e", "validate"]:
            raise StoredRunError(f"run {stored.run_id} was not started by `e2e validate`")
        context: typer.Context = command.make_context("validate", stored.command[2:], obj=tuple(stored.command[1:]))
    except (typer.TyperException, typer.Exit) as error:
        raise StoredRunError(f"the command of run {stored.run_id} cannot be read: {error}") from error
    return context


def run(arguments: Sequence[str]) -> int:
    """One command, from its arguments to its exit code; prints every message."""
    try:
        return _dispatch(arguments)
    except E2EError as error:
        return _complain(error.message, error.exit_code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "e2e"
        # typer lets pydantic convert enums, and pydantic's words show.
        message = error.format_message().replace("Value error, ", "")
        return _complain(f"{message} (see `{command} --help`)", UsageError.exit_code)
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001  the outer edge: no traceback in a user's face, never exit code 1
        return _complain(_internal(error, arguments), INTERNAL_FAULT)


def main() -> NoReturn:
    """The command `e2e`. SIGTERM, which CI sends at a time limit, does what Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is None:  # closed by the caller, who wants the exit code only
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path is no reason to fail, whatever the locale
    sys.exit(run(sys.argv[1:]))


def _dispatch(arguments: Sequence[str]) -> int:
    """Not typer's own `main`: it turns a broken pipe into exit code 1."""
    command = typer.main.get_command(app)
    if "_E2E_COMPLETE" in os.environ:
        command.main(list(arguments), prog_name="e2e")
    with command.make_context("e2e", list(arguments), obj=tuple(arguments)) as context:
        return int(command.invoke(context))


def _code_of(result: Result) -> int:
    from e2e.judge import exit_code

    return result.error.code if result.error is not None else exit_code(result.outcome)


def _rendered(result: Result, style: str) -> str:
    from e2e import registry

    return str(registry.load("reports", style).render(result))


def _profile_rendered(report: ProfileReport, style: str) -> str:
    if style == "json":
        return report.model_dump_json(indent=1) + "\n"
    from e2e.profile_story import tell
    from e2e.reports.md import written
    from e2e.reports.text import printed

    styles = {"text": printed, "md": written}
    if style not in styles:
        raise UsageError(f"--format {style}: a profile is shown as {', '.join([*styles, 'json'])}")
    return styles[style](tell(report))


def _emit(text: str) -> None:
    """Write to stdout. A reader that went away (`| head`) changes no exit code.

    Raises:
        EnvironmentFault: stdout cannot be written, so the caller would miss the outcome.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # what is still buffered would fail once more when the interpreter ends, and take the exit code with it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise EnvironmentFault(f"cannot write to stdout: {error.strerror}") from error


def _complain(message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"e2e: error: {message}", file=sys.stderr)
    return code


def _internal(error: Exception, arguments: Sequence[str]) -> str:
    """One line for people; the traceback goes to a file."""
    import tempfile
    import traceback

    details = "".join(traceback.format_exception(error))
    try:
        descriptor, file = tempfile.mkstemp(prefix="e2e-error-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"e2e {shlex.join(arguments)}\npython {sys.version}\n\n{details}")
    except OSError as problem:
        file = f"(no file could be written: {problem.strerror})"
    first = str(error).split("\n", 1)[0]
    return f"internal error: {type(error).__name__}: {first}; please report it; details in {file}"
