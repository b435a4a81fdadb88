"""A process that commits, aborts or recovers one checkpoint as soon as it may. Arguments: FOLDER SPARK ACTION GO."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from integration.projects.project import Project

from onceonly.errors import OnceonlyError
from onceonly.runtime import live_services, owners

PIPELINE = "numbers_chained"


def main() -> None:
    folder, spark, action, go = sys.argv[1:5]
    through = live_services.open_coordinator(Project.found(folder, spark).parts)
    epoch = through.state_table.view(PIPELINE).head.epoch
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    try:
        match action:
            case "commit":
                print(through.commit(PIPELINE, epoch).state.value)
            case "abort":
                print(through.abort(PIPELINE, epoch, "a rival").state.value)
            case "recover":
                through.recover(PIPELINE, owners.is_never_alive)
    except OnceonlyError as error:
        print(f"{type(error).__name__}: {error.why}")
    heavy = {"pyspark", "great_expectations"} & set(sys.modules)
    assert not heavy, f"a commit, an abort or a recovery imports {heavy}"


if __name__ == "__main__":
    main()
