"""A collector of OpenTelemetry metrics: what processes send by OTLP over HTTP, kept."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


@dataclass
class Collector:
    """The last value of each metric by name and tags, of the processes that have ended since `clear`."""

    port: int
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """For a process of Airflow."""
        return {"AIRFLOW__METRICS__OTEL_ON": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    def keep(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._keep(metric)

    def _keep(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            tags = sorted(attribute.value.string_value for attribute in point.attributes)
            value = getattr(point, "sum", 0.0) if "istogram" in kind else point.as_int or point.as_double
            self.values[metric.name.removeprefix("airflow."), *tags] = value


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector(0)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            if self.path.endswith("/metrics"):
                kept.keep(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield kept
    server.shutdown()
    server.server_close()
