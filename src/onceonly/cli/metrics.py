"""onceonly metrics: where every pipeline is, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import click

from onceonly.settings import Settings
from onceonly.views import metrics as measured
from onceonly.views import queries
from onceonly.views.summary import Lag, Summary, read_summaries

MAX_PIPELINES_AT_ONCE = 4  # whose sources are asked


@click.command(short_help="Where every pipeline is, for Prometheus.")
@click.option("--lag", is_flag=True, help="Also query the sources for the lag of each pipeline.")
def metrics(lag: bool) -> None:
    """Where every pipeline is, in Prometheus' text format.

    \b
    For example for node_exporter's textfile collector. In Airflow, the page serves
    the same below /onceonly/metrics.
    """
    state = queries.find_state_table(Settings.from_env())
    summary_by_name, damaged = read_summaries(state, state.pipelines()) if state else ({}, {})
    lags = _read_lags(list(summary_by_name.values())) if lag else {}
    samples = measured.list_samples(summary_by_name.values(), damaged, datetime.now(UTC), lags)
    click.echo(measured.format_for_prometheus(samples), nl=False)


def _read_lags(pipelines: Sequence[Summary]) -> dict[str, Lag | None]:
    """Ask the sources, several at once, and return the lag of each pipeline by name."""
    from onceonly.runtime import live_services
    from onceonly.runtime.lag import behind

    with ThreadPoolExecutor(MAX_PIPELINES_AT_ONCE) as pool:
        lags = pool.map(partial(behind, live_services.LiveServices(Settings.from_env())), pipelines)
        return {pipeline.name: lag for pipeline, lag in zip(pipelines, lags, strict=True)}
