"""The commands by name, each imported when it is used: `onceonly status` should answer at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module

import click


class Commands(MutableMapping[str, click.Command]):
    """A mapping as click takes it; a command is the function of its name (with _ for -) in a module beside this one."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = getattr(import_module(f"onceonly.cli.{self._modules[name]}"), name.replace("-", "_"))
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._modules.setdefault(name, name)
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        self._loaded.pop(name, None)
        del self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)
