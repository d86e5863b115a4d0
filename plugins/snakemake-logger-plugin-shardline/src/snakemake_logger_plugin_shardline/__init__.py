"""A Snakemake logger plugin: one line per long job, redrawn in place, and one table at the end."""

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from snakemake_interface_logger_plugins.base import LogHandlerBase

if TYPE_CHECKING:
    from snakemake_logger_plugin_shardline.display import Display


class LogHandler(LogHandlerBase):
    """Shows a workflow; dry runs, `--verbose` and `--debug-dag` look as without the plugin."""

    writes_to_stream = has_filter = has_formatter = True  # replaces Snakemake's own handler
    writes_to_file = needs_rulegraph = False

    def __post_init__(self) -> None:
        self._display: Display | None = None
        self._snakemakes: logging.Handler | None = None
        asked = self.common_settings
        # Snakemake passes an enumeration whose values are words
        self._quiet = {str(getattr(one, "name", one)).lower() for one in asked.quiet or ()}
        if asked.dryrun or asked.verbose or asked.debug_dag:
            self._snakemakes = snakemakes_own(asked)
        elif "all" not in self._quiet:
            self._display = self._make_display()
            atexit.register(self._finish)

    def _make_display(self) -> "Display":
        # Snakemake imports every installed plugin at each start, used or not
        from snakemake_logger_plugin_shardline.display import Display
        from snakemake_logger_plugin_shardline.output import PlainOutput, Terminal

        stream = sys.stdout if self.common_settings.stdout else sys.stderr
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            return Display(Terminal(stream), self._quiet)
        return Display(PlainOutput(stream), self._quiet)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record; if that fails, print Snakemake's own lines from now on."""
        if self._display:
            try:
                self._display.take(record)
            except Exception as error:
                self._give_up(error)
            else:
                return
        if self._snakemakes:
            if not self.common_settings.verbose:
                record = with_words(record)
            self._snakemakes.handle(record)

    def _give_up(self, error: Exception) -> None:
        display, self._display = self._display, None
        with suppress(Exception):
            assert display is not None
            display.give_up()
        with suppress(Exception):
            print(f"the display failed ({error!r}); Snakemake's own lines follow", file=sys.stderr)
        self._snakemakes = snakemakes_own(self.common_settings)

    def close(self) -> None:
        """Write the remaining lines, and restore the terminal.

        Packages that configure `logging`, such as Azure's SDK, close all handlers of the process. Handlers
        of the standard library keep working after that, and so does this handler.
        """
        if sys._getframe(1).f_code is not logging.shutdown.__code__:
            self._finish()
        super().close()

    def _finish(self) -> None:
        atexit.unregister(self._finish)
        display, self._display = self._display, None
        with suppress(Exception):
            if display:
                display.close()


def with_words(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record with the text of `messages.in_words`."""
    from snakemake_logger_plugin_shardline.messages import in_words

    if not isinstance(record.msg, str) or (text := in_words(record.msg)) == record.msg:
        return record
    return logging.makeLogRecord({**record.__dict__, "msg": text})


def snakemakes_own(settings: Any) -> logging.Handler:
    """Return Snakemake's own handler, which it uses without a plugin."""
    from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

    handler: logging.Handler = ColorizingTextHandler(
        nocolor=settings.nocolor,
        stream=sys.stdout if settings.stdout else sys.stderr,
        formatter=DefaultFormatter(settings.quiet, settings.show_failed_logs),
        filter=DefaultFilter(
            settings.quiet,
            settings.debug_dag,
            settings.verbose,
            settings.dryrun,
            settings.printshellcmds,
        ),
    )
    return handler
