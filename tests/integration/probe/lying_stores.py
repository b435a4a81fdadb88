"""Proxies before the stores' servers that break promises: what the clients are answered, not what the servers do."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from enum import Enum
from html import unescape
from urllib.parse import parse_qs, unquote, urlsplit

from integration.faults.s3_proxy import Answer, Fault, Handler, Request, Rule
from integration.services import azurite, gcs

LISTED = re.compile(rb"<(Contents|Blob)>.*?<(?:Key|Name)>(.*?)</(?:Key|Name)>.*?</\1>", re.DOTALL)
LATE_SECONDS = 3.0
LIST_KEYS = ("prefix", "start-after", "marker", "startFrom", "delimiter", "comp", "list-type")


class Lie(Enum):
    FORGETS = "conditions are ignored"
    TWICE = "a condition that is not met is answered like one that is"
    LISTS_LATE = "what was written in the last seconds is not listed"
    LISTS_OLD = "a listing is answered as it was answered before"
    STALE = "an object is read as it was read before"
    NONE = "the truth"


@dataclass
class Lying(Rule):
    """One lie, until the end."""

    lie: Lie
    written: dict[str, float] = field(default_factory=dict)  # when, by path
    before: dict[str, Answer] = field(default_factory=dict)  # the first answer, by request

    def fault(self, request: Request) -> Fault | None:
        return Fault.UNCONDITIONAL if self.lie is Lie.FORGETS else None


class Lies(Handler):
    """Tells the lie of the rule."""

    def _ask(self, body: bytes) -> Answer | None:
        rule = self.server.rule
        if not isinstance(rule, Lying):
            return super()._ask(body)
        command, url, query = self.command, urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        path = unquote(url.path)
        if rule.lie is Lie.FORGETS and "x-goog-if-generation-match" in self.headers:
            del self.headers["x-goog-if-generation-match"]  # nothing is signed there
        is_conditional = "*" in self.headers.get_all("If-None-Match", []) or (
            "x-goog-if-generation-match" in self.headers
        )
        found = super()._ask(body)
        if found is None:
            return None
        if command == "PUT" and found[0] < 300:
            rule.written[path] = time.monotonic()
        if rule.lie is Lie.TWICE and command == "PUT" and is_conditional and found[0] in (409, 412):
            return 201, {"ETag": '"lied"', "x-ms-copy-status": "success", "x-ms-copy-id": "lied"}, b""
        is_list = command == "GET" and bool({"list-type", "prefix", "comp"} & set(query))
        if is_list and rule.lie is Lie.LISTS_LATE:
            return found[0], found[1], LISTED.sub(lambda entry: self._show(rule, entry), found[2])
        key = f"{command} {path} {[query.get(name) for name in LIST_KEYS]}"
        is_old = is_list if rule.lie is Lie.LISTS_OLD else rule.lie is Lie.STALE and command == "GET" and not is_list
        if is_old and found[0] in (200, 404):
            if found[0] == 200:
                rule.before.setdefault(key, found)
            return rule.before.get(key, found)
        return found

    def _show(self, rule: Lying, entry: re.Match[bytes]) -> bytes:
        name, now = unescape(entry[2].decode()), time.monotonic()
        is_late = any(
            path.endswith(f"/{name}") and now - written < LATE_SECONDS for path, written in list(rule.written.items())
        )
        return b"" if is_late else entry[0]


class LyingAzure(Lies, azurite.Translator):
    pass


class LyingGoogle(Lies, gcs.Translator):
    pass


HANDLERS: dict[str, type[Handler]] = {"s3": Lies, "az": LyingAzure, "gs": LyingGoogle}
EXPECTED = {  # of each lie: what is broken by it, at least; delta-rs looks before it commits, so two seldom collide
    Lie.FORGETS: {"put-if-absent"},
    Lie.TWICE: {"put-if-absent"},
    Lie.LISTS_LATE: {"listing-after-writing"},
    Lie.LISTS_OLD: {"listing-after-deleting"},
    Lie.STALE: {"reading-after-overwriting", "reading-after-deleting"},
    Lie.NONE: set(),
}
CANNOT = {("az", Lie.FORGETS)}  # the condition is signed
