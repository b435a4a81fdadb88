"""A checkpoint that changes a thousand keys, with a million of them held, against ten thousand."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from benchmarks.world import TOPIC, whole, world
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink, StateSink
from onceonly.pipeline.sources import KafkaSource

CHANGED = 1_000
HELD = {"few": 10_000, "many": 1_000_000}


def seed(batch, number):  # type: ignore[no-untyped-def]
    """As many keys as are to be held; nothing for the other sink."""
    return batch.limit(0).selectExpr("0L AS n"), batch.sparkSession.range(number).selectExpr("id AS n", "1L AS seen")


def seed_few(batch, state):  # type: ignore[no-untyped-def]
    return seed(batch, HELD["few"])


def seed_many(batch, state):  # type: ignore[no-untyped-def]
    return seed(batch, HELD["many"])


def totals_few(batch, state):  # type: ignore[no-untyped-def]
    return totals(batch, state, HELD["few"])


def totals_many(batch, state):  # type: ignore[no-untyped-def]
    return totals(batch, state, HELD["many"])


def totals(batch, state, held):  # type: ignore[no-untyped-def]
    """How often each key was seen; keys are spread over all that are held."""
    keys = batch.selectExpr(f"pmod(xxhash64(key), {held}) AS n").groupBy("n").count()
    now = keys.join(state, "n", "left").selectExpr("n", "count + coalesce(seen, 0) AS seen")
    return now.select("n"), now


def keys(folder: Path, rounds: int = 8) -> Result:
    """Eight checkpoints each, in turn; so a merge of runs is among them."""
    with world(folder, rows=(rounds + 3) * CHANGED) as parts:
        for name in HELD:
            whole(parts, _pipeline(name, f"seed_{name}"), "seed")
        owners = count(1)

        def run(name: str) -> None:
            whole(parts, _pipeline(name, f"totals_{name}"), f"run-{next(owners)}")

        sides = {f"{held:,} held": partial(run, name) for name, held in reversed(HELD.items())}
        measured = against(alternate(sides, rounds))
    how = f"A checkpoint that changes {CHANGED:,} keys of a state, by how many keys the state holds."
    return Result("State by key", how, measured)


def _pipeline(name: str, transform: str) -> Pipeline:
    state = StateSink("seen", schema="n BIGINT, seen BIGINT", key=["n"])
    return Pipeline(
        name=f"bench_{name}",
        source=KafkaSource(TOPIC, max_records=CHANGED),
        transform=f"benchmarks.keys:{transform}",
        sinks=[FileSink("out", path=f"lake/{name}"), state],
    )
