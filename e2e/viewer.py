"""TensorBoard on a run's profiles, and where the other timelines are."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from e2e import scalars, store
from e2e.errors import EnvironmentFault, StoredRunError, UsageError

_FIRST_PORT, _PORTS = 6006, 100
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Viewer:
    """TensorBoard, ready to be started."""

    argv: tuple[str, ...]
    text: str
    """What to tell people first."""

    def serve(self) -> int:
        """Run TensorBoard until it ends or is interrupted; its exit code as ours.

        Raises:
            EnvironmentFault: it did not start.
        """
        with subprocess.Popen(self.argv) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.terminate()
                raise
        if code != 0:
            raise EnvironmentFault(f"TensorBoard ended with exit code {code}; see `e2e doctor`")
        return 0


def prepare(folder: Path, port: int | None) -> Viewer:
    """How to show the traces of the run in `folder`.

    Raises:
        UsageError: the run has no traces, or the port is taken.
        EnvironmentFault: TensorBoard is not installed.
    """
    logs = folder / "traces" / "tensorboard"
    if not any(logs.glob("**/*.json*")):
        raise UsageError(f"{folder} has no traces: the run ended before them, or ran with --no-trace")
    if importlib.util.find_spec("tensorboard") is None:
        raise EnvironmentFault(
            "TensorBoard is not installed: pip install 'tensorboard>=2.21,<3' torch-tb-profiler==0.4.3"
        )
    note = _with_scalars(folder, logs)
    chosen = _free_port() if port is None else port
    if not _is_free(chosen):
        raise UsageError(f"port {chosen} is taken; give another --port, or none")
    argv = ("-P", "-m", "tensorboard.main", "--logdir", str(logs), "--host", _HOST, "--port", str(chosen))
    others = sorted(path for path in (folder / "traces").glob("*.json*") if path.is_file())
    lines = [f"TensorBoard: http://{_HOST}:{chosen}/#pytorch_profiler (Ctrl-C ends it)"]
    lines.append("Its profiler's charts load from the internet; without it the page may wait for them for ever.")
    lines += [note] if note else []
    if others:
        lines.append("These open in https://ui.perfetto.dev, or without internet in chrome://tracing:")
        lines += [f"  {path}" for path in others]
    return Viewer((sys.executable, *argv), "\n".join(lines) + "\n")


def _with_scalars(folder: Path, logs: Path) -> str:
    """Step times, memory and the verdict beside a run's profiles; why not, where they are not. A profile has none."""
    if not (folder / store.RESULT).is_file():
        return ""
    try:
        scalars.write(store.load(folder), logs, now_s=time.time())
    except (OSError, StoredRunError) as error:
        return f"Without scalars and verdict: {error}."
    return "Scalars: step time, memory, drift. Text: the report."


def _free_port() -> int:
    ports = range(_FIRST_PORT, _FIRST_PORT + _PORTS)
    found = next((port for port in ports if _is_free(port)), None)
    if found is None:
        raise EnvironmentFault(f"no free port from {ports.start} to {ports.stop - 1}; give one with --port")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
