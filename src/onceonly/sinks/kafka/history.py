"""Whether topics still have what was published to them: their ids, and how their logs ended.

A topic with another id is another topic. The end of a log never decreases: neither retention nor compaction moves it. A
log that ends below the recorded offset has lost its end (an unclean leader election, a restored volume). If it has
grown again since, the record batch at that offset is another one (see `log_ends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from onceonly.checkpoint.model import Outcome
from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.errors import InvalidPipeline
from onceonly.kafka import markers
from onceonly.kafka.cluster import Cluster
from onceonly.kafka.log_ends import Batch
from onceonly.sinks.kafka.handle import KafkaHandle
from onceonly.waits import wait_for

PAUSE_SECONDS = 0.2  # between looks at what is missing
MAX_PARTITIONS_SHOWN = 5
Ends = Mapping[str, Mapping[str, int]]  # topic -> partition, as text (JSON has no other keys) -> end of its log
Batches = Mapping[str, Mapping[str, list[int]]]  # likewise: the batch that holds the last offset below it


@dataclass(frozen=True)
class ComparedTopics:
    """The topics of a sink, as the brokers show them now.

    Args:
        bootstrap: the address at which the cluster was found.
        topic_ids: without the topics that do not exist.
    """

    bootstrap: str
    cluster: str
    names: tuple[str, ...]
    topic_ids: Mapping[str, str]
    ends: Ends

    def has(self, name: str, topic_id: str) -> bool:
        return self.topic_ids.get(name) == topic_id

    @property
    def place(self) -> str:
        return place(self.cluster, self.names)

    def proof(self, client: Cluster) -> dict[str, Any]:
        """Return the proof that these topics are the target, with the batches that end their logs now."""
        batches = read_batches(client, self.topic_ids, self.ends)
        return proof(self.bootstrap, self.cluster, self.topic_ids, self.ends, batches, self.names)


def place(cluster: str, topics: Sequence[str]) -> str:
    """Return the name of a target: the cluster's id, and its topics in order."""
    return f"{cluster}/{','.join(sorted(topics))}"


