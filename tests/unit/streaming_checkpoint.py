"""Checkpoint folders as a Structured Streaming query of Spark 4.2 leaves them, file by file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

QUERY = "6f2d16f0-e619-4aee-929b-65cec7ea759c"
BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1795833674683,"conf":{"spark.sql.shuffle.partitions":"200"}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
Starts = Mapping[str, Mapping[int, int]]


def write_checkpoint(folder: Path, committed: int | None, planned: int, topic: str = "flights") -> Path:
    """Write the folder of a query that reads one offset of partition 0 in each batch, from its first one on."""
    write_starts(folder, {topic: {0: 0}})
    for batch in range(planned + 1):
        write_offsets(folder, batch, {topic: {0: batch + 1}})
        if committed is not None and batch <= committed:
            write(folder / "commits" / str(batch), COMMIT)
    return folder


def write_starts(folder: Path, starts: Starts) -> None:
    write(folder / "metadata", json.dumps({"id": QUERY}))
    write(folder / "sources" / "0" / "0", f"\0v1\n{to_line(starts)}")


def write_offsets(folder: Path, batch: int, *sources: Starts | str) -> None:
    lines = [source if isinstance(source, str) else to_line(source) for source in sources]
    write(folder / "offsets" / str(batch), "\n".join(["v1", BATCH, *lines]))


def to_line(offsets: Starts) -> str:
    return json.dumps({topic: {str(p): o for p, o in partitions.items()} for topic, partitions in offsets.items()})


def write(file: Path, text: str) -> None:
    """With a checksum and the remains of a write that was interrupted beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    (file.parent / f".{file.name}.crc").write_bytes(b"crc\0")
    (file.parent / f".{file.name}.0d3f.tmp").write_text("")
