"""Loggers of libraries that write more into the log of a task than its reader needs."""

from __future__ import annotations

import logging


def quiet(name: str, level: int) -> None:
    """Drop what a library logs below that level, unless somebody has set a level for its logger, or asks for DEBUG."""
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET and logging.getLogger().getEffectiveLevel() > logging.DEBUG:
        logger.setLevel(level)
