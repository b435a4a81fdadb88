"""The explorer in small: every scenario with the schedules that deviate least. All of them: make explore."""

import importlib.util

import pytest

from explore.__main__ import parse
from explore.mutants import MUTANTS
from explore.mutate import changed
from explore.scenario import SINGLES
from explore.scenarios import SCENARIOS, by_name
from explore.search import Search, play, verdict

FEW = 40  # schedules


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_schedule_breaks_a_promise(scenario):
    found = Search(scenario, bound=SINGLES, most=FEW).run()
    assert found.violations == []


def test_a_search_is_the_same_each_time():
    first, second = (Search(by_name("commit-twice"), most=30).run() for _ in range(2))
    assert (first.schedules, first.states) == (second.schedules, second.states)


def test_who_is_killed_does_nothing_any_more_and_recovery_goes_on():
    scenario, deviations = parse("run-recover:8=dies")
    schedule = play(scenario, scenario.begin(), deviations, scenario.bound)
    at = next(number for number, line in enumerate(schedule.log) if "DIES" in line)
    assert not [line for line in schedule.log[at + 1 :] if line.startswith("run1")]
    assert verdict(scenario, schedule) == []


def test_scenarios_have_names_of_their_own():
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_takes_out_a_guard_that_is_there(mutant):
    spec = importlib.util.find_spec(mutant.module)
    compile(changed(spec.origin, mutant), spec.origin, "exec")  # LookupError: the list has to follow the code
    assert by_name(mutant.seen_by)
