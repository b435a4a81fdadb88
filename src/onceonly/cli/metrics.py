"""onceonly metrics: where every pipeline is, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import click

from onceonly.settings import Settings
from onceonly.views import metrics as measured
from onceonly.views import prometheus, queries
from onceonly.views.summary import Lag, Summary, summaries

AT_ONCE = 4  # sources that are asked


@click.command(short_help="Where every pipeline is, for Prometheus.")
@click.option("--lag", is_flag=True, help="Also query the sources for the lag of each pipeline.")
def metrics(lag: bool) -> None:
    """Where every pipeline is, in Prometheus' text format.

    \b
    For example for node_exporter's textfile collector. In Airflow, the page serves
    the same below /onceonly/metrics.
    """
    state = queries.existing(Settings.from_env())
    found, damaged = summaries(state, state.pipelines()) if state else ({}, {})
    lags = _lags(found.values()) if lag else {}
    samples = measured.of_all(found.values(), damaged, datetime.now(UTC), lags)
    click.echo(prometheus.text(samples), nl=False)


def _lags(found: Iterable[Summary]) -> dict[str, Lag | None]:
    from onceonly.runtime import factory
    from onceonly.runtime.lag import behind

    known = list(found)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(partial(behind, factory.LiveParts(Settings.from_env())), known)
        return {each.name: answer for each, answer in zip(known, answers, strict=True)}
