"""Words of the field, in the sources and on the pages: a reader who has never seen the project should not stumble."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {  # not -> but
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bpersons?'s word": "manual resolution",
    r"\bno heed\b": "ignores",
    r"\bin the way\b|\bin nobody's way\b": "blocked by …",
    r"\basks nothing\b": "no checks are configured",
    r"\b(is|are|was|were) gone\b": "no longer exists",
    r"\bthe \w+ of then\b": "… at that epoch",
    r"\bwithout a word\b": "without a report",
    r"\bnot spoken\b": "is not supported",
    r"\b(is|was|be|been|are) heard\b|\bheard of\b|\bhears\b": "reported, received",
    r"\bcannot be asked\b": "cannot be checked, does not answer",
    r"\bone thing of one\b": "exactly one of …",
    r"\bhe likes\b": "anyone who can reach it can run code",
    r"\bprocess's to change\b": "ownership was lost",
    r"\banew\b": "again, new",
    r"\bfor ever\b": "forever",
    r"\bfor want of\b": "because … is missing",
    r"\bwell again\b": "available again",
    r"\blive side\b": "writes to the target of …",
    r"\bfeed (the|them|these) \w*\s?again\b": "send … again",
    r"\bits own account\b|\bof no account\b": "ignored",
    r"\btakes? the place of what\b": "replaces",
    r"\bis none of (ours|a)\b": "is not one of …",
    r"\bcannot be found out\b": "is not known",
    r"\bso it is with\b": "the same applies to …",
    r"\bin the hands of\b|\bin other hands\b": "used by another …",
    r"\bbe it a\b": "also a …",
    r"\bseen? to it\b|\bsees to it\b|\bsee to that\b": "make sure",
    r"\bas things are\b": "at present",
    r"\bmay not have lived\b": "may have died",
    r"\bis kept otherwise\b|\bpartitioned otherwise\b": "has another …",
    r"\bwhat became of\b|\bbecame of it\b": "the outcome",
    r"\bthe eyes of\b": "examines …",
    r"\bis beyond delta-rs\b": "is not supported by delta-rs",
    r"\bamid(st)?\b": "during, in the middle of",
    r"\bgo(es)? on\b|\bgoing on\b": "continues",
    r"\b(is|are|still) at work\b": "is running",
    r"\b(is|are|was|were) at hand\b": "is available",
    r"\bside by side\b": "in parallel",
    r"\btak(es?|en|ing) up (a|no) worker\b|\btaken up by\b": "occupies a worker",
    r"\bputs? up with\b": "allows",
    r"\ball the same\b": "anyway",
    r"\bfor good\b": "permanently",
    r"\btook the place of\b": "replaced",
    r"\bcopies (are |were )?in sync\b|\bin-sync copies\b": "in-sync replicas",
    r"\b(has|have) met no\b": "was not tried on",
    r"\b(asks|asked) for a login\b": "requires a login",
    r"\bcould not be told\b": "could not be sent",
}
BREAK = re.compile(r"""["']?\n\s*(?:#|f?["'])?\s*""")  # within a text that goes on in the next line


def texts() -> list[Path]:
    package = ROOT / "src" / "onceonly"
    return [path for path in package.rglob("*") if path.suffix in (".py", ".html", ".js", ".md", ".json")] + pages()


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("path", sorted(texts()), ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path: Path) -> None:
    text = " ".join(BREAK.sub(" ", path.read_text()).split())
    found = {match[0]: plain for riddle, plain in PLAIN.items() for match in re.finditer(riddle, text, re.IGNORECASE)}
    assert not found
