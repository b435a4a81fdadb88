"""Messages name pages by the command that shows them, and each page and section that one names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from unit.test_advice_commands import all_texts

from onceonly import documentation, error_codes
from onceonly.cli import COMMANDS, main
from onceonly.cli.help import SETTINGS

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"\bdocs/[\w./-]*\.md")
FILLED_IN = re.compile(r"\{(?:documentation\.)?name_page\('([\w-]+)'(?:, '([\w-]+)')?\)\}")
COMMAND = re.compile(r"\bonceonly help ([a-z](?:[\w-]|\.(?=md))*)(?: ([a-z]+(?:-[\w-]+)*)(?=[).,;:`]))?")


def onceonly(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def list_helps(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        for name in command.commands:
            yield from list_helps(command.commands[name], (*words, name))


def read_texts() -> Iterator[tuple[str, str]]:
    """Every text that a person gets to see, by where it comes from."""
    yield from all_texts()
    for words in list_helps(main):
        yield f"{' '.join(words)} --help", onceonly(*words, "--help").output
    for code, explanation in error_codes.read_catalogue().items():
        for text in (explanation.means, explanation.why, explanation.do):
            yield code, error_codes.without_links(text)
    for group in yaml.safe_load((DOCS / "alerts.rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield "alerts.rules.yml", rule["annotations"]["description"]


def test_messages_name_pages_that_there_are() -> None:
    pages, named = documentation.list_pages(), set()
    for source, text in read_texts():
        assert not FILE.search(text), f"{source}: {text}"
        text = FILLED_IN.sub(lambda page: documentation.name_page(page[1], page[2] or ""), text)
        assert "name_page(" not in text or source == "cli/help.py", f"{source}: {text}"
        for name, section in COMMAND.findall(text):
            if name in COMMANDS or name == SETTINGS or name == "lists":
                continue
            assert name in pages, f"{source}: {text}"
            assert not section or section in pages[name].sections, f"{source}: {text}"
            named.add(name)
    assert {"operations", "connections", "chain", "gate", "kafka"} <= named


def test_each_page_has_one_name() -> None:
    pages = documentation.list_pages()
    assert len(pages) == len(list(DOCS.rglob("*.md")))
    assert set(documentation.SHARED_NAMES) == {page.path.stem for page in pages.values()} & {*COMMANDS, SETTINGS}
    listed = onceonly("help").output
    for page in pages.values():
        assert f"{page.name} " in listed and page.title in listed
        assert onceonly("help", page.name).output.startswith(f"# {page.title}\n")


@pytest.mark.parametrize("word", ["erase", "erase.md", "how-to/erase.md", "docs/how-to/erase.md"])
def test_a_page_is_shown_by_its_name_or_path(word: str) -> None:
    shown = onceonly("help", word)
    assert (shown.exit_code, shown.output.partition("\n")[0]) == (0, "# Erase a person")


def test_a_section_is_shown_alone() -> None:
    shown = onceonly("help", "operations", "backup-and-restore").output
    assert shown.startswith("## Backup and restore\n") and "\n## " not in shown.removeprefix("## ")


def test_links_become_commands() -> None:
    shown = onceonly("help", "erase").output
    assert "`onceonly help correct`" in shown and "`onceonly help operations targets`" in shown
    assert not re.search(r"\]\([^)]*\.md", shown)
    assert str(DOCS / "alerts.rules.yml") in onceonly("help", "monitoring").output


@pytest.mark.parametrize(
    ("words", "similar"),
    [(("eras",), "erase"), (("conections",), "connections"), (("kafka", "open-transaction"), "open-transactions")],
)
def test_an_unknown_page_is_refused_with_similar_names(words: tuple[str, ...], similar: str) -> None:
    refused = onceonly("help", *words)
    assert refused.exit_code == 2
    assert "[command-unknown]" in refused.output and similar in refused.output
