"""A thousand random scenarios of the pool on a virtual clock."""

import random

import pytest
from higgs_tts.tests.pool_scenarios import Failed, Scenario


def test_whatever_fails_and_whoever_leaves_each_sequence_is_heard_once():
    first = random.SystemRandom().randrange(1 << 32)
    print(f"seeds {first} to {first + 999}")
    for seed in range(first, first + 1000):
        try:
            Scenario(seed).run()
        except Failed as error:
            pytest.fail(f"{error}. Repeat it: python tests/faults/faults.py pools --seed {seed}", pytrace=False)


def test_a_seed_repeats_a_scenario():
    logs: list[list[str]] = [[], []]
    for log in logs:
        Scenario(45, log.append).run()
    assert logs[0] == logs[1] and len(logs[0]) > 10
