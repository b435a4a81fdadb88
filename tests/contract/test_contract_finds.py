"""The suite fails for sinks that break a promise: one guard of a good sink is taken out at a time."""

import inspect
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from contract.damages import FAKE_DAMAGES
from contract.parts import BROKEN_ON_SPARK
from contract.stored import digest
from unit.coordinator.test_capabilities import Bare

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Answer, History, Publication, Sink
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published
from onceonly.errors import OnceonlyError
from onceonly.testing.contract import SINK, Committer, SinkContract, Target
from onceonly.testing.fake_sink import write_json
from onceonly.testing.fakes import FakeSink
from onceonly.testing.ledger import Ledger
from onceonly.testing.repair_contract import Shop


class LooksForNothing(FakeSink):
    def _last(self, handle: Handle) -> tuple[int, str | None]:
        return 0, None


class TakesAnotherForItsOwn(FakeSink):
    def _last(self, handle: Handle) -> tuple[int, str | None]:
        return super()._last(handle)[0], handle["txn"]


class TakesLaterForPublished(FakeSink):
    def _overtaken_error(self, *_: Any) -> Any:
        return OutcomeOf({"rows": 0})


class OutcomeOf(Exception):
    pass


class FencesNothing(FakeSink):
    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        return None


class SaysNothingOfWhatItFenced(FakeSink):
    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        super().fence(handle, decision)
        return None


class DiscardsNothing(FakeSink):
    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        return


class ShowsTheLastOneAlone(FakeSink):
    def compare(self, last: Publication) -> History:
        history = super().compare(last)
        is_last = last.proof["txn"] == list(self._log())[-1]
        return history if is_last else replace(history, answer=Answer.WENT_BACK)


class TakesAnotherPlaceForItsOwn(FakeSink):
    def compare(self, last: Publication) -> History:
        if last.target != str(self.folder):
            return History(Answer.WENT_BACK, "it shows nothing")
        return super().compare(last)


class ShowsNothingNow(FakeSink):
    def find_current_publication(self, last: Publication) -> Publication | None:
        return replace(last, proof={**last.proof, "txn": Transaction("0", "p", "s", 1, 1, "0" * 12).name})


class TellsPeopleNothing(FakeSink):
    def check(self) -> list[str]:
        return [""]


class DiscardsEveryAttempt(FakeSink):
    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        for path in self.folder.glob(f"{txn.prefix}-*"):
            path.unlink()


class DiscardsWhatIsPublished(FakeSink):
    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        super().discard(txn, handle)
        self.remove(txn.name)


class ListsWhatIsPublished(FakeSink):
    def _published_names(self) -> set[str]:
        return set()


class PublishesWhileStaging(FakeSink):
    def stage(self, txn: Transaction, rows: Any) -> Handle:
        handle = super().stage(txn, rows)
        self._publish(handle, 1)
        return handle


class TakesWhatIsGoneForEmpty(FakeSink):
    def _check_rows(self, handle: Handle) -> list[Any]:
        return super()._check_rows(handle) if self._staged_file(handle["txn"]).exists() else []


class RemembersDecisionsOfOthers(FakeSink):
    def traces(self, pipeline: str) -> list[Any]:
        return super().traces("flights_by_day")


class Meddles(FakeSink):
    """Changes what is published already, while the folder is locked."""

    def _publish(self, handle: Handle, decision: int, last: Any = None) -> Outcome:
        if not self._is_published(handle, decision):
            content = self._read_published()
            write_json(self._published, {**content, "entries": self.meddle(content["entries"], handle)})
        return super()._publish(handle, decision, last)

    def meddle(self, entries: list[Any], handle: Handle) -> list[Any]:
        raise NotImplementedError


class ReplacesAll(Meddles):
    """Takes out whatever its pipeline has published, not only what a handle replaces."""

    def meddle(self, entries: list[Any], handle: Handle) -> list[Any]:
        return [] if "replaces" in handle else entries


class ReplacesTheFirst(Meddles):
    """Takes out the oldest rows, whether a handle replaces them or adds its own."""

    def meddle(self, entries: list[Any], handle: Handle) -> list[Any]:
        return entries[1:]


class RewritesWhatIsThere(Meddles):
    """Adds rows, and writes what was there before in another order."""

    def meddle(self, entries: list[Any], handle: Handle) -> list[Any]:
        return [{**entry, "rows": entry["rows"][::-1]} for entry in entries]


class ReplacesNothing(FakeSink):
    def _publish(self, handle: Handle, decision: int, last: Any = None) -> Outcome:
        return super()._publish({key: value for key, value in handle.items() if key != "replaces"}, decision, last)