def proof(
    bootstrap: str,
    cluster: str,
    topic_ids: Mapping[str, str],
    ends: Ends,
    batches: Batches,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return a publication's proof as JSON: target, address, and by topic its id, log ends and the batches there."""
    return {
        "target": place(cluster, names),
        "bootstrap": bootstrap,
        "topics": dict(topic_ids),
        "ends": {name: dict(ends.get(name, {})) for name in topic_ids},
        "batches": dict(batches),
    }


def read(client: Cluster, bootstrap: str, names: Sequence[str]) -> ComparedTopics:
    """Read the topics as they are now. Raises NotCommitted: the brokers do not answer."""
    cluster_id = client.read_cluster_id()
    partitions: list[tuple[str, int]] = []
    for name, partition_count in client.count_partitions(names).items():
        partitions += [(name, number) for number in range(partition_count)]
    ends: dict[str, dict[str, int]] = {}
    for (name, number), end in sorted(client.read_ends(partitions).items()):
        ends.setdefault(name, {})[str(number)] = end
    topic_ids = client.read_topic_ids(names)  # asked last: ends are by name, and an id never comes back
    return ComparedTopics(bootstrap, cluster_id, tuple(names), topic_ids, ends)


def read_batches(client: Cluster, topic_ids: Mapping[str, str], ends: Ends) -> Batches:
    """Read the batches at these ends.

    A topic that this client may not read, or that was exchanged meanwhile, is left out.
    """
    batches_by_topic: dict[str, dict[str, list[int]]] = {}
    for name, topic_id in sorted(topic_ids.items()):
        topic_ends = {int(number): end for number, end in ends.get(name, {}).items()}
        with suppress(InvalidPipeline):
            batches = client.read_end_batches((name, topic_id), topic_ends)
            batches_by_topic[name] = {str(number): batch.to_json() for number, batch in sorted(batches.items())}
    return batches_by_topic


def published_outcome(client: Cluster, bootstrap: str, handle: KafkaHandle, already: bool = False) -> Outcome:
    """Return the outcome of a published handle. The markers of its transactions were seen.

    Args:
        already: it was published before this call.
    """
    return Outcome(already, {"rows": handle.rows}, publication_proof(client, bootstrap, handle))


def publication_proof(client: Cluster, bootstrap: str, handle: KafkaHandle) -> dict[str, Any]:
    """Return the proof of a handle that was just published, or seen to be: it names the topics it was staged for.

    The ends include all partitions: the rows of earlier checkpoints may be in any of them.
    """
    topic_ids = handle.topics
    target = read(client, bootstrap, sorted(topic_ids))
    same_topics: dict[str, str] = {}
    if target.cluster == handle.cluster:
        same_topics = {name: id for name, id in topic_ids.items() if target.has(name, id)}
    batches = read_batches(client, same_topics, target.ends)
    ends = {name: dict(target.ends[name]) for name in same_topics}
    for part in handle.parts:
        if part.tx is None:
            continue
        for (name, number), (_, end) in part.tx.partitions.items():
            if name in ends:  # its marker is above that offset, even if the log has lost it by now
                ends[name][str(number)] = max(end + 1, ends[name].get(str(number), 0))
    return proof(bootstrap, handle.cluster, topic_ids, ends, batches, sorted(topic_ids))


def compare(client: Cluster, bootstrap: str, names: Sequence[str], last: Publication) -> History:
    """Compare the topics with a recorded publication.

    What seems to be lost is looked for again: a broker may not know yet of a topic, or of how far a log is replicated.

    Raises:
        NotCommitted: the brokers do not answer.
    """
    deadline = monotonic() + markers.MISSING_SECONDS
    with wait_for(f"the topics {', '.join(names)} to show what was published"):
        while True:
            history = _compare(client, read(client, bootstrap, names), last)
            if history.answer is not Answer.WENT_BACK or monotonic() > deadline:
                return history
            sleep(PAUSE_SECONDS)


def find_current_publication(
    client: Cluster, bootstrap: str, names: Sequence[str], last: Publication
) -> Publication | None:
    """Return the topics as they are, as a publication; None if there are none.

    Which decisions they show cannot be told, unless the last one is there.
    """
    target = read(client, bootstrap, names)
    if not target.topic_ids:
        return None
    if _compare(client, target, last).answer is Answer.SAME:
        return Publication(last.epoch, last.decision, target.proof(client))
    return Publication(0, 0, target.proof(client))


def _compare(client: Cluster, now: ComparedTopics, last: Publication) -> History:
    history = _compare_ends(now, last)
    if history.answer is not Answer.SAME:
        return history
    return _compare_batches(client, last)


def _compare_batches(client: Cluster, last: Publication) -> History:
    """Compare the batches at the recorded ends: logs that are long enough may have been cut off and grown again."""
    remarks = []
    for name, batches in sorted(last.proof["batches"].items()):
        ends = {int(number): end for number, end in last.proof["ends"][name].items()}
        marks = {int(number): Batch(*fields) for number, fields in batches.items()}
        comparison = client.compare_ends((name, last.proof["topics"][name]), ends, marks)
        for number in comparison.replaced:
            why = (
                f"the log of topic '{name}' partition {number} lost records below offset {ends[number]}, and others "
                "took their place"
            )
            return History(Answer.WENT_BACK, why, at_least=True)
        if comparison.unknown:
            remarks.append(_remark_on_unknown(name, comparison.unknown))
    return History(Answer.SAME, remarks=tuple(remarks))


def _remark_on_unknown(name: str, partitions: Sequence[int]) -> str:
    numbers = ", ".join(map(str, partitions[:MAX_PARTITIONS_SHOWN]))
    more = ", …" if len(partitions) > MAX_PARTITIONS_SHOWN else ""
    return (
        f"whether topic '{name}' lost records and has grown again is not known of partition {numbers}{more}: what was "
        "published last was removed since (retention or compaction), and the brokers do not know its leader epoch"
    )


def _compare_ends(now: ComparedTopics, last: Publication) -> History:
    """Compare the topics' ids and log ends with the recorded ones."""
    if last.proof["target"] != now.place:
        return _compare_targets(now, last)
    for name, topic_id in sorted(last.proof["topics"].items()):
        if name not in now.topic_ids:
            return History(Answer.WENT_BACK, f"there is no topic '{name}'")
        if now.topic_ids[name] != topic_id:
            why = f"topic '{name}' is another one: its id is {now.topic_ids[name]}, not {topic_id}"
            return History(Answer.WENT_BACK, why)
    for name, ends in sorted(last.proof["ends"].items()):
        for number, end in ends.items():
            if now.ends.get(name, {}).get(number, 0) < end:
                why = f"the log of topic '{name}' partition {number} ends below offset {end}, which it had reached"
                return History(Answer.WENT_BACK, why, at_least=True)
    return History(Answer.SAME)


def _compare_targets(now: ComparedTopics, last: Publication) -> History:
    """Return whether the target, which is another one, was chosen or exchanged.

    Other topics, or another cluster at another address, were chosen. Another cluster at the same address was not.
    """
    cluster, _, names = last.proof["target"].partition("/")
    has_same_names = place("", now.names) == f"/{names}"
    if cluster != now.cluster and has_same_names and _is_same_address(now, last):
        return History(Answer.WENT_BACK, f"{now.bootstrap} is another cluster: its id is {now.cluster}, not {cluster}")
    return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {now.place}")


def _is_same_address(now: ComparedTopics, last: Publication) -> bool:
    return set(now.bootstrap.split(",")) == set(str(last.proof.get("bootstrap", "")).split(","))
