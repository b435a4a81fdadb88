"""How Spark is told of S3: by the environment that delta-rs reads, and never of a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.spark.test_jars import put

from onceonly.filesystems.paths import spark_uri
from onceonly.settings import Settings
from onceonly.spark import jars, s3
from onceonly.spark.conf import conf

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": "hidden"}
PLACE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-west-1"}


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    put(tmp_path / "s3", *(jar.file for jar in jars.listed("s3")))
    return tmp_path


def test_a_server_of_one_s_own_is_asked_by_path(tmp_path: Path) -> None:
    assert s3.conf(tmp_path, PLACE) == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
    }
    by_host = s3.conf(tmp_path, PLACE | {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
    assert by_host["spark.hadoop.fs.s3a.path.style.access"] == "false"


def test_without_an_environment_nothing_is_said(tmp_path: Path) -> None:
    assert s3.conf(tmp_path, {}) == {}


def test_no_key_is_a_setting(fetched: Path) -> None:
    said = s3.conf(fetched, PLACE | KEYS)
    assert not [value for value in said.values() if "hidden" in value or "AKIA" in value]
    assert "ProfileCredentialsProvider" in said["spark.hadoop.fs.s3a.aws.credentials.provider"]


def test_what_spark_s_own_file_says_stays(fetched: Path) -> None:
    (fetched / "spark-defaults.conf").write_text("spark.hadoop.fs.s3a.endpoint  https://s3.example.com\n")
    said = s3.conf(fetched, PLACE | {"SPARK_CONF_DIR": str(fetched)})
    assert "spark.hadoop.fs.s3a.endpoint" not in said
    assert said["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"


def test_who_has_not_fetched_the_jars_does_not_have_them_on_a_class_path(fetched: Path, tmp_path: Path) -> None:
    with_them = Settings.from_env({"ONCEONLY_JARS": str(fetched)})
    without = Settings.from_env({"ONCEONLY_JARS": str(tmp_path / "other")})
    assert len(conf(with_them)["spark.jars"].split(",")) == len(jars.listed("s3"))
    assert "spark.jars" not in conf(without)


def test_the_jars_are_of_the_hadoop_that_pyspark_brings() -> None:
    known = {jar.name: jar.revision for jar in jars.listed("s3")}
    assert list(jars.ivy_jar().parent.glob(f"hadoop-client-api-{known['hadoop-aws']}.jar"))
    of_the_sdk = {jar.revision for jar in jars.listed("s3") if jar.org == "software.amazon.awssdk"}
    assert len(of_the_sdk) == 1


def test_what_pyspark_brings_is_not_fetched_again() -> None:
    """Two revisions of one library on a class path exclude each other."""
    there = {file.stem.rpartition("-")[0] for file in jars.ivy_jar().parent.glob("*.jar")}
    assert not [jar.name for jar in jars.listed("s3") if jar.name in there]


@pytest.mark.parametrize("uri", ["s3://lake/x", "s3a://lake/x"])
def test_spark_has_its_own_name_for_s3(uri: str) -> None:
    assert spark_uri(uri) == "s3a://lake/x"
    assert spark_uri("/lake/s3://x") == "/lake/s3://x"


def test_who_checks_a_pipeline_is_told_of_the_jars_for_s3(fetched: Path, tmp_path: Path) -> None:
    places = ["lake/flights", "s3://lake/flights"]
    assert s3.notes(tmp_path / "other", ["lake/flights"], {}) == []
    assert "onceonly jars fetch s3" in s3.notes(tmp_path / "other", places, {})[0]
    assert s3.notes(fetched, places, {}) == [f"Spark's jars for S3: {fetched}/s3"]


@pytest.mark.parametrize("said", s3.MISSING)
def test_a_stage_without_the_jars_says_which(said: str) -> None:
    assert s3.is_missing(RuntimeError(f"java.lang.RuntimeException: {said}"))
    assert not s3.is_missing(RuntimeError("the transform fails"))
    assert "onceonly jars fetch s3" in str(s3.missing("flights epoch 1 could not be staged."))
