"""Advice to do what a command does names that command, and each command in it is one that its program accepts."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from onceonly import error_codes
from onceonly.cli import main
from onceonly.kafka import airflow_connections

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src" / "onceonly"
OBJECT = r"(?:it|them|that|the|this|its|all|others|an?|by|these|those|exactly|both|'|\{)"
DEEDS = re.compile(  # an imperative, of what commands of Onceonly or Airflow do
    r"(?:^|[.:;,)] |\n|\b(?:and|or|then|to) )(?:then |first |or )?(?:"
    rf"(?:pause|unpause|approve|abort|recover|resolve|rewind|repair|skip|clear|settle)(?= {OBJECT}|[.,:;]|$)"
    rf"|(?:re)?run {OBJECT}\b|(?:stage|plan|publish) {OBJECT}\b|give (?:it|them|that|this sink) up\b"
    r"|(?:plan|publish|stage|run) again|retry the stage|trigger |start the recovery|delete '?\{|unpause |pause )",
    re.IGNORECASE,
)
COMMAND = re.compile(r"\b(?:onceonly|airflow) [a-z]|ALTER TABLE")
GIVES_COMMAND = re.compile(  # what is filled in has the command
    r"\{[^}]*(?:how_to_|command|ways|_suggest|give_up|recover|RECOVER|accept|by_hand|look|RETRY|PLAN_AGAIN|DEFAULT_REMEDY)"
)
OTHERWISE = {  # how an advice begins that has no command -> what it names in place of one
    "Clear the task '{task_id}' and what follows on the page": "a page of Airflow: its command needs a date",
    "Look at that run: {run_path(dag_id, run_id)}": "a page of Airflow: its command needs a date",
    "Look at that run on its page": "a page of Airflow: its command needs a date",
    "Run it by hand with the arguments in KUBECONFIG": "a file, whose command it is",
    "Its log is damaged": "the table, by whatever has damaged it",
    "Repair the table, or read a copy": "the table, by whatever has damaged it",
}
OTHER_TEXTS = ("testing/contract.py", "cli/__init__.py", "cli/project_files.py")  # tests, help, and a README's steps
FILLED_IN = {  # what is filled in and is more than one word, or one of a few words
    "{which}": "2026 2026 --reason 2026",
    "{_command_arguments(handle)}": "2026 2026",
    "{position}": "--interval 2026 2027",
    "{PIPELINE_FILE}": "2026",
    "{jar_set['name']}": "s3",
    "{folder}": "s3",
    "{store.folder}": "s3",
}
NO_ADVICE = (  # not in the imperative, or what a command says of itself
    "{context['ti'].dag_id}, run {context['ti'].run_id}: task",
    "{self.pipeline}: nothing was planned",
    "Settle a sink that cannot",
    "Leave what cannot be repaired",
    "What every pipeline has done last",
    "As of row {number}",
    "the decision to publish it",
    "it has changed since this process",
    "Nothing to settle",
    "Publish these rows although",
    "Give this sink up?",
    "pipeline, epoch, seen",
)


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module that is no docstring, with the expressions that are filled in."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                ast.unparse(part) if isinstance(part, ast.FormattedValue) else part.value for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def text_of(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else ast.unparse(part)


def all_texts() -> Iterator[tuple[str, str]]:
    """Every text of ours, with its module, or the code that it explains; those of the demo are about its own broker."""
    for explanation in error_codes.read_catalogue().values():
        yield explanation.code, explanation.do
    for path in sorted(SOURCE.rglob("*.py")):
        module = str(path.relative_to(SOURCE))
        if not module.startswith("dev/") and module not in OTHER_TEXTS:
            for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
                for example in airflow_connections.EXAMPLES.values() if "{EXAMPLES" in text else ("",):
                    yield module, text.replace("{EXAMPLES[kind]}", example)


def with_words(module: str, text: str) -> str:
    """A text with words for what is filled in."""
    filled_in = {**FILLED_IN, "{which}": "--epoch 2026", "{only}": ""} if module == "views/story.py" else FILLED_IN
    for expression, words in filled_in.items():
        text = text.replace(expression, words)
    return text


def lacks_command(text: str) -> bool:
    """Whether a text tells people to do what a command does, and neither names nor fills in that command."""
    return " " in text and bool(DEEDS.search(text)) and not COMMAND.search(text) and not GIVES_COMMAND.search(text)


def advised_commands(program: str, text: str) -> Iterator[list[str]]:
    """Commands in a text, as words, up to where the sentence goes on or ends."""
    for start in re.finditer(rf"(?<![\w./-]){program} (?=[a-z])", text):
        words: list[str] = []
        rest = text[start.end() :]
        if text[: start.start()].endswith("`"):
            rest = rest.partition("`")[0]
        for token in re.finditer(r"(?:'[^']*'|\{[^}]*\}+|[^\s{'])+", rest):
            word = token[0].rstrip(".,;:)`")
            is_value = bool(words) and words[-1].startswith("-")
            is_plain = re.fullmatch(r"[a-z]+", word) is not None
            is_subcommand = is_plain and all(re.fullmatch(r"[a-z][a-z-]*", other) for other in words)
            if not word or word.startswith("(") or (is_plain and not is_value and not is_subcommand):
                break
            words.append(word)
            if word != token[0]:
                break
        yield words


def fill(word: str) -> str:
    """Return a word with 2026, which suits any type, for what is filled in or left to the reader."""
    filled = re.sub(r"\{[^}]*\}+|…|^(?:EPOCH|NUMBER|N)$", "2026", word)
    return " ".join(shlex.split(filled)) if "'" in filled else filled


def refusal(words: list[str]) -> str:
    """Why `onceonly` does not accept these words; empty: it does."""
    command: click.Command = main
    arguments = [fill(word) for word in words]
    context = click.Context(main, info_name="onceonly")
    while isinstance(command, click.Group):
        if not arguments:
            return ""
        found = command.get_command(context, arguments[0])
        if found is None:
            return f"no command {arguments[0]}"
        command, arguments = found, arguments[1:]
    try:
        with command.make_context(command.name, arguments, parent=context):
            return ""
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()


def test_advice_names_its_command() -> None:
    lacking = [
        f"{module}: {text}"
        for module, text in all_texts()
        if lacks_command(text) and not text.startswith((*OTHERWISE, *NO_ADVICE))
    ]
    assert lacking == []


@pytest.mark.parametrize("beginning", [*OTHERWISE, *NO_ADVICE])
def test_exceptions_are_still_there(beginning: str) -> None:
    assert any(text.startswith(beginning) and lacks_command(text) for _, text in all_texts())


@pytest.mark.parametrize(
    "text",
    [
        "If the DAG was renamed, pause '{run[0]}'. Nothing was written.",
        "Restore it and recover.",
        "Abort the checkpoint and run it again.",
        "Fix the cause and retry the stage.",
        "Approve it first.",
    ],
)
def test_advice_without_its_command_is_noticed(text: str) -> None:
    assert lacks_command(text)


def test_onceonly_accepts_what_is_advised() -> None:
    refused = {}
    for module, text in all_texts():
        if text.startswith("Recorded"):  # the help of an option, which names a command
            continue
        for words in advised_commands("onceonly", with_words(module, text)):
            why = refusal(words)
            if why:
                refused[f"{module}: onceonly {' '.join(words)}"] = why
    assert refused == {}


def test_airflow_accepts_what_is_advised() -> None:
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    accepted, refused = set(), set()
    for module, text in all_texts():
        for words in advised_commands("airflow", text):
            if len(words) < 2 or words[0] == "kerberos" or words == ["connections", "get"]:
                continue
            try:
                parser.parse_args([fill(word) for word in words])
            except SystemExit:
                refused.add(f"{module}: airflow {' '.join(words)}")
            accepted.add(" ".join(words[:2]))
    assert refused == set()
    assert accepted >= {
        "dags pause", "dags unpause", "dags trigger", "tasks clear", "backfill create", "connections add",
        "variables delete",
    }  # fmt: skip


def test_unknown_option_is_noticed() -> None:
    (words,) = advised_commands("onceonly", "Then: onceonly resolve PIPELINE EPOCH --give-up {sink} --force. Nothing")
    assert words == ["resolve", "PIPELINE", "EPOCH", "--give-up", "{sink}", "--force"]
    assert "--force" in refusal(words)
