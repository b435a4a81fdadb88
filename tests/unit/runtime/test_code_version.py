"""Which code made the rows of an attempt: what is recorded of it, and what people are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from unit.world import World

from onceonly.checkpoint.model import Claim
from onceonly.runtime.code_version import VARIABLE, describe_code
from onceonly.views import descriptions, queries


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    for name in ("jobs/transforms.py", "schemas/trips.json", "dags/trips.py"):
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True)
        file.write_text("one")
    return tmp_path / "project"


def git(project: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", "-C", str(project), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_commit_is_named_with_whether_its_code_was_changed(project: Path) -> None:
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "one")
    code = describe_code(project)
    assert code["version"] == f"git {git(project, 'rev-parse', 'HEAD')}"
    assert code["clean"] is True
    (project / "dags" / "trips.py").write_text("two")
    assert describe_code(project) == code  # no code that makes rows
    (project / "jobs" / "transforms.py").write_text("two")
    changed = describe_code(project)
    assert (changed["version"], changed["clean"]) == (code["version"], False)
    assert changed["digest"] != code["digest"]


def test_a_digest_is_of_names_and_contents(project: Path) -> None:
    digests = {describe_code(project)["digest"]}
    (project / "jobs" / "transforms.py").rename(project / "jobs" / "others.py")
    digests.add(describe_code(project)["digest"])
    (project / "jobs" / "others.py").write_text("two")
    digests.add(describe_code(project)["digest"])
    assert len(digests) == 3
    (project / "jobs" / "others.pyc").write_text("compiled")
    assert describe_code(project)["digest"] in digests


def test_without_a_repository_or_code_nothing_fails(project: Path, tmp_path: Path) -> None:
    assert set(describe_code(project)) == {"digest"}
    assert describe_code(tmp_path / "nowhere") == {}


def test_a_version_that_is_given_is_recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bundle trips one")
    assert describe_code(project)["version"] == "bundle trips one"


def test_attempts_of_different_code_say_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plan()
    one, two = ({"version": f"git {'ab' * 20}", "clean": False, "digest": digest} for digest in ("d1", "d2"))
    for code in (one, one, two):
        world.coordinator._stager.claim("flights", 1, None, None, code)
        told = descriptions.describe_other_code(world.now(1))
        assert bool(told) == (code is two)
        world.coordinator.abort("flights", 1, "again")
    assert "1 and 2, then 3" in told
    claims = world.now(1).claims
    assert claims[3].code == two
    assert descriptions.describe_code(claims[1]) == "git abababababab, changed since; jobs/ and schemas/ d1"
    assert [attempt["code"] for attempt in queries.full_json(world.now(1), [])["attempts"]] == [one, one, two]


def test_a_claim_of_unknown_code_is_as_before() -> None:
    claim = Claim("ab", "s", "host:1")
    assert "code" not in claim.to_json()
    assert descriptions.describe_code(claim) == "-"
    assert Claim(**claim.to_json()) == claim
