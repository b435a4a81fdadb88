"""A git repository as Airflow's bundle: the provider's, where it is installed; else one with the same folders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.dag_processing.bundles.base import BaseDagBundle
else:
    try:
        from airflow.dag_processing.bundles.base import BaseDagBundle
    except ImportError:  # collected without Airflow
        BaseDagBundle = object

PROVIDER = "airflow.providers.git"
WHO = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *WHO, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def configure(name: str, repository: Path, storage: Path) -> Mapping[str, str]:
    """Return the variables of an Airflow that takes its DAGs from there, and looks for a new commit every second."""
    classpath = f"{PROVIDER}.bundles.git.GitDagBundle" if has_provider() else f"{__name__}.GitBundle"
    options = {"repo_url": str(repository), "tracking_ref": "main", "subdir": "dags", "refresh_interval": 1}
    return {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [{"name": name, "classpath": classpath, "kwargs": options}]
        ),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(storage),
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    }


def has_provider() -> bool:
    try:
        return find_spec(PROVIDER) is not None
    except ImportError:
        return False


class GitBundle(BaseDagBundle):
    """A repository on this machine: `tracking_repo` follows the branch, `versions/COMMIT` is a checkout of a commit."""

    supports_versioning = True

    def __init__(self, *, repo_url: str, tracking_ref: str, subdir: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.repo_url, self.tracking_ref, self.subdir = repo_url, tracking_ref, subdir

    @property
    def path(self) -> Path:
        return self.checkout / self.subdir

    @property
    def checkout(self) -> Path:
        folder: Path = self.versions_dir / self.version if self.version else self.base_dir / "tracking_repo"
        return folder

    def initialize(self) -> None:
        with self.lock():
            if not self.checkout.exists():
                self.checkout.parent.mkdir(parents=True, exist_ok=True)
                git(Path(self.repo_url), "clone", "-q", self.repo_url, str(self.checkout))
            if self.version:
                git(self.checkout, "checkout", "-q", self.version)
        super().initialize()

    def get_current_version(self) -> Any:
        version = git(self.checkout, "rev-parse", "HEAD")
        try:
            from airflow.dag_processing.bundles.base import BundleVersion
        except ImportError:  # before Airflow 3.3
            return version
        return BundleVersion(version)

    def refresh(self) -> None:
        with self.lock():
            git(self.checkout, "fetch", "-q")
            git(self.checkout, "reset", "-q", "--hard", f"origin/{self.tracking_ref}")
