"""Compares a folder of files with all that a sink has published to it, by its manifests and by the files themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.transaction_names import file_stem
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published
from onceonly.counts import count
from onceonly.sinks.files import manifest
from onceonly.sinks.files.handle import FileHandle, StagedFile, fingerprint_json
from onceonly.sinks.files.manifest import Manifest
from onceonly.sinks.staging import history
from onceonly.sinks.staging.verification import (
    MISSING_ADVICE,
    as_accepted_loss,
    as_right,
    as_unknown,
    as_unrecorded,
    as_wrong,
    find_last_decision,
    judge_all,
    parse_handles,
)
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, FileSystem, has_folder
from onceonly.storage.own_paths import MANIFESTS, has_published_name


def verify(
    sink: str, file_system: FileSystem, target: str, published: Sequence[Published], depth: Depth
) -> Iterator[Finding]:
    """Compare the folder with what was published to it, see `VerifiableTarget`.

    Raises:
        OutcomeUnknown: the storage does not answer.
    """
    valid, handles, damaged = parse_handles(published, lambda handle: FileHandle.parse(sink, handle))
    yield from damaged
    with history.require_answer(sink, target):
        yield from FolderVerification(file_system, target, valid, handles, depth).run()


@dataclass
class FolderVerification:
    """One comparison.

    Args:
        published: with valid handles, in the order of decisions.
    """

    file_system: FileSystem
    target: str
    published: Sequence[Published]
    handles: Sequence[FileHandle]
    depth: Depth
    manifests: dict[str, Manifest | None] = field(default_factory=dict)  # by path; None: it is not one of ours
    names: frozenset[str] = frozenset()  # of the files that a reader of the folder sees

    def __post_init__(self) -> None:
        self.streams, self.newest_epoch = set[tuple[str, str, str]](), 0
        self.recorded_manifests, self.recorded_files = set[str](), dict[str, StagedFile]()
        for handle in self.handles:
            self.streams.add(self._stream(handle))
            self.newest_epoch = max(self.newest_epoch, handle.txn.epoch)
            self.recorded_manifests.add(handle.manifest)
            for file in handle.files:
                self.recorded_files[file.final] = file

    def run(self) -> Iterator[Finding]:
        if not has_folder(self.file_system, self.target):
            for publication, handle in zip(self.published, self.handles, strict=True):
                yield self._judge_without_folder(publication, handle)
            return
        self._read_manifests()
        self.names = frozenset(self.file_system.list_visible(self.target))
        yield from judge_all(self.published, self.handles, self._judge, self.depth)
        yield from self._judge_folder()

    def _read_manifests(self) -> None:
        """Read the manifests of this sink's streams: of its pipeline and its state tables."""
        paths = []
        for name in self.file_system.list_names(f"{self.target}/{MANIFESTS}"):
            path = f"{MANIFESTS}/{name}"
            if has_published_name(path):
                parts = name.removesuffix(".manifest").split("-")
                if (parts[0], parts[1], parts[3]) in self.streams:
                    paths.append(path)
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            self.manifests = dict(zip(paths, pool.map(self._read_manifest, paths), strict=True))

    def _read_manifest(self, path: str) -> Manifest | None:
        return manifest.read_ours(self.file_system, f"{self.target}/{path}")

    @staticmethod
    def _stream(handle: FileHandle) -> tuple[str, str, str]:
        pipeline, sink, _, table = file_stem(handle.txn).split("-")
        return pipeline, sink, table

    # ---- one publication

    def _judge(self, publication: Published, handle: FileHandle) -> Iterator[Finding]:
        content = self.manifests.get(handle.manifest)
        is_ours = content is not None and content["txn"] == handle.txn.name and not manifest.is_given_up(content)
        if publication.missing:
            yield self._judge_missing(publication, content)
        elif publication.taken_out_by is not None:
            yield self._judge_taken_out(publication, handle, is_ours)
        elif handle.manifest not in self.manifests:
            if not self.file_system.is_same_folder(handle.target, self.target):
                yield self._elsewhere(publication, handle)
                return
            why = f"{self.target}/{handle.manifest} is not there"
            yield as_wrong(publication, FindingCode.COMMIT_MISSING, why, MISSING_ADVICE)
            yield from self._judge_files(publication, handle)
        elif content is None or not is_ours or not self._has_digest(publication, content):
            why = f"{self.target}/{handle.manifest} is not the manifest that was written"
            yield as_wrong(publication, FindingCode.COMMIT_CHANGED, why, MISSING_ADVICE)
            yield from self._judge_files(publication, handle)
        else:
            findings = [*self._judge_record(publication, handle, content), *self._judge_files(publication, handle)]
            why = f"{count(handle.rows, 'row')} in {count(len(handle.files), 'file')}, as its manifest lists them"
            yield from findings or [as_right(publication, FindingCode.RIGHT, why)]

    def _judge_missing(self, publication: Published, content: Manifest | None) -> Finding:
        if content is not None and self._has_digest(publication, content):
            why = "it is recorded as lost, and its manifest is there"
            return as_wrong(publication, FindingCode.LOSS_IS_BACK, why, MISSING_ADVICE)
        return as_accepted_loss(publication)

    def _judge_taken_out(self, publication: Published, handle: FileHandle, is_ours: bool) -> Finding:
        left = [file.final for file in handle.files if file.final in self.names]
        if is_ours or left:
            what = handle.manifest if is_ours else left[0]
            why = f"epoch {publication.taken_out_by} has taken it out, and {self.target}/{what} is there"
            return as_wrong(publication, FindingCode.NOT_TAKEN_OUT, why)
        why = f"epoch {publication.taken_out_by} has taken it out, with its manifest and its files"
        return as_right(publication, FindingCode.TAKEN_OUT, why)

    def _has_digest(self, publication: Published, content: Manifest) -> bool:
        digest = publication.publication.proof.get("sha256")
        return digest is None or manifest.digest(content) == digest

    def _judge_record(self, publication: Published, handle: FileHandle, content: Manifest) -> Iterator[Finding]:
        """Compare the manifest with the handle in the state table."""
        recorded = [{"path": file.final, **fingerprint_json(file.fingerprint)} for file in handle.files]
        if content["files"] != recorded:
            why = f"{self.target}/{handle.manifest} lists other files than the state table records"
            yield as_wrong(publication, FindingCode.RECORD_DIFFERS, why)
        elif content["rows"] != handle.rows:
            why = f"{self.target}/{handle.manifest} has {content['rows']:,} rows, and {handle.rows:,} are recorded"
            yield as_wrong(publication, FindingCode.ROW_COUNT, why)
        if content["decision"] != publication.decision:
            why = (
                f"{self.target}/{handle.manifest} is of decision {content['decision']}, and not {publication.decision}"
            )
            yield as_wrong(publication, FindingCode.RECORD_DIFFERS, why)

    def _judge_files(self, publication: Published, handle: FileHandle) -> Iterator[Finding]:
        for file in handle.files:
            damage = self._find_damage(file)
            if damage:
                code, why = damage
                yield as_wrong(publication, code, why, MISSING_ADVICE)
                return

    def _find_damage(self, file: StagedFile) -> tuple[FindingCode, str] | None:
        path = f"{self.target}/{file.final}"
        size = self.file_system.find_size(path)
        if size is None:
            return FindingCode.FILE_MISSING, f"{path} is not there"
        if size != file.fingerprint.bytes:
            return FindingCode.FILE_SIZE, f"{path} has {size:,} bytes, and {file.fingerprint.bytes:,} were published"
        if not self.depth.reads_rows:
            return None
        fingerprint = self.file_system.read_fingerprint(path)
        if fingerprint != file.fingerprint and fingerprint.algorithm == file.fingerprint.algorithm:
            return FindingCode.FILE_CHANGED, f"{path} has other bytes than were published ({fingerprint.algorithm})"
        return None

    def _judge_without_folder(self, publication: Published, handle: FileHandle) -> Finding:
        if publication.missing:
            return as_accepted_loss(publication)
        if not self.file_system.is_same_folder(handle.target, self.target):
            return self._elsewhere(publication, handle)
        return as_wrong(publication, FindingCode.TARGET_MISSING, f"{self.target} does not exist", MISSING_ADVICE)

    def _elsewhere(self, publication: Published, handle: FileHandle) -> Finding:
        why = f"it was published to {handle.target}, and the sink's folder is {self.target} now"
        return as_unknown(publication, FindingCode.ELSEWHERE, why, f"Look into {handle.target} for its files.")

    # ---- the folder

    def _judge_folder(self) -> Iterator[Finding]:
        last = find_last_decision(self.published)
        listed = set[str]()
        for path, content in self.manifests.items():
            if content is None or path in self.recorded_manifests:
                continue
            listed |= manifest.list_paths(content)
            yield from self._judge_unrecorded(path, content, last)
        yield from self._judge_other_files(listed)

    def _judge_unrecorded(self, path: str, content: Manifest, last: int) -> Iterator[Finding]:
        if manifest.is_given_up(content):
            return
        decision = int(content.get("decision", 0))
        yield as_unrecorded(f"{self.target}/{path} is of decision {decision}", decision > last)

    def _judge_other_files(self, listed: set[str]) -> Iterator[Finding]:
        """Find files with a name of this sink that no manifest lists, and copies of published ones."""
        files_by_size: dict[int, list[StagedFile]] = {}
        for file in self.recorded_files.values():
            files_by_size.setdefault(file.fingerprint.bytes, []).append(file)
        for name in sorted(self.names - self.recorded_files.keys() - listed):
            parts = name.rpartition("/")[2].split("-")
            path = f"{self.target}/{name}"
            if has_published_name(name):
                if (parts[0], parts[1], parts[3]) not in self.streams:
                    continue  # of another pipeline
                why = f"{path} has a name of this sink, and nobody has published it"
                if int(parts[2]) > self.newest_epoch:
                    yield Finding(Judgement.UNKNOWN, FindingCode.NOT_RECORDED_YET, why)
                else:
                    yield Finding(Judgement.WRONG, FindingCode.FILE_UNPUBLISHED, why)
                continue
            for file in files_by_size.get(self.file_system.find_size(path) or 0, ()):
                if self.file_system.read_fingerprint(path) == file.fingerprint:
                    why = f"{path} has the content of {file.final}, which was published once"
                    yield Finding(Judgement.WRONG, FindingCode.ROWS_TWICE, why)
                    break
