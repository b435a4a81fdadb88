"""Which code a definition may name: a row of the state table must not be able to run what it likes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.runtime import transforms
from onceonly.settings import Settings

RAN = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n\ndef same(batch):\n    return batch\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def settings(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield Settings.from_env({"ONCEONLY_PROJECT": str(project)})
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str = RAN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("module", ["own_one", "own_folder.two", "own_package.inner.three"])
def test_the_projects_own_code_is_loaded(project: Path, settings: Settings, module: str) -> None:
    write(project / "own_package" / "__init__.py", "")
    write(project / Path(*module.split(".")).with_suffix(".py"))
    assert transforms.load(f"{module}:same", settings)(1) == 1


@pytest.mark.parametrize("dotted", ["os:system", "subprocess:run", "builtins:exec", "posix:system", "pytest:main"])
def test_whatever_else_is_installed_is_not(settings: Settings, dotted: str) -> None:
    with raises(InvalidPipeline, "transform-foreign") as refused:
        transforms.load(dotted, settings)
    assert "ONCEONLY_TRANSFORMS" in refused.value.todo


def test_nor_an_environment_within_the_project(project: Path, settings: Settings) -> None:
    place = project / ".venv" / "lib" / "python3" / "site-packages"
    file = write(place / "within_venv.py")
    sys.path.insert(0, str(place))
    with raises(InvalidPipeline, "transform-foreign"):
        transforms.load("within_venv:same", settings)
    assert not file.with_suffix(".ran").exists()


def test_nor_what_a_link_of_the_project_leads_to(tmp_path: Path, project: Path, settings: Settings) -> None:
    file = write(tmp_path / "elsewhere" / "linked.py")
    (project / "linked.py").symlink_to(file)
    with raises(InvalidPipeline, "transform-foreign"):
        transforms.load("linked:same", settings)
    assert not list(tmp_path.rglob("*.ran"))


def test_nor_what_a_module_of_the_project_has_imported(project: Path, settings: Settings) -> None:
    write(project / "importing.py", "from os import system\nfrom subprocess import Popen\n")
    for name in ("system", "Popen"):
        with raises(InvalidPipeline, "transform-foreign"):
            transforms.load(f"importing:{name}", settings)


def test_code_elsewhere_is_not_even_run(tmp_path: Path, settings: Settings) -> None:
    package = write(tmp_path / "elsewhere" / "foreign_package" / "__init__.py")
    write(tmp_path / "elsewhere" / "foreign_package" / "inner.py")
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    with raises(InvalidPipeline, "transform-foreign", match="'foreign_package' comes from"):
        transforms.load("foreign_package.inner:same", settings)
    assert not package.with_suffix(".ran").exists()


def test_a_package_that_the_settings_name_is_loaded(tmp_path: Path, settings: Settings) -> None:
    write(tmp_path / "elsewhere" / "team_package" / "__init__.py", "")
    write(tmp_path / "elsewhere" / "team_package" / "inner.py")
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    named = replace(settings, transforms=("team_package.inner",))
    assert transforms.load("team_package.inner:same", named)(1) == 1
    with raises(InvalidPipeline, "transform-foreign"):
        transforms.load("team_package:inner", named)


def test_a_project_behind_a_link_is_the_project(tmp_path: Path, project: Path, settings: Settings) -> None:
    write(project / "behind_link.py")
    (tmp_path / "link").symlink_to(project)
    linked = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path / "link")})
    assert transforms.load("behind_link:same", linked)(1) == 1


def test_a_missing_module_is_reported_as_such(settings: Settings) -> None:
    with raises(InvalidPipeline, "transform-not-importable"):
        transforms.load("not_there.at_all:same", settings)


def test_an_error_of_its_module_names_the_line(project: Path, settings: Settings) -> None:
    write(project / "dividing.py", "one = 1\ntwo = one / 0\n")
    with raises(InvalidPipeline, "transform-not-importable", match=r"ZeroDivisionError: .*dividing\.py, line 2\)"):
        transforms.load("dividing:same", settings)


def test_without_pyspark_it_names_the_extra(project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project / "sparkling.py", "import pyspark\n")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with raises(InvalidPipeline, "transform-not-importable", match=r"pip install 'onceonly\[spark\]'"):
        transforms.load("sparkling:same", settings)


def test_the_setting_goes_along_to_other_machines() -> None:
    env = {"ONCEONLY_TRANSFORMS": "team.flights, other", "ONCEONLY_PROJECT": os.curdir}
    assert Settings.from_env(env).transforms == ("team.flights", "other")
    assert Settings.from_env(Settings.from_env(env).environment()).transforms == ("team.flights", "other")


def test_nor_the_standard_library_of_a_project_that_is_above_it(settings: Settings) -> None:
    whole_disk = replace(settings, project=Path("/"))
    with raises(InvalidPipeline, "transform-foreign"):
        transforms.load("shutil:rmtree", whole_disk)
