"""TensorBoard tracker: https://www.tensorflow.org/tensorboard."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from shardline.core.png import png_size
from shardline.records.metrics import MetricLine
from shardline.records.tracking import TrackingContext
from shardline.tracking.logged_files import markdown_table, numbered, png_of
from shardline.tracking.metric_batches import MetricBatch
from shardline.tracking.run_links import RunLinks
from shardline.tracking.tracker import Tracker

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

_EVENTS = "events.out.tfevents.*"


class TensorBoardFolder(Tracker):
    """Tracker that writes an event file to `{store}/tensorboard/{run}` again at each start of a training.

    It uses TensorBoard's own writer, which needs neither torch nor TensorFlow.
    """

    label = "TensorBoard"

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        super().__init__(context, links)
        self._folder = Path(context.store, "tensorboard", context.run)
        self._writer: EventFileWriter | None = None
        links.write(where={"folder": str(self._folder)})

    @property
    def place(self) -> str:
        """Path of the folder."""
        return f"folder {self._folder}"

    def open(self) -> int:
        """Start a new event file with the hyperparameters, and remove earlier event files."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer, self._writer = self._writer, None
        if writer:  # of a failed attempt; closing may fail, too, but only once
            writer.close()
        earlier = list(self._folder.glob(_EVENTS))
        self._writer = EventFileWriter(str(self._folder))
        for file in earlier:  # metrics.jsonl contains the same values
            file.unlink()
        # makes a running TensorBoard discard the earlier file
        self._write(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        params = {key: _plain(value) for key, value in self._context.params.items()}
        summary = hparams_pb(params, trial_id=self._context.run, start_time_secs=time.time())
        self._write(Event(summary=summary))
        self._writer.flush()
        return -1

    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Write values with their training time."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._writer is not None
        for value in batch.values:
            scalar = Summary.Value(tag=value.name, simple_value=value.value)
            summary = Summary(value=[scalar])
            time_s = None if started is None or value.wall_s is None else started + value.wall_s
            self._write(Event(step=value.step, summary=summary), time_s)
        for line in batch.logged:
            time_s = None if started is None or line.wall_s is None else started + line.wall_s
            summary = Summary(value=[*_shown(line)])
            self._write(Event(step=line.step, summary=summary), time_s)
        self._writer.flush()

    def close(self, how: str) -> None:
        """Write how the training ended for the table of hyperparameters."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        if not self._writer:
            return
        status = api_pb2.STATUS_SUCCESS if how == "sealed" else api_pb2.STATUS_FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        about = metadata.create_summary_metadata(
            plugin_data_pb2.HParamsPluginData(session_end_info=end)
        )
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR
        )
        self._write(Event(summary=Summary(value=[value])))
        self._writer.close()
        self._writer = None

    def _write(self, event: Any, time_s: float | None = None) -> None:
        assert self._writer is not None
        event.wall_time = time.time() if time_s is None else time_s
        self._writer.add_event(event)


def _shown(line: MetricLine) -> "Iterator[Summary.Value]":
    """Yield the images of a line; tables and texts as Markdown, which TensorBoard shows."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text import metadata

    for name, one in numbered(line):
        if png := png_of(one):
            width, height = png_size(png)
            image = Summary.Image(
                encoded_image_string=png, width=width, height=height, colorspace=3
            )
            yield Summary.Value(tag=name, image=image)
            continue
        text = one.text if one.rows is UNSET else markdown_table(one.columns or [], one.rows)
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[str(text).encode()], tensor_shape=shape)
        about = metadata.create_summary_metadata(display_name="", description="")
        yield Summary.Value(tag=name, metadata=about, tensor=tensor)


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
