"""docs/how-to/migrate.md: its example on a table as kafka-delta-ingest leaves it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "migrate.md"


def test_starts_lie_behind_the_last_offsets_in_the_table(tmp_path: Path) -> None:
    """Its transaction identifiers are APP_ID-PARTITION, and their versions the last offsets that were written."""
    for last in ({0: 4}, {0: 9, 2: 0}):
        transactions = [Transaction(f"app-{partition}", offset) for partition, offset in last.items()]
        properties = CommitProperties(app_transactions=transactions)
        write_deltalake(tmp_path / "t", pa.table({"n": [1]}), mode="append", commit_properties=properties)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], names)
    assert names["find_starts"](str(tmp_path / "t"), "app", 3) == {0: 10, 2: 1}
