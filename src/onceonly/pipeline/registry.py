"""The config class of each kind of sink: our own, and those of installed packages (entry points of GROUP).

A definition in the state table contains a kind and never a class. So a person who can write to that table can only run
code of sinks that are installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.names import check_name
from onceonly.pipeline.checks import omit_defaults
from onceonly.pipeline.shapes import problem
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "onceonly.sinks"  # of entry points: the name is the kind, the value the config class
OURS: tuple[type[SinkConfig], ...] = (DeltaSink, FileSink, KafkaSink, StateSink)
OWN: Mapping[str, type[SinkConfig]] = {config.kind: config for config in OURS}


def sink_class(kind: str) -> type[SinkConfig]:
    """Return the config class of that kind. Installed packages are searched for kinds that are not ours.

    Raises:
        InvalidPipeline: no package provides the kind, several do, or what it provides is not a config class.
    """
    return OWN.get(kind) or _find_installed(kind)


def kinds() -> list[str]:
    """Return all kinds that are known here, sorted."""
    return sorted({*OWN, *(offer.name for offer in _offers())})


def sink_json(sink: SinkConfig) -> dict[str, Any]:
    """Return the sink as JSON, without fields that have one of its unstored defaults."""
    return {"kind": sink.kind, **omit_defaults(plain(asdict(sink)), type(sink).unstored_defaults)}


def sink_from_json(data: Mapping[str, Any]) -> SinkConfig:
    """Return the sink of `sink_json`.

    Raises:
        InvalidPipeline: its kind is not known here.
        KeyError, TypeError: a field is missing, not known, or of another type.
    """
    sink: SinkConfig = build(sink_class(data["kind"]), data)
    return sink


def build(config_class: type[Any], data: Mapping[str, Any]) -> Any:
    """Return a source or sink of that class with the fields in `data`. Raises TypeError for fields of another type."""
    arguments = dict(data)
    arguments.pop("kind", None)
    if first_problem := problem(arguments, config_class):
        raise TypeError(f"in '{data.get('name') or data['kind']}', {first_problem}")
    return config_class(**arguments)


def plain(value: Any) -> Any:
    """Return the value as it is after a round trip through JSON."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def check_sink(sink: Any) -> None:
    """Refuse a sink that another process could not create again from the definition.

    Raises:
        InvalidPipeline: it is not a SinkConfig, its kind is not registered, or its fields are not plain data.
    """
    if not isinstance(sink, SinkConfig):
        raise InvalidPipeline(
            f"{sink!r} is not a sink.",
            f"It is a {type(sink).__name__}, and a sink has to be a SinkConfig.",
            "Use DeltaSink, FileSink, KafkaSink or StateSink, or the config class of an installed sink.",
            code="sink-invalid",
        )
    check_name("sink", sink.name)
    registered = sink_class(sink.kind)
    if registered is not type(sink):
        path, registered_path = _class_path(type(sink)), _class_path(registered)
        raise InvalidPipeline(
            f"sink '{sink.name}' is a {path}, but its kind '{sink.kind}' is that of {registered_path}.",
            "Other processes create a sink from its kind alone, so they would create a different one.",
            f"Give the class a kind of its own, and register an entry point '{GROUP}' of that name.",
            code="sink-kind-of-another",
        )
    if sink.kind not in OWN:
        _check_round_trip(sink)


def _check_round_trip(sink: SinkConfig) -> None:
    """Check that the sink is the same when it is read back from its definition. Raises InvalidPipeline."""
    try:
        stored = json.loads(json.dumps(sink_json(sink)))
        is_same = sink_json(sink_from_json(stored)) == stored
        why = "what is read back is different"
    except (KeyError, TypeError, ValueError) as error:
        is_same, why = False, str(error)
    if not is_same:
        path = _class_path(type(sink))
        raise InvalidPipeline(
            f"sink '{sink.name}' cannot be stored as JSON.",
            f"Its definition is stored with every checkpoint and read by other processes: {why}.",
            f"Use only text, numbers, booleans, and lists and dicts of them in the fields of {path}.",
            code="sink-not-storable",
        )


@cache  # only successes: a missing package may be installed later
def _find_installed(kind: str) -> type[SinkConfig]:
    """Return the config class of that kind from the only installed package that provides it; raises InvalidPipeline."""
    offers = [offer for offer in _offers() if offer.name == kind]
    if not offers:
        raise InvalidPipeline(
            f"no sink of the kind '{kind}' is known here.",
            f"Known kinds: {', '.join(kinds())}. No installed package provides another one (entry point '{GROUP}').",
            "Install the package that provides it in the environment of every process (Airflow, Spark, this command). "
            "If a newer Onceonly wrote the definition, install that version. Nothing was written.",
            code="sink-kind-unknown",
        )
    if len(offers) > 1:
        raise InvalidPipeline(
            f"several packages provide a sink of the kind '{kind}'.",
            f"They are {', '.join(sorted(map(_package_name, offers)))}.",
            "Keep one of them and uninstall the others. Nothing was written.",
            code="sink-kind-ambiguous",
        )
    return _load(offers[0])


def _offers() -> list[EntryPoint]:
    """Return the sinks of all installed packages. Only searched for a foreign kind: many packages make it slow."""
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _load(offer: EntryPoint) -> type[SinkConfig]:
    """Return the config class that the package provides. Raises InvalidPipeline."""
    try:
        config_class = offer.load()
    except Exception as error:
        raise _unusable(offer, f"{type(error).__name__}: {error}") from error
    if not isinstance(config_class, type) or not issubclass(config_class, SinkConfig):
        raise _unusable(offer, "It is not a subclass of SinkConfig")
    if "__dataclass_params__" not in vars(config_class) or "kind" in {field.name for field in fields(config_class)}:
        raise _unusable(offer, "It is not a frozen dataclass with `kind` as a plain class attribute")
    if getattr(config_class, "kind", None) != offer.name or ":" not in getattr(config_class, "writer", ""):
        raise _unusable(offer, f"It needs kind = '{offer.name}', and writer = 'package.module:name'")
    return config_class


def _unusable(offer: EntryPoint, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"the sink of the kind '{offer.name}' cannot be used.",
        f"The package {_package_name(offer)} provides {offer.value} for it. {why}.",
        f"Fix the package, or install another version of it ({name_page('add-a-sink')}). Nothing was written.",
        code="sink-package-broken",
    )


def _package_name(offer: EntryPoint) -> str:
    """Return the name and version of the package that makes the offer."""
    if not offer.dist:
        return offer.value
    return f"{offer.dist.name} {offer.dist.version}"


def _class_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
