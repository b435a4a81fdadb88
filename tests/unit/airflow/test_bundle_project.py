"""The project of a task in a bundle with versions: which folder it is, what is recorded, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises

from onceonly.airflow import bundles
from onceonly.errors import InvalidPipeline
from onceonly.runtime import child_process
from onceonly.settings import Settings

VARIABLES = ("ONCEONLY_PROJECT", "ONCEONLY_CODE_VERSION", "ONCEONLY_STATE", "ONCEONLY_SPOOL", "ONCEONLY_DOCS")


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Airflow keeps a git bundle: the branch's checkout, and those of two versions. The home is elsewhere."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    for checkout in ("tracking_repo", "versions/one", "versions/two"):
        file = tmp_path / "bundle" / checkout / "pipelines" / "jobs" / "orders.py"
        file.parent.mkdir(parents=True)
        file.write_text("raise RuntimeError('plan has no Spark: it must not run this')")
    return tmp_path / "bundle"


def task(storage: Path, version: str | None = "one", subdir: str = "", **changes: Any) -> dict[str, Any]:
    checkout = storage / "versions" / version if version else storage / "tracking_repo"
    bundle = SimpleNamespace(
        name="trips", version=version, path=checkout / subdir, base_dir=storage, supports_versioning=True
    )
    vars(bundle).update(changes)
    return {"ti": SimpleNamespace(bundle_instance=bundle)}


def project() -> Path:
    return Settings.from_env().project


@pytest.mark.parametrize(
    ("asked", "subdir", "followed"),
    [
        ("", "", ""),
        ("", "pipelines", "pipelines"),
        ("pipelines", "", "pipelines"),
        ("..", "pipelines", ""),
        ("{storage}/tracking_repo", "pipelines", ""),
        ("{storage}/tracking_repo/pipelines", "", "pipelines"),
        ("{storage}/versions/two/pipelines", "", "pipelines"),
    ],
)
def test_project_follows_the_version_of_the_run(
    storage: Path, monkeypatch: pytest.MonkeyPatch, asked: str, subdir: str, followed: str
) -> None:
    monkeypatch.setenv("ONCEONLY_PROJECT", asked.format(storage=storage))
    for version in ("one", "two", "one"):  # `dag.test()` runs them all in one process
        bundles.follow_bundle(task(storage, version, subdir))
        assert project() == storage / "versions" / version / followed
        assert os.environ["ONCEONLY_CODE_VERSION"] == f"bundle trips {version}"
        assert bundles.describe_project_elsewhere(task(storage, version, subdir)) == ""
    bundles.follow_bundle(task(storage, None, subdir))  # a DAG with disable_bundle_versioning
    assert project() == storage / "tracking_repo" / followed
    assert os.environ["ONCEONLY_CODE_VERSION"] == ""


def test_a_driver_on_a_cluster_gets_the_project_and_its_version(storage: Path) -> None:
    bundles.follow_bundle(task(storage))
    environment = Settings.from_env().environment()
    assert environment["ONCEONLY_PROJECT"] == str(storage / "versions" / "one")
    assert environment["ONCEONLY_CODE_VERSION"] == "bundle trips one"


def test_a_process_of_its_own_gets_the_project_and_its_version(storage: Path) -> None:
    bundles.follow_bundle(task(storage))
    script = "import os; print(os.environ['ONCEONLY_PROJECT'], os.environ['ONCEONLY_CODE_VERSION'], sep='|')"
    with child_process.start_group([sys.executable, "-c", script], Settings.from_env(), {}) as child:
        printed = child.communicate()[0].strip()
    assert printed == f"{storage / 'versions' / 'one'}|bundle trips one"


def test_version_that_people_set_stays_and_is_of_its_machine(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_CODE_VERSION", "image 7")
    bundles.follow_bundle(task(storage))
    assert os.environ["ONCEONLY_CODE_VERSION"] == "image 7"
    assert "ONCEONLY_CODE_VERSION" not in Settings.from_env().environment()


def test_project_elsewhere_stays_and_is_told(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path / "image"))
    bundles.follow_bundle(task(storage))
    assert project() == tmp_path / "image"
    assert os.environ["ONCEONLY_CODE_VERSION"] == ""
    assert str(tmp_path / "image") in bundles.describe_project_elsewhere(task(storage))


def test_bundle_without_versions_changes_nothing(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_PROJECT", "here")
    local = task(storage, None, supports_versioning=False)
    bundles.follow_bundle(local)
    bundles.follow_bundle({"ti": SimpleNamespace()})
    assert project() == Path.cwd() / "here"
    assert bundles.describe_project_elsewhere(local) == ""
    bundles.refuse_missing_code(local, "nowhere:at_all")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ONCEONLY_HOME", ""),
        ("ONCEONLY_HOME", "{storage}/tracking_repo/.onceonly"),
        ("ONCEONLY_STATE", "file://{storage}/versions/one/state"),
        ("ONCEONLY_SPOOL", "{storage}/spool"),
        ("ONCEONLY_DOCS", "{storage}/docs"),
    ],
)
def test_state_and_data_in_a_checkout_are_refused(
    storage: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value.format(storage=storage))
    with raises(InvalidPipeline, "home-in-bundle", match=variable):
        bundles.follow_bundle(task(storage))


def test_plan_finds_the_transform_without_running_it(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_PROJECT", "pipelines")
    bundles.follow_bundle(task(storage))
    bundles.refuse_missing_code(task(storage), "jobs.orders:clean")
    with raises(InvalidPipeline, "transform-not-importable", match=str(project())):
        bundles.refuse_missing_code(task(storage), "jobs.forgotten:clean")
