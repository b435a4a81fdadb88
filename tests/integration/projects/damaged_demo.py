"""A healthy demo in five targets (a table, a folder, a state, a topic, dead letters), and how it is damaged.

    python -m integration.projects.damaged_demo    # with tests/ on the path; starts a broker, prints what was found

Each damage is done to one target of a new demo. Then all targets are compared with what is recorded: the damage has to
be named by its code, and nothing else may be accused.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from integration.projects.kafka_shelf import KafkaShelf, delete_records, delete_topic, produce, recreate_topic
from unit.lightdelta import LightDelta, transaction
from unit.shelves import DeltaShelf, FileShelf, Shelf, StateShelf

from onceonly.checkpoint.verification import Judgement
from onceonly.sinks.state.runs import DONE
from onceonly.testing.ledger import list_codes

Found = dict[str, list[tuple[int | None, str]]]  # target -> (epoch, code) of what is not right
EPOCH = 2  # the one that is damaged, of four; the fourth has no rows


@dataclass
class Demo:
    """Four checkpoints in each target: the third replaces nothing, and the fourth is empty."""

    folder: Path
    bootstrap: str
    table: DeltaShelf = field(init=False)
    files: FileShelf = field(init=False)
    state: StateShelf = field(init=False)
    topic: KafkaShelf = field(init=False)
    dead: DeltaShelf = field(init=False)

    def __post_init__(self) -> None:
        self.table = DeltaShelf(self.folder / "table", self.folder / "table-receipts")
        self.files = FileShelf(self.folder / "files", self.folder / "files-receipts")
        self.state = StateShelf(self.folder / "state", self.folder / "state-receipts")
        self.topic = KafkaShelf(self.folder / "topic", self.bootstrap)
        self.dead = DeltaShelf(self.folder / "dead", self.folder / "dead-receipts", LightDelta)
        for epoch, numbers in enumerate(((1, 2), (3, 4, 5), (6, 7), ()), 1):
            for shelf in self.targets.values():
                shelf.publish(epoch, *numbers)

    @property
    def targets(self) -> dict[str, Shelf]:
        return {
            "table": self.table,
            "files": self.files,
            "state": self.state,
            "topic": self.topic,
            "dead": self.dead,
        }

    def verify(self) -> Found:
        found: Found = {}
        for name, shelf in self.targets.items():
            findings = shelf.ledger.verify(True)
            found[name] = [*list_codes(findings), *list_codes(findings, Judgement.UNKNOWN)]
        return found


@dataclass(frozen=True)
class DemoDamage:
    """Args: name; target that is damaged; codes that have to be found there, each with the epochs that may have it."""

    name: str
    target: str
    do: Callable[[Demo], Any]
    codes: tuple[str, ...]
    all_epochs: bool = False  # all of that target are lost

    def judge(self, found: Found) -> str:
        """Say what is wrong with what was found; empty: the damage is named, and nothing healthy is accused."""
        for name, pairs in found.items():
            if name != self.target and pairs:
                return f"{name} is accused: {pairs}"
        pairs = found[self.target]
        if not {code for _, code in pairs} & set(self.codes):
            return f"not found: {pairs}"
        if strange := {code for _, code in pairs} - set(self.codes):
            return f"accused of {sorted(strange)}"
        healthy = [pair for pair in pairs if pair[0] not in (None, EPOCH)]
        return f"healthy epochs are accused: {healthy}" if healthy and not self.all_epochs else ""


def file_of(demo: Demo) -> Path:
    return demo.table.file_of(EPOCH)


def corrupt(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(bytes(content))


def corrupt_run(demo: Demo) -> None:
    corrupt(demo.state.run_of(EPOCH))


def recreate_table(demo: Demo) -> None:
    schema = demo.table.table.schema()
    shutil.rmtree(demo.table.folder)
    DeltaTable.create(str(demo.table.folder), schema)


def rename_application(demo: Demo) -> None:
    entry = demo.table.entry(EPOCH)
    entry.write_text(entry.read_text().replace("onceonly/", "nobody/"))


def add_copy(demo: Demo) -> None:
    shutil.copy(file_of(demo), demo.table.folder / "part-copy.parquet")
    demo.table.append_entry({"add": {**demo.table.add_of(EPOCH), "path": "part-copy.parquet", "dataChange": True}})


def add_again(demo: Demo) -> None:
    demo.table.table.optimize.compact()
    demo.table.append_entry({"add": {**demo.table.add_of(EPOCH), "dataChange": True}})


def add_leftover(demo: Demo) -> None:
    handle = demo.table.sink().stage(transaction(9), [7])
    staged = next((demo.table.folder / handle["folder"]).glob("*.parquet"))
    add = {**demo.table.add_of(EPOCH), "path": str(staged.relative_to(demo.table.folder)), "dataChange": True}
    demo.table.append_entry({"add": {**add, "size": staged.stat().st_size, "stats": '{"numRecords": 1}'}})


def lose_a_row_in_a_rewrite(demo: Demo) -> None:
    file = demo.table.folder / "part-compact.parquet"
    pq.write_table(pa.table({"n": pa.array([3, 4], pa.int64())}), file)
    old = demo.table.add_of(EPOCH)
    add = {**old, "path": file.name, "size": file.stat().st_size, "stats": '{"numRecords": 2}', "dataChange": False}
    remove = {"path": old["path"], "dataChange": False, "deletionTimestamp": 1}
    demo.table.append_entry({"remove": remove}, {"add": add})


def overwrite_table(demo: Demo) -> None:
    write_deltalake(demo.table.folder, pa.table({"n": pa.array([9], pa.int64())}), mode="overwrite")


def edit_manifest(demo: Demo) -> None:
    manifest = demo.files.manifest_of(EPOCH)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "rows": 99}))


def change_bytes(demo: Demo) -> None:
    file = demo.files.file_of(EPOCH)
    file.write_text(file.read_text().replace("3", "8"))


def copy_file(demo: Demo) -> None:
    shutil.copy(demo.files.file_of(EPOCH), demo.files.folder / "copy.jsonl")


def add_file_with_own_name(demo: Demo) -> None:
    file = demo.files.file_of(EPOCH)
    shutil.copy(file, file.with_name(file.name.replace("-00000.", "-00009.")))


def edit_state(shelf: Shelf, **changes: Any) -> None:
    shelf.ledger.change(EPOCH, handle={**shelf.handle_of(EPOCH), **changes})


def edit_producer(demo: Demo) -> None:
    handle = demo.topic.handle_of(EPOCH)
    handle["parts"][0]["tx"]["producer_id"] += 100_000
    demo.topic.ledger.change(EPOCH, handle=handle)


DAMAGES: tuple[DemoDamage, ...] = (
    DemoDamage("a file of the table deleted", "table", lambda demo: file_of(demo).unlink(), ("file-missing",)),
    DemoDamage(
        "a file of the table truncated",
        "table",
        lambda demo: file_of(demo).write_bytes(file_of(demo).read_bytes()[:-9]),
        ("file-size",),
    ),
    DemoDamage("a file of the table corrupted", "table", lambda demo: corrupt(file_of(demo)), ("file-unreadable",)),
    DemoDamage("a row deleted by SQL", "table", lambda demo: demo.table.table.delete("n = 3"), ("rows-deleted",)),
    DemoDamage(
        "a row updated by SQL",
        "table",
        lambda demo: demo.table.table.update(updates={"n": "33"}, predicate="n = 3"),
        ("rows-changed",),
    ),
    DemoDamage("the table restored", "table", lambda demo: demo.table.table.restore(1), ("table-restored",), True),
    DemoDamage("the table overwritten", "table", overwrite_table, ("rows-overwritten",), True),
    DemoDamage("the table recreated", "table", recreate_table, ("target-replaced",), True),
    DemoDamage("the table dropped", "table", lambda demo: shutil.rmtree(demo.table.folder), ("target-missing",), True),
    DemoDamage(
        "the table's last commit removed",
        "table",
        lambda demo: demo.table.entry(4).unlink(),
        ("target-went-back", "evidence-behind"),
        True,
    ),
    DemoDamage(
        "a commit removed from the middle of the log",
        "table",
        lambda demo: demo.table.entry(2).unlink(),
        ("target-unreadable", "history-gone"),
        True,
    ),
    DemoDamage(
        "the application id of a commit rewritten", "table", rename_application, ("commit-changed", "file-unpublished")
    ),
    DemoDamage("a file added twice under another name", "table", add_copy, ("rows-twice",)),
    DemoDamage("a rewritten file added again", "table", add_again, ("rows-twice",)),
    DemoDamage("a file of an aborted attempt added", "table", add_leftover, ("file-unpublished",)),
    DemoDamage("a row lost in a rewrite", "table", lose_a_row_in_a_rewrite, ("rows-lost-in-rewrite",)),
    DemoDamage(
        "a file deleted from the folder", "files", lambda demo: demo.files.file_of(2).unlink(), ("file-missing",)
    ),
    DemoDamage("bytes of a file changed", "files", change_bytes, ("file-changed",)),
    DemoDamage("a file copied under another name", "files", copy_file, ("rows-twice",)),
    DemoDamage("a file added under a name of ours", "files", add_file_with_own_name, ("file-unpublished",)),
    DemoDamage("a manifest edited", "files", edit_manifest, ("commit-changed",)),
    DemoDamage("a manifest removed", "files", lambda demo: demo.files.manifest_of(EPOCH).unlink(), ("commit-missing",)),
    DemoDamage("a run of the state removed", "state", lambda demo: demo.state.run_of(2).unlink(), ("file-missing",)),
    DemoDamage(
        "a run of the state corrupted", "state", lambda demo: corrupt(demo.state.run_of(2)), ("file-unreadable",)
    ),
    DemoDamage(
        "the mark of a state removed",
        "state",
        lambda demo: (demo.state.folder_of(EPOCH) / DONE).unlink(),
        ("commit-missing",),
    ),
    DemoDamage(
        "records added twice by another producer",
        "topic",
        lambda demo: produce(demo.topic, demo.topic.records_of(EPOCH)),
        ("rows-twice",),
    ),
    DemoDamage(
        "a transaction's records committed in another one",
        "topic",
        lambda demo: produce(demo.topic, demo.topic.records_of(EPOCH), "copy"),
        ("rows-twice",),
    ),
    DemoDamage("the topic recreated", "topic", lambda demo: recreate_topic(demo.topic), ("target-replaced",), True),
    DemoDamage("the topic deleted", "topic", lambda demo: delete_topic(demo.topic), ("target-missing",), True),
    DemoDamage("records deleted", "topic", lambda demo: delete_records(demo.topic, EPOCH), ("history-gone",), True),
    DemoDamage("another producer recorded", "topic", edit_producer, ("row-count",)),
    DemoDamage("a dead letter deleted", "dead", lambda demo: demo.dead.file_of(EPOCH).unlink(), ("file-missing",)),
    DemoDamage("the rows of a state row edited", "table", lambda demo: edit_state(demo.table, rows=9), ("row-count",)),
    DemoDamage(
        "a state row removed",
        "table",
        lambda demo: demo.table.remove_from_state(EPOCH),
        ("commit-unrecorded", "file-unpublished"),
    ),
    DemoDamage(
        "a handle damaged",
        "files",
        lambda demo: edit_state(demo.files, manifest="../elsewhere"),
        ("record-damaged", "commit-unrecorded"),
    ),
    DemoDamage(
        "a checkpoint recorded as replaced",
        "table",
        lambda demo: demo.table.ledger.change(EPOCH, taken_out_by=3),
        ("not-taken-out",),
    ),
)


def run(bootstrap: str, folder: Path) -> Iterator[tuple[DemoDamage, str]]:
    """Do each damage to a new demo; yields what is wrong with what was found, empty if nothing is."""
    for number, damage in enumerate(DAMAGES):
        demo = Demo(folder / str(number), bootstrap)
        damage.do(demo)
        yield damage, damage.judge(demo.verify())


def main() -> int:
    from onceonly.dev.services import machine
    from onceonly.dev.services.kafka import KafkaBroker

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = machine.free_port()
        broker = KafkaBroker(folder / "broker", port)
        broker.launch()
        try:
            broker.wait()
            failures = 0
            for number, (damage, problem) in enumerate(run(broker.address(port), folder), 1):
                failures += bool(problem)
                print(f"{number:2} {damage.target:6} {damage.name:50} {problem or ', '.join(damage.codes)}")
            print(f"{len(DAMAGES) - failures} of {len(DAMAGES)} damages found and named, {failures} not")
            return int(failures > 0)
        finally:
            broker.daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
