"""Why a Kafka sink does not publish: its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceonly.counts import count
from onceonly.errors import ActionNeeded, CannotPublish, InDoubt, NotCommitted, StageAgain
from onceonly.sinks.kafka.handle import KafkaHandle, Part

NOTHING_DECIDED = "Nothing was decided or published."
Place = Mapping[str, Any]  # "cluster": its id; "topics": their ids, by name


# ---- before the decision


def recreated_while_staging(sink: str, place: Place) -> NotCommitted:
    return NotCommitted(
        f"sink '{sink}': a topic was dropped or created again while rows were staged for it.",
        f"The rows were written for {place}, which is not there any more.",
        "Nothing of it is published. Retry, when nobody is changing the topics.",
        "target-recreated",
    )


def topics_missing(sink: str, handle: KafkaHandle, names: Sequence[str]) -> ActionNeeded:
    return ActionNeeded(
        f"sink '{sink}': there is no topic {', '.join(map(repr, names))}.",
        "The rows were staged for it, so it was deleted since, or the cluster has lost it.",
        "Create it again (kafka-topics --create); the rows are then staged again. If it shall not exist any more: "
        f"onceonly abort {_command_arguments(handle)} --reason …. {NOTHING_DECIDED}",
        "target-missing",
    )


def topics_recreated(sink: str, handle: KafkaHandle, names: Sequence[str]) -> StageAgain:
    return StageAgain(
        f"sink '{sink}': topic {', '.join(map(repr, names))} was deleted and created again.",
        f"The rows were staged for another topic of that name, in {handle.txn.name}.",
        "They are staged again, if this attempt is aborted.",
        "target-recreated",
    )


def another_cluster(sink: str, handle: KafkaHandle, cluster: str) -> ActionNeeded:
    return ActionNeeded(
        f"sink '{sink}': its connection leads to another cluster.",
        f"The rows were staged for the cluster {handle.cluster}, and this is {cluster}.",
        f"Correct the connection, then: onceonly recover {_pipeline(handle)}. If the pipeline has moved: "
        f"onceonly abort {_command_arguments(handle)} --reason …, and run it again. {NOTHING_DECIDED}",
        "another-cluster",
    )


def doubt_before_decision(sink: str, handle: KafkaHandle, parts: Sequence[Part]) -> ActionNeeded:
    names = _transaction_names(parts)
    return ActionNeeded(
        f"sink '{sink}': it is not known how {count(len(parts), 'transaction')} of it ended.",
        f"{names}: not open any more, and the part of the log with the marker no longer exists. No decision is "
        "recorded, so it can only have been committed if the state table was restored from an older copy.",
        "Look for the rows in the topic. If they are there, see `onceonly state forward`. If not: onceonly abort "
        f"{_command_arguments(handle)} --reason …, and run it again. {NOTHING_DECIDED}",
        "doubt-before-decision",
    )


def spool_unusable(sink: str, handle: KafkaHandle, part: Part, why: str) -> StageAgain:
    return StageAgain(
        f"sink '{sink}': {count(part.rows, 'spooled row')} cannot be written to Kafka any more.",
        f"{handle.folder}/{part.spool} {why}, and no open transaction holds these rows.",
        "They are staged again, if this attempt is aborted.",
        "spool-missing",
    )


# ---- after the decision


def spool_missing(sink: str, handle: KafkaHandle, part: Part) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': spooled rows no longer exist.",
        f"{handle.folder}/{part.spool} with {count(part.rows, 'row')} is missing.",
        f"Restore it and recover, or: onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …",
        "spool-missing",
    )


def staged_for_another(sink: str, handle: KafkaHandle, now: Place) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': the rows were staged for another cluster or topic.",
        f"They were staged for {handle.place}. The sink would now write to {now}.",
        "Restore the topic or the connection and recover, or: onceonly resolve PIPELINE EPOCH "
        f"--give-up {sink} --reason …. The rows are kept in {handle.folder}.",
        "target-recreated",
    )


def in_doubt(sink: str, parts: Sequence[Part]) -> InDoubt:
    names = _transaction_names(parts)
    return InDoubt(
        f"sink '{sink}': it is not known whether {count(len(parts), 'transaction')} of it committed.",
        f"The marker of {names} no longer exists: the log was truncated or compacted, or the topic was recreated.",
        "Look whether the rows are in the topic. If they are: onceonly resolve PIPELINE EPOCH "
        f"--committed {sink} --reason …. If none is: the same with --aborted {sink}, which writes all of them again.",
        code="evidence-lost",
    )


def _command_arguments(handle: KafkaHandle) -> str:
    """Return the pipeline and epoch, as commands take them."""
    return f"{handle.txn.pipeline} {handle.txn.epoch}"


def _transaction_names(parts: Sequence[Part]) -> str:
    return ", ".join(part.tx.id for part in parts if part.tx)


def _pipeline(handle: KafkaHandle) -> str:
    return handle.txn.pipeline
