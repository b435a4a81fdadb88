"""What the run of an unsettled checkpoint does now, for whoever waits for it."""

from __future__ import annotations

from onceonly.airflow.ui.owner_runs import OwnerRun, read_active_tasks
from onceonly.checkpoint.model import Checkpoint
from onceonly.runtime.stage_progress import describe_progress, read_progress
from onceonly.waits import CLOCK


def describe_work(state: str, checkpoint: Checkpoint, run: OwnerRun | None) -> str:
    """Return 'stage is running since 21:21:07 UTC (45 s): 120 of up to 400 records read …'; empty if nobody is at work.

    Args:
        state: the address of the state table.
        run: that owns it; None: it is no run of this Airflow.
    """
    if checkpoint.state.is_settled:
        return ""
    tasks = read_active_tasks(run) if run and run.is_active else []
    texts = list(map(str, tasks))
    progress = read_progress(state, checkpoint)
    if progress and any(task.since and task.since > progress.at for task in tasks):
        progress = None  # of a try that was killed before, which could not delete it
    stage_text = describe_progress(progress) if progress else ""
    if progress and not texts:
        texts.append(f"attempt {checkpoint.attempt} is being staged since {progress.since.strftime(CLOCK)}")
    return ": ".join(filter(None, (", ".join(texts), stage_text)))