class Topic(Bare):
    """As a topic: what is published stays."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(FakeSink(name, folder))


class KeepsRowsUnique(Topic):
    """Takes rows out that it has published before."""

    def commit(self, handle: Handle, *given: Any) -> Outcome:
        outcome = super().commit(handle, *given)
        *earlier, last = self._fake.entries()
        if any(row in entry["rows"] for entry in earlier for row in last["rows"]):
            self._fake.remove(last["txn"])
        return outcome


class AccusesNobody(FakeSink):
    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        for publication in published:
            yield Finding(Judgement.RIGHT, FindingCode.RIGHT, "it always is", publication.epoch)


class AccusesEverybody(FakeSink):
    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        for publication in published:
            yield Finding(Judgement.WRONG, FindingCode.COMMIT_MISSING, "it always is", publication.epoch)


class ForgetsAnEpoch(FakeSink):
    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        yield from list(super().verify(published, depth))[1:]


BROKEN: list[tuple[type[FakeSink | Topic], str]] = [
    (LooksForNothing, "test_a_commit_repeated_ten_times_publishes_once"),
    (LooksForNothing, "test_what_was_published_is_known_from_the_target_alone"),
    (TakesAnotherForItsOwn, "test_another_transaction_at_the_same_decision_is_not_taken_for_ours"),
    (TakesLaterForPublished, "test_a_lower_decision_than_the_published_one_is_not_taken_for_published"),
    (FencesNothing, "test_what_is_fenced_is_never_published_and_its_rows_are_kept"),
    (SaysNothingOfWhatItFenced, "test_what_was_published_is_said_by_the_fence"),
    (DiscardsNothing, "test_an_abort_leaves_nothing_and_may_be_repeated"),
    (ShowsTheLastOneAlone, "test_a_target_has_what_was_published_to_it"),
    (TakesAnotherPlaceForItsOwn, "test_another_place_is_not_taken_for_a_target_that_went_back"),
    (ShowsNothingNow, "test_what_a_target_shows_now_can_be_recorded"),
    (TellsPeopleNothing, "test_people_are_told_what_it_publishes_to_and_what_it_shows"),
    (DiscardsEveryAttempt, "test_an_abort_spares_every_other_attempt"),
    (DiscardsWhatIsPublished, "test_an_abort_never_touches_what_is_published"),
    (ListsWhatIsPublished, "test_leftovers_are_exactly_what_is_staged_and_not_published"),
    (PublishesWhileStaging, "test_nothing_is_visible_before_the_commit"),
    (TakesWhatIsGoneForEmpty, "test_rows_that_are_gone_are_never_taken_for_published"),
    (ReplacesAll, "test_repair_takes_out_the_rows_of_one_checkpoint_alone"),
    (ReplacesAll, "test_sink_is_corrected_beside_one_that_is_kept"),
    (ReplacesNothing, "test_repair_takes_out_the_rows_of_one_checkpoint_alone"),
    (ReplacesNothing, "test_sink_is_corrected_beside_one_that_is_kept"),
    (ReplacesTheFirst, "test_repair_adds_rows_where_none_are_in_force"),
    (RewritesWhatIsThere, "test_repair_adds_rows_where_none_are_in_force"),
    (KeepsRowsUnique, "test_rows_come_once_more_where_they_cannot_be_taken_back"),
    (AccusesNobody, "test_damage_is_found"),
    (AccusesEverybody, "test_healthy_target_is_not_accused"),
    (AccusesEverybody, "test_replaced_rows_are_not_accused"),
    (AccusesEverybody, "test_retracted_rows_are_not_accused"),
    (ForgetsAnEpoch, "test_healthy_target_is_not_accused"),
    (RemembersDecisionsOfOthers, "test_the_target_shows_the_last_decision_to_whoever_has_no_other_memory"),
]


@dataclass(frozen=True)
class Out(Target):
    folder: str
    made: type[FakeSink | Topic] = FakeSink

    def sink(self) -> Sink:
        return self.made(SINK, Path(self.folder))

    def published(self) -> list[int]:
        return sorted(row["n"] for row in FakeSink(SINK, Path(self.folder)).rows())

    def traces(self, txn: Transaction) -> list[Any]:
        return list(Path(self.folder).glob(f"{txn.name}*"))

    def digests(self) -> Mapping[str, str]:
        entries = FakeSink(SINK, Path(self.folder)).entries()
        return {entry["txn"]: digest(json.dumps(entry).encode()) for entry in entries}


def run(test: str, target: Target, folder: Path) -> None:
    """One test of the suite, without pytest."""
    suite = SinkContract()
    suite.state_id = uuid.uuid4().hex
    method: Callable[..., None] = getattr(suite, test)

    def stage(txn: Transaction, *numbers: int) -> Handle:
        handle: Handle = json.loads(json.dumps(target.sink().stage(txn, [{"n": number} for number in numbers])))
        return handle

    shop = Shop.open(folder / uuid.uuid4().hex, target, lambda *numbers: [{"n": number} for number in numbers])
    committer = Committer(target, str(folder))
    known = {"target": target, "committer": committer, "stage": stage, "shop": shop, "with_handle": False}
    known |= {"ledger": Ledger(target.sink, committer), "damage": FAKE_DAMAGES[0], "deep": True}
    method(**{name: known[name] for name in inspect.signature(method).parameters})


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=[f"{sink.__name__}-{test}" for sink, test in BROKEN])
def test_a_broken_promise_is_found(broken: type[FakeSink | Topic], test: str, tmp_path: Path) -> None:
    (tmp_path / "receipts").mkdir()
    good = Topic if issubclass(broken, Topic) else FakeSink
    run(test, Out(str(tmp_path / "good"), good), tmp_path / "receipts")
    with pytest.raises((AssertionError, OnceonlyError, OutcomeOf, pytest.fail.Exception)):
        run(test, Out(str(tmp_path / "broken"), broken), tmp_path / "receipts")


def test_a_forgotten_call_fails_when_the_sink_is_made() -> None:
    class Forgetful(Sink):
        def check(self) -> list[str]:
            return []

    with pytest.raises(TypeError, match="abstract methods commit, discard, fence, leftovers, rehearse, stage"):
        Forgetful()  # type: ignore[abstract]


def test_part_on_spark_names_tests_of_the_suite() -> None:
    assert [name for name in BROKEN_ON_SPARK if not hasattr(SinkContract, name)] == []
