"""Values of a run that a notebook shows as tables and pictures: settings, reasons, images, checkpoints, figures."""

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.core.nested import flatten
from shardline.notebook.display import table_html

if TYPE_CHECKING:
    import pandas as pd

    from shardline.checkpoints.manifest import TrainingCheckpoint

_MOST_IMAGES = 60


class Settings(dict[str, Any]):
    """Settings as nested tables. A notebook shows a row for each dotted key."""

    def _repr_html_(self) -> str:
        import pandas as pd

        rows = [{"setting": key, "value": repr(value)} for key, value in flatten(self).items()]
        return table_html(pd.DataFrame(rows).set_index("setting"), "settings")


class Reason(str):
    """Why a run is in its state, in lines."""

    def _repr_html_(self) -> str:
        title, *causes = self.splitlines()
        items = "".join(f"<li>{escape(cause)}</li>" for cause in causes)
        return f"<b>{escape(title)}</b>" + (f"<ul>{items}</ul>" if items else "")

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True)
class LoggedImage:
    """An image that a model logged.

    Attributes:
        name: Name that the model gave.
        step: Optimiser step.
        caption: Caption; empty without one.
        png: Bytes of the PNG file.
    """

    name: str
    step: int
    caption: str
    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        caption = f" {self.caption!r}" if self.caption else ""
        return f"<image {self.name!r} at step {self.step}{caption}, {len(self.png):,} bytes>"


class Images(list[LoggedImage]):
    """Logged images in order of steps. A notebook shows the latest."""

    def _repr_html_(self) -> str:
        shown = self[-_MOST_IMAGES:]
        left_out = len(self) - len(shown)
        note = f"<p>{left_out:,} earlier images are not shown.</p>" if left_out else ""
        return note + "".join(map(_figure, shown)) if self else "<p>no image is logged</p>"


def _figure(image: LoggedImage) -> str:
    title = escape(f"{image.name}, step {image.step}" + (image.caption and f": {image.caption}"))
    data = base64.b64encode(image.png).decode()
    return (
        '<figure style="display: inline-block; margin: 4px">'
        f'<img alt="{title}" src="data:image/png;base64,{data}" '
        'style="min-width: 96px; max-width: 240px; image-rendering: pixelated">'
        f"<figcaption>{title}</figcaption></figure>"
    )


class Checkpoints(list["TrainingCheckpoint"]):
    """Training checkpoints, the newest first. A notebook shows a row for each."""

    @property
    def frame(self) -> "pd.DataFrame":
        """A row for each checkpoint: step, epoch, time, ranks, bytes and folder."""
        import pandas as pd

        rows = [
            {
                "step": one.step, "epoch": one.epoch, "written": one.written,
                "ranks": one.world_size, "bytes": one.bytes, "folder": str(one.path),
            }
            for one in self
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["step", "epoch", "written", "ranks", "bytes", "folder"])

    def _repr_html_(self) -> str:
        if not self:
            return "<p>the store has no training checkpoint of this run</p>"
        return table_html(self.frame.set_index("step"), "training checkpoints")


@dataclass(frozen=True)
class Figure:
    """A figure of learning curves, which a notebook shows.

    Attributes:
        chart: The chart of Altair, to change or to combine.
    """

    chart: Any

    def save(self, file: Path | str) -> None:
        """Write the figure as PNG, SVG or PDF, by the ending of the file's name.

        Raises:
            ConfigError: The name has another ending.
            DataError: The file cannot be written.
        """
        from shardline.notebook.figures import save

        save(self.chart, Path(file))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from shardline.notebook.figures import to_svg

        return {"image/svg+xml": to_svg(self.chart), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return '<figure: .save("curves.pdf") writes it as PNG, SVG or PDF>'
