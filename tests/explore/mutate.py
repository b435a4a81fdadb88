"""make mutants: each guard is taken out in a process of its own, in memory; ends with 0 when every one is noticed."""

from __future__ import annotations

import importlib.abc
import importlib.util
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import Any

from explore.mutants import MUTANTS, Mutant

MOST = 20_000  # schedules that are tried for one


class Mutated(importlib.abc.Loader):
    """Loads a module whose source is another text than the file's."""

    def __init__(self, path: str, source: str) -> None:
        self._path, self._source = path, source

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._path, "exec"), vars(module))


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._mutant.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_loader(name, Mutated(spec.origin, changed(spec.origin, self._mutant)))


def changed(path: str, mutant: Mutant) -> str:
    """The source without the guard.

    Raises:
        LookupError: the text is not there once: the list has to follow the code.
    """
    with open(path) as file:
        source = file.read()
    if source.count(mutant.text) != 1:
        raise LookupError(f"'{mutant.name}': its text is {source.count(mutant.text)} times in {mutant.module}")
    return source.replace(mutant.text, mutant.instead)


def hunt(mutant: Mutant) -> tuple[bool, str]:
    """In a fresh process: whether its scenario notices, and by which schedule."""
    sys.meta_path.insert(0, Finder(mutant))
    from explore.scenarios import by_name
    from explore.search import Search

    found = Search(by_name(mutant.seen_by), most=MOST).run()
    numbers = f"{found.schedules} schedules, {found.seconds:.1f} s"
    if not found.violations:
        return False, f"NOT FOUND by {mutant.seen_by} in {numbers}"
    first = found.violations[0]
    return True, f"{first.id}  ({numbers})\n      {first.what[0].splitlines()[0]}"


def main(names: Sequence[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    spawn, missed = multiprocessing.get_context("spawn"), 0
    with ProcessPoolExecutor(2, spawn, max_tasks_per_child=1) as pool:
        for mutant, (noticed, how) in zip(chosen, pool.map(hunt, chosen), strict=True):
            print(f"{'found ' if noticed else 'MISSED'} {mutant.name}\n      {how}", flush=True)
            missed += not noticed
    print(f"{len(chosen) - missed} of {len(chosen)} mutants found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
