"""Unix time: the instant from which milliseconds and microseconds are counted, and these units."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_UNIX_EPOCH = datetime(1970, 1, 1)  # for times without a zone
MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)
