"""Metrics in Prometheus' text format.

Source: Prometheus' docs, "Exposition formats" (text format 0.0.4) and "Metric and label naming".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from onceonly.views.metrics import METRICS, Kind, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENDINGS = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.TIME: "_timestamp_seconds"}


def text(samples: Iterable[Sample]) -> str:
    """The samples of a metric stand together, below what it means."""
    by_metric: dict[Metric, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_metric[sample.metric].append(sample)
    return "".join(line + "\n" for metric in METRICS if metric in by_metric for line in _lines(by_metric[metric]))


def name(metric: Metric) -> str:
    return f"onceonly_{metric.name}{ENDINGS[metric.kind]}"


def _lines(samples: list[Sample]) -> Iterator[str]:
    metric = samples[0].metric
    yield f"# HELP {name(metric)} {metric.meaning}"
    yield f"# TYPE {name(metric)} {'counter' if metric.kind is Kind.COUNTER else 'gauge'}"
    for sample in samples:
        yield f"{name(metric)}{{{_labels(sample.labels)}}} {_number(sample.value)}"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Whole numbers in full; times to the millisecond."""
    return str(int(value)) if value == int(value) else f"{value:.3f}"
