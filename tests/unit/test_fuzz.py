"""Every parser of untrusted input returns a value or raises a HiggsError of one sentence."""

import random

import pytest

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")
pytest.importorskip("hypothesis", reason="hypothesis is not installed: it draws the input")

from higgs_tts.tests.fuzzed import PARSERS, outcome
from hypothesis import HealthCheck, given, seed, settings

EXAMPLES = 50
SEED = random.SystemRandom().randrange(1 << 32)


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_has_a_value_or_a_sentence(name):
    parser = PARSERS[name]
    print(f"repeat it: python tests/faults/faults.py fuzz --parsers {name} --examples {EXAMPLES} --seed {SEED}")
    for found in parser.found:
        outcome(parser, found)

    @seed(SEED)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(parser.inputs)
    def parse(what):
        outcome(parser, what)

    parse()
