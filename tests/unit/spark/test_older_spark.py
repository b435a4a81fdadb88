"""What an older Spark lacks is said before any work; and each series of Spark has jars of its own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from codes import raises
from unit.spark.test_jars import names, put

from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.spark import arrow, check, jars, jvm_jar

ROOT = Path(__file__).parents[3]


def installed(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for module in (arrow, check, jars):
        monkeypatch.setattr(module, "version", lambda name: version)


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5"])
def test_functions_of_arrow_s_arrays_are_asked_for(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(monkeypatch, version)
    with raises(InvalidPipeline, "pyspark-unsupported", match=f"PySpark {version} cannot read or write"):
        arrow.require()
    with raises(InvalidPipeline, "pyspark-unsupported"):
        arrow.udf(lambda values: values, "binary")
    installed(monkeypatch, "4.1.0")
    arrow.require()


def test_a_connect_server_is_asked_for_by_spark_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path), "SPARK_REMOTE": "sc://127.0.0.1:9"})
    installed(monkeypatch, "3.5.9")
    with raises(InvalidPipeline, "pyspark-unsupported", match=r"Connect cannot be used with pyspark 3\.5\.9"):
        check.notes(settings, {})
    installed(monkeypatch, "4.0.5")
    with raises(InvalidPipeline, "spark-unreachable"):
        check.notes(settings, {})


def test_the_jars_are_those_of_the_installed_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each series has the same kinds of them, of one Delta, for its own Scala and Spark."""
    for series in jars.series():
        installed(monkeypatch, f"{series}.0")
        found = {jar.name: jar for jar in jars.list_jars("spark")}
        assert len(found) == 7
        scala, delta = ("2.12", "delta-spark_2.12") if series == "3.5" else ("2.13", f"delta-spark_{series}_2.13")
        assert found[delta].revision == found["delta-storage"].revision
        assert found[f"spark-sql-kafka-0-10_{scala}"].revision.startswith(f"{series}.")
        assert f"spark-avro_{scala}" in found


def test_an_unknown_spark_is_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, "4.9.0")
    with raises(InvalidPipeline, "pyspark-unsupported", match=r"pyspark 4\.9\.0 is not supported") as refused:
        check.notes(Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}), {})
    assert ", ".join(jars.series()) in refused.value.why


def test_another_spark_s_jars_make_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, "3.5.9")
    put(tmp_path / "spark", "mine-1.jar", *(jar.file for jar in jars.list_jars("spark")))
    installed(monkeypatch, "4.2.0")
    monkeypatch.setattr(jars, "_retrieve", lambda base, folders, into, settings: put(into / "spark-4.2", *ours()))
    jars.fetch(tmp_path, ["spark"])
    assert names(tmp_path / "spark") == {"mine-1.jar", jvm_jar.JAR_NAME, *ours()}


def ours() -> list[str]:
    return [jar.file for jar in jars.list_jars("spark")]


def test_the_extra_accepts_the_sparks_that_have_jars() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (accepted,) = (re.search(r">=([\d.]+),<([\d.]+)", each) for each in extras["spark"] if "pyspark" in each)
    assert accepted is not None
    first, last = jars.series()[0], jars.series()[-1]
    assert accepted[1] == first
    assert accepted[2] == f"{last.partition('.')[0]}.{int(last.partition('.')[2]) + 1}"
