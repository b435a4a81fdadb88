"""A Delta handle, read back: what it names, and that nothing of it is lost."""

from typing import Any

import pytest
from codes import raises

from onceonly.errors import CannotPublish
from onceonly.sinks.delta.handle import DeltaHandle

TXN = "5e1f-flights-lake-7-2-a1b2c3d4e5f6"
OLD = {"folder": "staged-5e1f-flights-lake-6-1-0a0b0c0d0e0f", "files": 2, "table_id": "1a"}


def stored(**changes: Any) -> dict[str, Any]:
    table = {"uri": "/lake", "table_id": "1a", "fingerprint": "2b", "added": [], "publish": "delta-rs"}
    txn = {"app_id": "onceonly/5e1f/flights/lake", "folder": f"staged-{TXN}", "files": 1, "rows": 3, "bytes": 100}
    return {"kind": "delta", **table, **txn, **changes}


def test_handle_keeps_what_a_newer_version_has_added() -> None:
    handle = stored(newer="a value")
    parsed = DeltaHandle.parse("lake", handle)
    assert parsed.data == handle
    copy = parsed.with_copy("merge-0123456789ab")
    assert copy.data == {**handle, "copied": "merge-0123456789ab"}
    assert (parsed.rows_folder, copy.rows_folder) == (f"staged-{TXN}", f"staged-{TXN}/merge-0123456789ab")
    assert DeltaHandle.parse("lake", copy.data) == copy


@pytest.mark.parametrize("changes", [{"replaces": stored(**OLD)}, {"retracts": [OLD]}])
def test_handle_names_the_rows_that_it_replaces(changes: dict[str, Any]) -> None:
    [old] = DeltaHandle.parse("lake", stored(**changes)).replaced
    assert old.retracted_json() == OLD


@pytest.mark.parametrize(
    "changes", [{"folder": "../x"}, {"replaces": {**OLD, "folder": "x"}}, {"retracts": [{**OLD, "folder": ""}]}]
)
def test_handle_with_another_folder_is_refused(changes: dict[str, Any]) -> None:
    with raises(CannotPublish, "handle-damaged"):
        DeltaHandle.parse("lake", stored(**changes))
