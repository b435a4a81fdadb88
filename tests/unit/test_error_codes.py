"""The catalogue of error codes against the code that raises them, and docs/errors.md against the catalogue."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly import error_codes, errors
from onceonly.cli import main
from onceonly.runtime import spark_errors

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
COMMAND = re.compile(r"`onceonly ([a-z-]+)")
TEST_CODE = "test-"  # of the fakes
CATALOGUE = error_codes.read_catalogue()


def string_constants(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def codes_passed(source: Path) -> Iterator[str]:
    """Yield the codes that a module passes by keyword: as text, or by the name of a constant of the module."""
    tree = ast.parse(source.read_text())
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            if keyword.arg != "code":
                continue
            value = keyword.value
            if isinstance(value, ast.Name):
                value = constants.get(value.id, value)
            yield from (text for text in string_constants(value) if CODE.fullmatch(text))


def error_classes() -> set[str]:
    """Return the names of all subclasses of OnceonlyError that are defined in the sources, and its own."""
    bases: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    classes, found_more = {"OnceonlyError"}, True
    while found_more:
        subclasses = {name for name, parents in bases.items() if classes & set(parents)} - classes
        classes, found_more = classes | subclasses, bool(subclasses)
    return classes


def test_every_error_is_given_a_code() -> None:
    classes, without = error_classes(), []
    for source in SOURCES:
        for call in ast.walk(ast.parse(source.read_text())):
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] not in classes:
                continue
            has_code = len(call.args) > 3 or any(isinstance(argument, ast.Starred) for argument in call.args)
            if not has_code and not any(keyword.arg == "code" for keyword in call.keywords):
                without.append(f"{source.relative_to(ROOT)}:{call.lineno}")
    assert without == []


def test_every_code_is_explained() -> None:
    raised = {code: source for source in SOURCES for code in codes_passed(source) if not code.startswith(TEST_CODE)}
    raised |= {fault.code: Path(spark_errors.__file__) for fault in spark_errors.FAULTS}
    assert {code: source for code, source in raised.items() if code not in CATALOGUE} == {}


def test_every_explained_code_is_raised() -> None:
    texts = {text for source in SOURCES for text in string_constants(ast.parse(source.read_text()))}
    assert sorted(set(CATALOGUE) - texts) == []


def test_the_page_is_made_from_the_catalogue() -> None:
    """After a change: python -m onceonly.error_codes > docs/errors.md."""
    assert (ROOT / "docs" / "errors.md").read_text() == error_codes.format_page()


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_code_is_explained_in_three_sentences(code: str) -> None:
    explanation = CATALOGUE[code]
    assert CODE.fullmatch(code)
    for text in (explanation.means, explanation.why, explanation.do):
        assert text and text[-1] in ".`)…"
    assert set(COMMAND.findall(f"{explanation.why} {explanation.do}")) <= set(main.commands)
    shown = CliRunner().invoke(main, ["explain", code])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) == 3


def test_an_unknown_code_names_similar_ones() -> None:
    refused = CliRunner().invoke(main, ["explain", "target-went-bak", "--json"])
    assert refused.exit_code == 2
    assert '"code": "code-unknown"' in refused.output
    assert "target-went-back" in refused.output


def test_every_code_is_expected_by_a_test() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "onceonly" / "testing").rglob("*.py")]
    texts = "\n".join(file.read_text() for file in files)
    assert [code for code in CATALOGUE if f'"{code}"' not in texts and f"[{code}]" not in texts] == []


def test_no_test_expects_an_error_by_its_words_alone() -> None:
    """Words stay free; where one code stands for several causes, they are matched beside it."""
    ours = {name for name, member in vars(errors).items() if isinstance(member, type) and issubclass(member, Exception)}
    by_words = []
    for file in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "onceonly" / "testing").rglob("*.py")]:
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises" and call.keywords:
                expected = {part.id for part in ast.walk(call.args[0]) if isinstance(part, ast.Name)}
                if expected & ours and call.keywords[0].arg == "match":
                    by_words.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    assert by_words == []


ORIGIN = "It comes from jobs/people.py, line 12."
TAIL = "WARN TaskSetManager: Lost task\nRuntimeError: fails on purpose"


@pytest.mark.parametrize(
    ("code", "why", "recorded"),
    [
        ("target-went-back", "Its log ends at version 5.", "Its log ends at version 5."),
        ("row-not-accepted", "It has 9 bytes. Its key is b'Ada'.", error_codes.NOT_RECORDED),
        ("function-raised", f"PythonException: KeyError: 'Ada'\n{ORIGIN}", f"{ORIGIN} {error_codes.NOT_RECORDED}"),
        ("staging-failed", f"RuntimeError: no file\n{ORIGIN}", f"RuntimeError: no file\n{ORIGIN}"),
        ("staging-failed", TAIL, TAIL),
        ("staging-failed", "NumberFormatException: For input string: Ada", error_codes.NOT_RECORDED),
        ("staging-failed", "Py4JJavaError: no number: Ada", error_codes.NOT_RECORDED),
        ("", "Its log ends at version 5.", "Its log ends at version 5."),
    ],
)
def test_what_is_recorded_quotes_no_row(code: str, why: str, recorded: str) -> None:
    error = error_codes.without_rows(errors.InvalidPipeline("it was not staged.", why, "Fix it.", code))
    assert type(error) is errors.InvalidPipeline
    assert (error.what, error.why, error.todo, error.code) == ("it was not staged.", recorded, "Fix it.", code)
