"""The sources of a pipeline by topic, where the topics of a pattern are known only to the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import AnySource, Pipeline

T = TypeVar("T")


class Sources(Mapping[str, T], Generic[T]):
    """By topic, and by the name of a pattern the one that reads all of its topics.

    Iterating asks which topics match; looking one up does not, so a topic that was read and vanished is there, too.

    Args:
        make: the source of such a definition.
        topics: the names of all topics that such a source can see.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        make: Callable[[AnySource], T],
        topics: Callable[[AnySource], Iterable[str]],
    ) -> None:
        self._pipeline, self._make, self._topics = pipeline, make, topics
        self._sources: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._sources:
            self._sources[name] = self._make(self._config(name))
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _config(self, name: str) -> AnySource:
        for source in self._pipeline.sources:
            if name == source.input_name:
                return source
            if source.reads(name):
                return source.for_topic(name)
        raise KeyError(name)

    @cached_property
    def _names(self) -> list[str]:
        """The topics: those of the definition in its order, those of a pattern in theirs."""
        return [name for source in self._pipeline.sources for name in self._topics_of(source)]

    def _topics_of(self, source: AnySource) -> list[str]:
        if source.topic_pattern is None:
            return [source.topic]
        matching = sorted(filter(source.reads, self._topics(source)))
        if matching:
            return matching
        raise InvalidPipeline(
            f"{self._pipeline.name}: no topic matches '{source.topic_pattern}'.",
            "The brokers show none of such a name to this client. The pattern has to match the whole name.",
            "Create the first topic, correct KafkaSource(topic_pattern=…), or grant Describe on the topics. "
            "Nothing was written.",
            code="no-topic-matches",
        )
