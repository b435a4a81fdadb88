"""What holds of the tests themselves."""

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
CALLS = r"flush|result|wait|join|output|communicate|init_transactions|commit_transaction|abort_transaction"
A_LIMIT_OF_ITS_OWN = re.compile(
    rf"\.?({CALLS})\(([^()]*, )?(timeout=)?[1-9]\d*\)"
    r"|subprocess\.run\(.*timeout=\d"
    r"|until\(.*, \d\d+(, |\)$)"
    r"|monotonic\(\) - \w+ < \d"
)


def test_no_test_depends_on_speed() -> None:
    """Each wait for a condition is as patient as the others (`patience.PATIENCE`)."""
    files = [file for kind in ("contract", "integration", "unit") for file in (TESTS / kind).rglob("*.py")]
    lines = [(file.name, line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(name, line) for name, line in lines if A_LIMIT_OF_ITS_OWN.search(line)] == []


def test_each_file_has_a_name_of_its_own() -> None:
    """The folders are no packages, so pytest imports a file by its name alone."""
    names = Counter(file.name for file in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
