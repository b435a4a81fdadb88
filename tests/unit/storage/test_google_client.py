"""What the client of Google Cloud Storage says without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.storage.logins import GOOGLE_KEY_FILES

pytest.importorskip("google.cloud.storage", reason="pip install 'onceonly[google]'")

from onceonly.sinks.files.sink import FileWriter
from onceonly.storage.google_client import Bucket


@pytest.mark.parametrize("content", [None, "no JSON", "{}"])
def test_a_key_file_that_cannot_be_used_is_no_missing_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    for name in GOOGLE_KEY_FILES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(GOOGLE_KEY_FILES[0], str(file))
    bucket = Bucket("lake")
    for ask in (bucket.find, bucket.get, lambda uri: bucket.unlink([uri]), lambda uri: list(bucket.list_names(uri))):
        with pytest.raises(PermissionError):
            ask("gs://lake/a")
    with raises(InvalidPipeline, "target-not-writable"):
        FileWriter(FileSink("lake", "gs://lake/a"), "gs://lake/a").check()
