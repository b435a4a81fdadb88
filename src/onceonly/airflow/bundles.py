"""The project of a task whose DAG comes from a bundle with versions: it follows the version of the task's run.

A run of a git bundle has a version, and so its own checkout. A run that is cleared on its original version gets that
one again. So the project is no fixed folder there: before a task does anything, ONCEONLY_PROJECT of its process becomes
the folder of the project in the checkout of the run. What the task starts, inherits it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.runtime.code_version import VARIABLE as VERSION
from onceonly.settings import BUNDLE_VERSION, Settings
from onceonly.storage.paths import local_path

PROJECT = "ONCEONLY_PROJECT"
_replaced: dict[str, str] = {}  # what was set here -> what people had set. `dag.test()` runs several tasks in a process


@dataclass(frozen=True)
class Checkout:
    """The files of a bundle as the run of a task has them."""

    bundle: str
    version: str | None  # None: whatever is checked out, as versions are switched off for the DAG
    path: Path  # the bundle's folder
    root: Path  # the checkout's: the bundle may be a folder in it
    storage: Path  # where Airflow keeps the checkouts of this bundle, and removes old ones

    def __str__(self) -> str:
        return f"bundle '{self.bundle}'" + (f" (version {self.version})" if self.version else "")

    def find_project(self, asked: str) -> Path:
        """Return the project's folder: in this checkout, unless `asked` is an absolute path elsewhere.

        Args:
            asked: ONCEONLY_PROJECT as people have set it. The same folder in another checkout of the bundle, such as
                the one that follows the branch, means the one in this checkout.
        """
        project = (self.path / asked).resolve()
        if project.is_relative_to(self.root) or not project.is_relative_to(self.storage):
            return project
        return self.root.joinpath(*project.parts[len(_find_root(self.storage, project).parts) :])


def find_checkout(context: Any) -> Checkout | None:
    """Return the checkout of the task's run; None where its DAG is of a bundle without versions, as a local folder."""
    bundle = getattr(context["ti"], "bundle_instance", None)
    if bundle is None or not getattr(bundle, "supports_versioning", False):
        return None
    path, storage = Path(bundle.path).resolve(), Path(bundle.base_dir).resolve()
    return Checkout(bundle.name, bundle.version, path, _find_root(storage, path), storage)


def _find_root(storage: Path, path: Path) -> Path:
    """Return the checkout that a path lies in: Airflow has them in `versions`, or beside it; else the path itself."""
    for folder in (storage / "versions", storage):
        if path.is_relative_to(folder) and path != folder:
            return folder / path.relative_to(folder).parts[0]
    return path


def follow_bundle(context: Any) -> None:
    """Let this process, and what it starts, use the project as the run of the task has it; and record its version.

    Raises:
        InvalidPipeline: state, staged rows or targets would be in a checkout.
    """
    asked_project, asked_version = _undo(PROJECT), _undo(VERSION)
    checkout = find_checkout(context)
    if checkout is None:
        return
    project = checkout.find_project(asked_project)
    is_followed = project.is_relative_to(checkout.root)
    if is_followed and not os.environ.get("ONCEONLY_HOME"):
        raise _home_in_bundle_error(checkout, "ONCEONLY_HOME", "It is not set, so it would be below the project.")
    _set(PROJECT, str(project))
    _refuse_data_in_bundle(checkout, Settings.from_env())
    if is_followed and checkout.version and not asked_version:
        _set(VERSION, f"{BUNDLE_VERSION}{checkout.bundle} {checkout.version}")


def _undo(variable: str) -> str:
    """Set a variable back to what people had set, and return that."""
    value = os.environ.get(variable, "")
    if value and f"{variable}={value}" in _replaced:
        value = os.environ[variable] = _replaced[f"{variable}={value}"]
    return value


def _set(variable: str, value: str) -> None:
    before = os.environ.get(variable, "")
    if value != before:
        _replaced[f"{variable}={value}"] = before
        os.environ[variable] = value


def _refuse_data_in_bundle(checkout: Checkout, settings: Settings) -> None:
    """Refuse what a version of the bundle would have for itself, and Airflow would remove with it."""
    data = {
        "ONCEONLY_HOME": str(settings.home),
        "ONCEONLY_STATE": settings.state,
        "ONCEONLY_SPOOL": settings.spool,
        "ONCEONLY_DOCS": settings.docs,
    }
    for variable, uri in data.items():
        path = local_path(uri)
        if path is None:
            continue
        folder = path.resolve()
        if folder.is_relative_to(checkout.storage) or folder.is_relative_to(checkout.root):
            raise _home_in_bundle_error(checkout, variable, f"It is {path}.")


def _home_in_bundle_error(checkout: Checkout, variable: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{variable} would be in a checkout of Airflow's {checkout}.",
        f"{why} Each version of a bundle has a folder of its own, which Airflow cleans and removes.",
        f"Set {variable} to a folder outside of {checkout.storage}, the same for every process, and move there what is "
        f"in the old one ({name_page('bundles')}). Nothing was written.",
        code="home-in-bundle",
    )


def describe_project_elsewhere(context: Any) -> str:
    """Return what to tell people of a project that does not follow the bundle of the task; empty if it does."""
    checkout, project = find_checkout(context), Settings.from_env().project.resolve()
    if checkout is None or project.is_relative_to(checkout.root):
        return ""
    return (
        f"the project {project} is not in Airflow's {checkout}, so its code is what is there now, whatever version the "
        f"run has. To follow the run, leave {PROJECT} empty, or relative to the bundle ({name_page('bundles')})."
    )


def refuse_missing_code(context: Any, dotted: str) -> None:
    """Refuse a transform that the project of this run has not got. Its module is looked for, not run.

    Raises:
        InvalidPipeline: there is no such module, or it is not of the project.
    """
    from onceonly.runtime import transforms

    if find_checkout(context):
        transforms.refuse_missing(dotted, Settings.from_env())
