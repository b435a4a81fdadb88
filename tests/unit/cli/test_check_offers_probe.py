"""check offers a probe of each storage that was never probed, and stays content."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceonly import DeltaSink, FileSink, KafkaSink, KafkaSource, Pipeline
from onceonly.cli.check import _offer_probes as offer_probes
from onceonly.probe import mounts, results
from onceonly.settings import Settings

LAKE = "s3://lake/flights"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"ONCEONLY_HOME": str(tmp_path)})


def pipeline(*paths: str) -> Pipeline:
    sinks = [DeltaSink(f"sink{number}", path) for number, path in enumerate(paths)]
    return Pipeline(name="flights", source=KafkaSource("flights"), transform="a:b", sinks=[*sinks, FileSink("f", "f")])


def test_each_store_is_offered_once(settings: Settings) -> None:
    offers = offer_probes(pipeline(LAKE, "s3a://lake/other", "hdfs://name:8020/x"), settings)
    assert offers == [LAKE, "hdfs://name:8020/x"]


def test_what_was_probed_is_not_offered(settings: Settings) -> None:
    results.keep(settings.home, {"place": results.name_storage("s3://lake/anywhere")})
    assert offer_probes(pipeline(LAKE), settings) == []


def test_another_server_is_another_place(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    results.keep(settings.home, {"place": results.name_storage(LAKE)})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:secret@127.0.0.1:9000")
    assert results.name_storage(LAKE) == "s3://lake 127.0.0.1:9000"
    assert offer_probes(pipeline(LAKE), settings) == [LAKE]


@pytest.mark.parametrize(("kind", "is_shared"), [("nfs4", True), ("fuse.s3fs", True), ("ext4", False)])
def test_a_network_file_system_is_shared(kind: str, is_shared: bool) -> None:
    assert mounts.is_shared(mounts.Mount("/mnt", kind, frozenset())) is is_shared


def test_brokers_elsewhere_are_offered(settings: Settings) -> None:
    sinks = [KafkaSink("a", topic="a", connection="east"), KafkaSink("b", topic="b", bootstrap="127.0.0.1:9092")]
    written = Pipeline(name="flights", source=KafkaSource("flights"), transform="a:b", sinks=sinks)
    assert offer_probes(written, settings) == ["kafka://east"]
    results.keep(settings.home, {"place": results.name_brokers("east")})
    assert offer_probes(written, settings) == []


def test_the_spool_of_kafka_sinks_is_offered(tmp_path: Path) -> None:
    settings = Settings.from_env({"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_SPOOL": "s3://spools/x"})
    written = Pipeline(
        name="flights", source=KafkaSource("flights"), transform="a:b", sinks=[KafkaSink("a", topic="a")]
    )
    assert offer_probes(written, settings) == ["s3://spools/x"]
