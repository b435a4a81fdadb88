"""What is in force of the same records, sink by sink, and how it came to that: for people and for programs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from person import Person
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Shop

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.errors import CannotPublish
from onceonly.pipeline.sinks import StateSink
from onceonly.views import provenance, queries, story
from onceonly.views.story import Story
from onceonly.views.summary import Summary, read_summaries


@pytest.fixture
def shop(tmp_path) -> Shop:
    shop = Shop(tmp_path)
    shop.run("run-1", TEN)
    return shop


def read(shop: Shop, epoch: int) -> Story:
    return story.read_story(shop.state, shop.now(epoch))


def cells(shop: Shop, epoch: int) -> list[list[str]]:
    """By checkpoint, what it has done in each sink; '*' where that is in force."""
    told = read(shop, epoch)
    found = []
    for checkpoint in told.checkpoints:
        parts = [told.part(checkpoint.epoch, sink) for sink in told.sinks]
        found.append(
            [story.describe_part(part, checkpoint) + ("*" if part and part.is_in_force else "") for part in parts]
        )
    return found


def summary(shop: Shop) -> Summary:
    return read_summaries(shop.state, ["flights"])[0]["flights"]


def test_a_checkpoint_that_nobody_repaired_has_no_story(shop):
    told = read(shop, 1)
    assert not told.has_repairs
    assert told.in_force == {"lake": (1,), "late": (1,)}


def test_kept_replaced_repeated_and_added_rows_are_told_apart(shop):
    shop.repair(keep=("late",))
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    shop.run("run-2", NEXT)
    assert read(shop, 1).lacking == ("new",)
    shop.repair("ann: past", only=("new",))
    shop.repair("ann: again", keep=("lake", "new"), again=("late",))
    assert cells(shop, 4) == [
        ["10 rows; replaced by epoch 2", "10 rows*", ""],
        ["10 rows in place of epoch 1*", "kept epoch 1", ""],
        ["kept epoch 2", "kept epoch 1", "10 rows added*"],
        ["kept epoch 2", "10 rows once more, beside epoch 1*", "kept epoch 4"],
    ]
    told = read(shop, 2)
    assert [checkpoint.epoch for checkpoint in told.checkpoints] == [1, 2, 4, 5]
    assert (told.in_force, told.lacking) == ({"lake": (2,), "late": (1, 5), "new": (4,)}, ())


def test_a_repair_that_is_under_way_or_aborted_leaves_what_is_in_force(shop):
    planned = shop.ask(keep=("late",))
    assert cells(shop, 1) == [["10 rows*", "10 rows*"], ["planned", "keeps epoch 1"]]
    shop.stage_corrected(planned.epoch)
    assert cells(shop, 1)[1] == ["staged: 10 rows", "keeps epoch 1"]
    shop.abort(planned.epoch)
    assert cells(shop, 1) == [["10 rows*", "10 rows*"], ["aborted", ""]]


def test_a_sink_that_was_given_up_lacks_the_rows(shop):
    shop.plan("run-2", NEXT)
    shop.stage(2)
    shop.lake.fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        shop.commit(2)
    Person(shop.coordinator).give_up("flights", 2, "lake", "ann", "it refuses")
    assert read(shop, 2).lacking == ("lake",)
    advice = "Write again what it lacks: onceonly repair FILE.py:NAME lake --reason …"
    assert story.how_to_complete(read(shop, 2)) == advice
    shop.repair(interval=NEXT, only=("lake",))
    assert cells(shop, 2) == [
        ["given up, not published; written again by epoch 3", "10 rows*"],
        ["10 rows written again*", "kept epoch 2"],
    ]
    assert story.how_to_complete(read(shop, 2)) == ""


def test_a_correction_that_was_lost_is_told_beside_what_is_in_force(tmp_path):
    shop = Shop(tmp_path, sinks=[LAKE, NEW])
    shop.run("run-1", TEN)
    folder, older = tmp_path / "new", tmp_path / "older"
    shutil.copytree(folder, older)
    shop.repair(keep=("lake",))
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    Person(shop.coordinator).accept_loss("flights", "new", Acceptance("bob", "restored from a copy"))
    assert cells(shop, 1) == [["10 rows*", "10 rows*"], ["kept epoch 1", "10 rows lost by the target"]]
    told = read(shop, 1)
    assert (story.list_lost(told), told.lacking) == (["new"], ())
    assert story.how_to_complete(told) == "Write again what it lacks: onceonly repair FILE.py:NAME new --reason …"
    shop.repair("ann: once more", keep=("lake",))
    assert [row[1] for row in cells(shop, 1)] == [
        "10 rows; replaced by epoch 3",
        "10 rows lost by the target; written again by epoch 3",
        "10 rows in place of epoch 1*",
    ]
    assert story.list_lost(read(shop, 1)) == []


def test_a_chained_checkpoint_has_its_own_repairs_and_a_rewind_takes_all_of_them(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.put(20, 21)
    chain.run("run-2")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW])
    chain.put(22)
    chain.run("run-3")
    for epoch in (2, 1):
        chain.repair(f"ann: {epoch}", interval=None, epoch=epoch, only=("new",))
    assert cells(chain, 4) == [["2 rows*", ""], ["kept epoch 2", "2 rows added*"]]
    assert "--epoch 1 --only" not in story.how_to_complete(read(chain, 1))
    Person(chain.coordinator).rewind("flights", 1, "ann", "wrong rates")
    assert read(chain, 2).in_force == {}
    assert read(chain, 1).in_force == {"lake": (1,), "new": (5,)}
    assert not read(chain, 6).has_repairs


def test_state_is_no_sink_to_complete(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    chain.run("run-1")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, StateSink("totals", "n INT", ["n"])])
    chain.put(20)
    chain.run("run-2")
    assert read(chain, 1).lacking == ()


# ---- what others make of it


def superseded(shop: Shop) -> dict[int, str]:
    epochs = range(1, shop.state.view("flights").head.epoch + 1)
    found = provenance.find_superseded(shop.state, [shop.now(epoch) for epoch in epochs])
    return {epoch: str(fate) for epoch, fate in found.items()}


def test_rows_are_replaced_once_no_sink_shows_them(tmp_path):
    shop = Shop(tmp_path, sinks=[LAKE, NEW])
    shop.run("run-1", TEN)
    shop.repair("ann: lake", keep=("new",))
    assert superseded(shop) == {1: "replaced, not in every sink, by epoch 2"}
    shop.repair("ann: new", keep=("lake",))
    assert superseded(shop) == {1: "replaced by epoch 3"}
    assert provenance.find_superseded(shop.state, [shop.now(1)])[1].by == 3  # asked of it alone, too


def test_a_repair_is_no_progress(tmp_path):
    chain = Shop(tmp_path, mode="chained", sinks=[LAKE])
    last = chain.run("run-1")
    chain.pipeline = replace(chain.pipeline, sinks=[LAKE, NEW])
    chain.repair(interval=None, epoch=1, only=("new",))
    found = summary(chain)
    assert (found.latest.epoch, found.furthest_commit.epoch, found.last_commit.epoch) == (2, last.epoch, 2)
    assert found.rows_by_sink == {"lake": 20, "new": 20}


def test_replaced_rows_are_not_counted_twice_and_repeated_ones_are(shop):
    shop.repair(keep=("late",))
    assert summary(shop).rows_by_sink == {"lake": 10, "late": 10}
    shop.repair("ann: more", again=("late",), keep=("lake",))
    assert summary(shop).rows_by_sink == {"lake": 10, "late": 20}


def test_many_repairs_do_not_hide_how_far_it_has_come(shop):
    for number in range(12):
        done = shop.repair(f"ann: {number}", keep=("late",))
    found = summary(shop)
    assert found.furthest_commit.epoch == 1
    assert (found.last_commit.epoch, found.last_commit.updated_at) == (13, done.updated_at)  # it is what was done last
    assert found.rows_by_sink == {"lake": 10, "late": 10}  # of its records, in every sink


def test_json_says_what_a_repair_writes_and_who_wanted_it(shop):
    done: Checkpoint = shop.repair(keep=("late",))
    told = queries.to_json(done)
    keys = ("only", "repairs", "again", "requested_by", "rows_by_sink")
    assert [told[key] for key in keys] == [["lake"], 1, [], {"who": "ann", "reason": "rates"}, {"lake": 10}]
    plain = queries.to_json(shop.now(1))
    assert [plain[key] for key in keys[:-1]] == [None, None, [], None]
    picture = story.story_json(read(shop, 1))
    assert picture["in_force"] == {"lake": [2], "late": [1]}
    assert picture["story"][1]["sinks"] == {
        "lake": {"did": "replaced", "earlier": [1], "rows": 10, "in_force": True},
        "late": {"did": "kept", "earlier": [1], "rows": None, "in_force": False},
    }


def test_a_request_without_work_says_why(shop):
    done = shop.repair("ann: rates", keep=("late",))
    is_done = story.describe_done(shop.state, done, "ann: rates", ())
    assert is_done.startswith("this request is done, by epoch 2 (lake)")
    assert story.describe_done(shop.state, done, "bob: new", ("lake",)) == "the rows are already in 'lake' (epoch 2)"
    assert story.describe_done(shop.state, done, "bob: other", ()) == ""
