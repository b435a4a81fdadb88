"""What people are asked before a manual action, in one wording for commands and pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ManualAction:
    """A question that is answered with yes, and what follows then."""

    question: str
    effect: str

    def __str__(self) -> str:
        return f"{self.question} {self.effect}"


APPROVE = ManualAction(
    "Publish these rows although the gate failed them?",
    "They are published at once, whether or not the run has ended.",
)
ABORT = ManualAction("Discard what is staged?", "The offsets stay pinned: the next attempt reads the same ones.")
RECOVER = ManualAction(
    "Settle what ended owners left behind?",
    "Decided checkpoints are published. Staged ones are decided, by their gate if they have one, and published. The "
    "others are aborted. A checkpoint whose owner is running stays unchanged, and so does a held one.",
)
RECORD_COMMITTED = ManualAction(
    "Record that its rows are there?",
    "Look at the evidence first: if you are wrong, rows are missing.",
)
RECORD_ABORTED = ManualAction(
    "Record that its rows are not there?",
    "They are published again. Look at the evidence first: if you are wrong, rows are there twice.",
)
GIVE_UP = ManualAction(
    "Give this sink up?",
    "First the sink is closed to this checkpoint. If it does not show the rows then, they will never be there.",
)
RESOLUTIONS = {"committed": RECORD_COMMITTED, "aborted": RECORD_ABORTED, "give-up": GIVE_UP}


def describe_resolution(word: str, sink: str, who: str, reason: str, is_published: bool) -> str:
    """Return what is recorded of a sink.

    Args:
        word: of RESOLUTIONS.
        is_published: whether a sink that was to be given up turned out to have the rows.
    """
    outcome = "given up" if word == "give-up" else word
    if word == "give-up" and is_published:
        outcome = "published after all"
    return f"sink '{sink}' is recorded as {outcome} by {who}: {reason}"
