"""Verification: do the targets have all that was published, once? Its result is kept beside the state table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from onceonly.airflow import notices
from onceonly.airflow.base import OnceonlyOperator, task_outcome, verification_page
from onceonly.airflow.notices import Notifier
from onceonly.airflow.versions import AirflowFailException

MAX_FINDINGS = 5  # of a pipeline, that a notice tells


class VerifyOperator(OnceonlyOperator):
    """Verifies pipelines, one after the other; one that is wrong fails the task after all were verified.

    What can no longer be known does not fail it: it is in the log, and on the page.

    Args:
        pipelines: their names; None: all of the state table.
        deep: read data files and logs, and count their records.
        since: how far back checkpoints are looked at; None: all are.
        on_wrong: notifiers that are called for each pipeline that is wrong, with `wrong` in their context.
    """

    template_fields: Sequence[str] = ("pipelines",)

    def __init__(
        self,
        *,
        pipelines: Sequence[str] | None = None,
        deep: bool = False,
        since: timedelta | None = None,
        on_wrong: Notifier | Sequence[Notifier] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.pipelines, self.deep, self.since = pipelines, deep, since
        self.on_wrong = notices.as_list(on_wrong)

    def execute(self, context: Any) -> dict[str, str]:
        """Return by pipeline what came of it: right, wrong or unknown."""
        from onceonly.runtime.verifications import verify_pipeline
        from onceonly.statetable.table import Snapshot

        judgements: dict[str, str] = {}
        problem: Exception | None = None
        with task_outcome():
            services = self.services()
            start = datetime.now(UTC) - self.since if self.since else None
            for name in self.pipelines or Snapshot(services.settings.state).pipelines():
                try:
                    data, unrecorded = verify_pipeline(services, name, self.deep, start)
                except Exception as error:  # of one pipeline: the others are verified all the same
                    self.log.error("%s", error)
                    problem = problem or error
                    continue
                problem = problem or unrecorded
                judgements[name] = data["judgement"]
                self._report(context, data)
            wrong = sorted(filter(lambda name: judgements[name] == "wrong", judgements))
            if wrong:
                pages = "\n".join(map(verification_page, wrong))
                raise AirflowFailException(f"wrong: {', '.join(wrong)}. What, and why, is in this log, and on\n{pages}")
            if problem:
                raise problem
        return judgements

    def _report(self, context: Any, data: Mapping[str, Any]) -> None:
        """Log a result, and notify people if something is wrong."""
        from onceonly.views.verification_report import describe_judgement, describe_until, name_subject

        self._say(f"{data['pipeline']}: {describe_judgement(data)} {describe_until(data)}")
        for finding in data["findings"]:
            where = f"{name_subject(finding)} epoch {finding['epochs'] or '-'} [{finding['code']}]"
            self.log.warning("%s: %s: %s %s", data["pipeline"], where, finding["why"], finding["advice"])
        if data["judgement"] == "wrong":
            for failure in notices.notify_wrong(self.on_wrong, context, make_notice(data)):
                self.log.warning("%s", failure)


def make_notice(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a notifier gets as `wrong` in its context, beside what Airflow has there."""
    from onceonly.views.verification_report import describe_judgement, name_subject

    findings = []
    for finding in data["findings"]:
        if finding["judgement"] == "wrong":
            findings.append(f"{name_subject(finding)} epoch {finding['epochs'] or '-'}: {finding['why']}")
    return {
        "pipeline": data["pipeline"],
        "text": f"{data['pipeline']} is not as it was published. {describe_judgement(data)}",
        "findings": findings[:MAX_FINDINGS],
        "page": verification_page(data["pipeline"]),
    }
