"""Both writers of Kafka sinks: a module that takes `by_each_writer` runs with Spark's JVM, and with Python workers."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

VARIABLE = "ONCEONLY_KAFKA_WRITER"
WRITERS = [pytest.param("jvm", id="by-jvm"), pytest.param("python", id="by-python", marks=pytest.mark.heavy)]
by_each_writer = pytest.mark.parametrize("kafka_writer", WRITERS, indirect=True)


def environment() -> Mapping[str, str]:
    """Return what this test has chosen, for the environment of a project; nothing if it has not."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
