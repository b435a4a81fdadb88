"""The pytest plugin: it runs the contract suite on a sink, without a test file.

    pytest -p onceonly.testing.plugin --onceonly-sink MODULE:TARGET

It has no entry point: of a package that has one, pytest rewrites the asserts of every module, also of those whose
functions are sent to Spark's workers.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onceonly.testing.targets import Target

OPTION = "--onceonly-sink"
SUITE = Path(__file__).with_name("plugin_suite.py")
HOW_TO_NAME = (
    f"Give {OPTION} MODULE:TARGET, such as sqlite_target:Database: a subclass of onceonly.testing.contract.Target."
)

chosen: list[type[Target]] = []  # for the suite, whose classes pytest makes without telling them of its options


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("onceonly").addoption(
        OPTION,
        metavar="MODULE:TARGET",
        help="Try this target by the contract suite of Onceonly's sinks: a subclass of "
        "onceonly.testing.contract.Target, which is called with a path at which nothing is yet.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suite: beside the paths that were given, or in place of those that pytest would look in."""
    name = config.getoption(OPTION)
    if not name:
        return
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    if str(SUITE) not in config.args:
        config.args.append(str(SUITE))
    chosen.append(load_target(name))


def load_target(name: str) -> type[Target]:
    """Return the class that the option names.

    Raises:
        pytest.UsageError: there is no such module or class, or it is no Target.
    """
    from onceonly.testing.targets import Target

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise pytest.UsageError(f"{OPTION} {name}: this is no MODULE:TARGET. {HOW_TO_NAME}")
    if os.getcwd() not in sys.path:  # the command `pytest`, other than `python -m pytest`, does not look here
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"{OPTION} {name}: {error}. {HOW_TO_NAME}") from error
    if not (isinstance(target, type) and issubclass(target, Target)):
        raise pytest.UsageError(f"{OPTION} {name}: this is no subclass of Target. {HOW_TO_NAME}")
    return target
