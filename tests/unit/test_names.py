"""Names and expressions as CONTRIBUTING.md asks for them: a reader needs nobody beside him."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "onceonly"
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {module: ast.parse(module.read_text(encoding="utf-8")) for module in MODULES}
LINES = sum(len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES)
VAGUE = {  # how a value was come by, not what it is; `seen` is the option of that name, `left` stands beside `right`
    *("asked", "each", "found", "given", "held", "kept", "known", "made", "mine", "named", "others", "ours"),
    *("said", "shown", "taken", "there", "told", "wanted", "whole"),
}
PARTICIPLE = re.compile(r"[a-z]+(?:ed|own|ept|old|aid|ade|een|und|iven|aken)")
PREPOSITIONS = {
    *("above", "again", "alone", "at", "before", "below", "beside", "both", "by", "every", "few", "here", "mine"),
    *("more", "now", "of", "others", "past", "rest", "same", "shared", "since", "there", "until", "what", "when"),
    *("where", "whole", "within"),
}
NO_PARTICIPLES = {
    *("accept", "background", "bound", "embed", "feed", "find", "fold", "ground", "hold", "need", "round"),
    *("shorten", "sound", "token", "unfold"),
}
OTHERS_NAMES = {"closed", "down", "published"}  # of Python's files, of docker, of a target in the contract suite
MAX_HOMES = 2  # modules that may define a constant or a class of one name
SHARED_NAMES = {"T", "P", "R"}  # type variables
MAX_COMPREHENSIONS, MAX_CONDITIONALS = 15, 10  # per 1,000 lines
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def place_of(module: Path, node: ast.AST) -> str:
    return f"{module.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"


def functions(module: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            yield node


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_function_is_a_verb_phrase(module: Path) -> None:
    bare = []
    for function in functions(module):
        name = function.name.strip("_")
        if "_" in name or name in NO_PARTICIPLES | OTHERS_NAMES:
            continue
        if PARTICIPLE.fullmatch(name) or name in PREPOSITIONS:
            bare.append(f"{place_of(module, function)} {function.name}")
    assert bare == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_variable_is_named_after_the_thing_in_it(module: Path) -> None:
    vague = [
        f"{place_of(module, node)} {node.id}"
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    ]
    assert vague == []


def test_a_name_has_one_meaning() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(str(module.relative_to(SOURCE)))
            elif (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
            ):
                homes[node.targets[0].id].add(str(module.relative_to(SOURCE)))
    several = {name: sorted(modules) for name, modules in homes.items() if len(modules) > MAX_HOMES}
    assert {name: modules for name, modules in several.items() if name not in SHARED_NAMES} == {}


def test_expressions_are_unfolded() -> None:
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    conditionals = sum(isinstance(node, ast.IfExp) for node in nodes)
    assert comprehensions * 1000 / LINES <= MAX_COMPREHENSIONS
    assert conditionals * 1000 / LINES <= MAX_CONDITIONALS
