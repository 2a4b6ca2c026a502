"""What TensorBoard shows beside the profiles: step times, memory and drift as scalars, the verdict as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import registry
from e2e.profile.timeline import folder_name
from e2e.schema.evidence import Evidence
from e2e.schema.result import Result
from e2e.units import Bytes, Seconds

VERDICT = "verdict"
"""Run of TensorBoard's that has the report."""
_BEGINS = "events.out.tfevents."


@dataclass(frozen=True)
class Scalar:
    """One point of an arm's curve."""

    arm: str
    name: str
    step: int
    value: float


def scalars(result: Result) -> Iterator[Scalar]:
    """Step times of every timed segment in order, then what there is one of."""
    for cell in result.cells:
        prefix = f"{cell.cell.title}/" if len(result.cells) > 1 else ""
        for scalar in _of_cell(cell.evidence):
            yield Scalar(scalar.arm, prefix + scalar.name, scalar.step, scalar.value)


def _of_cell(evidence: Evidence) -> Iterator[Scalar]:
    places: dict[str, int] = {}
    for segment in evidence.segments:
        if segment.phase == "verdict" and segment.steps > 0:
            place = places.get(segment.arm, 0)
            places[segment.arm] = place + 1
            yield Scalar(segment.arm, "step time, ms", place, 1e3 * segment.seconds / segment.steps)
    for record in evidence.memory:
        sizes: list[tuple[str, Bytes | None]] = [
            ("peak allocated, MiB", record.peak_allocated_bytes),
            ("resident high-water mark, MiB", record.host_high_water_bytes),
        ]
        for name, size in sizes:
            if size is not None:
                yield Scalar(record.arm, name, record.process, size / 2**20)
    arms = ((evidence.baseline, "baseline"), (evidence.candidate, "candidate"))
    for arm, role in arms:
        for name, value in _drift(evidence, role) if arm is not None else ():
            if value is not None and math.isfinite(value):
                yield Scalar(str(arm), name, 0, value)


def _drift(evidence: Evidence, role: str) -> Iterator[tuple[str, float | None]]:
    """Error, KL and loss of the model's outputs, as the checks found them."""
    if evidence.model_check is not None:
        yield "error of the outputs", getattr(evidence.model_check, f"error_{role}")
        yield "KL, nats", getattr(evidence.model_check, f"kl_{role}")
    if evidence.training is not None:
        yield "loss", getattr(evidence.training, f"loss_{role}")


def write(result: Result, logs: Path, *, now_s: Seconds) -> None:
    """Event files beside the profiles in `logs`, a folder for each arm; nothing where they are already.

    Raises:
        OSError: they cannot be written.
    """
    if any((logs / VERDICT).glob(f"{_BEGINS}*")):
        return
    from tensorboard.compat.proto.summary_pb2 import Summary

    points: dict[str, list[Scalar]] = {}
    for scalar in scalars(result):
        points.setdefault(folder_name(scalar.arm), []).append(scalar)
    for folder, own in points.items():
        values = [(point.step, Summary.Value(tag=point.name, simple_value=point.value)) for point in own]
        _write(logs / folder, values, now_s)
    _write(logs / VERDICT, [(0, _text("report", registry.load("reports", "md").render(result)))], now_s)


def _text(tag: str, text: str) -> Any:
    """As the text plugin reads it."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def _write(folder: Path, values: Iterable[tuple[int, Any]], now_s: Seconds) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, value in values:
        writer.add_event(Event(wall_time=now_s, step=step, summary=Summary(value=[value])))
    writer.close()
