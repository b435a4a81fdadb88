"""Metrics in Prometheus' text format.

Source: Prometheus' docs, "Exposition formats" (text format 0.0.4) and "Metric and label naming".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from onceonly.views.metrics import METRICS, Kind, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SUFFIXES = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.TIME: "_timestamp_seconds"}


def text(samples: Iterable[Sample]) -> str:
    """Return the samples as a page for Prometheus: those of a metric stand together, below what it means."""
    by_metric: dict[Metric, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_metric[sample.metric].append(sample)
    lines: list[str] = []
    for metric in METRICS:
        if metric in by_metric:
            lines += _lines(metric, by_metric[metric])
    return "".join(lines)


def name(metric: Metric) -> str:
    """Return the name under which Prometheus knows a metric."""
    return f"onceonly_{metric.name}{SUFFIXES[metric.kind]}"


def _lines(metric: Metric, samples: list[Sample]) -> Iterator[str]:
    """Yield the lines of one metric, each with its line end."""
    kind = "counter" if metric.kind is Kind.COUNTER else "gauge"
    yield f"# HELP {name(metric)} {metric.meaning}\n"
    yield f"# TYPE {name(metric)} {kind}\n"
    for sample in samples:
        yield f"{name(metric)}{{{_labels(sample.labels)}}} {_number(sample.value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())


def _escape(value: str) -> str:
    """Escape what would end a label's value or its line."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Return whole numbers in full, times to the millisecond."""
    if value == int(value):
        return str(int(value))
    return f"{value:.3f}"
