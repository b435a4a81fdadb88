"""Unix time: the instant from which days, milliseconds and microseconds are counted, and these units."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_UNIX_EPOCH = datetime(1970, 1, 1)  # for times without a zone
MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)
FIRST_DAY = date.min.toordinal() - UNIX_EPOCH.toordinal()  # 0001-01-01, in days since 1970
LAST_DAY = date.max.toordinal() - UNIX_EPOCH.toordinal()  # 9999-12-31
