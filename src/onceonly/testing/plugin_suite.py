"""The contract suite on the target that `pytest --onceonly-sink` names: its plugin has pytest collect this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceonly.testing import plugin
from onceonly.testing.contract import SinkContract, Target

(TARGET,) = plugin.chosen


class TestSink(SinkContract):
    breaks = TARGET.breaks
    damages = TARGET.damages

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        make_target: Any = TARGET
        target: Target = make_target(str(tmp_path / "target"))
        return target
