"""The only channel for messages at run time: the logger ``precast``.

An application that configures logging gets each message once, through its own handlers and at its own level. Without
such an application, our handler writes to standard error: warnings, and what is built at run time. A message may
contain any file name, so text that is not valid UTF-8 is escaped here, for every handler.
"""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("precast")
_NAME = "precast"


class _Fallback(logging.Handler):
    """Writes to standard error, but only if no application listens."""

    def emit(self, record: logging.LogRecord) -> None:
        if not application_listens():
            write(record)


def install() -> None:
    """Add the escape and the handler to the logger; a second call is a no-op."""
    if all(handler.name != _NAME for handler in log.handlers):
        fallback = _Fallback()
        fallback.name = _NAME
        log.addHandler(fallback)
        log.addFilter(_escape)


def application_listens() -> bool:
    """Whether a handler other than ours receives the messages of this logger."""
    logger: logging.Logger | None = log
    while logger is not None:
        if any(handler.name != _NAME for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def tell(text: str, *arguments: object, quiet: bool) -> None:
    """Report what is being built, at level INFO. With ``quiet`` (PRECAST_QUIET) only an application is told."""
    if application_listens():
        log.info(text, *arguments)
    elif not quiet:
        # Not log.info: without a configuration the level of every logger is WARNING.
        record = log.makeRecord(log.name, logging.INFO, __file__, 0, text, arguments, None)
        _escape(record)
        write(record)


def write(record: logging.LogRecord) -> None:
    """Write one line to standard error. If that is closed or full, the message is dropped and the build goes on."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"precast: {record.getMessage()}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # ValueError: a closed file
        return


def _escape(record: logging.LogRecord) -> bool:
    """Escape text that UTF-8 cannot encode, such as a byte of a file name. Otherwise a handler would raise instead."""
    text = record.getMessage()
    if not text.isascii():
        record.msg, record.args = text.encode("utf-8", "backslashreplace").decode(), None
    return True
