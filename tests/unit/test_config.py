"""Numbers in SamplingParams and EngineConfig have one range, shared by the engine, the widgets and the terminal."""

import dataclasses

import pytest
from higgs_tts.engine import ClipParams, EngineConfig, HiggsError, SamplingParams, range_of
from higgs_tts.engine.core.config import CallLimits
from higgs_tts.engine.tools.arguments import make_parser

NUMBERS = [
    (settings, field)
    for settings in (SamplingParams, EngineConfig, ClipParams, CallLimits)
    for field in dataclasses.fields(settings)
    if field.type in ("int", "float")
]
GIVEN = {SamplingParams: {}, EngineConfig: {"model": "x"}, ClipParams: {}, CallLimits: {}}
every_number = pytest.mark.parametrize("settings, field", NUMBERS, ids=lambda value: getattr(value, "name", ""))


@every_number
def test_values_at_the_limits_are_legal_and_those_beyond_refused(settings, field):
    low, high = field.metadata["range"]
    for value in (low, high, field.default):
        settings(**GIVEN[settings], **{field.name: value})
    for value in (low - 1, high + 1, float("nan")):
        with pytest.raises(HiggsError, match=rf"^{field.name} .*{value}.*{low}.*{high}"):
            settings(**GIVEN[settings], **{field.name: value})


@every_number
def test_offered_ranges_are_legal(settings, field):
    low, high, _ = range_of(settings, field.name)
    assert field.metadata["range"][0] <= low <= field.default <= high <= field.metadata["range"][1]


def test_the_terminal_uses_the_fields_defaults_and_ranges(capsys):
    args = vars(make_parser().parse_args(["say", "Hi", "--out", "a.wav"]))
    for name in ("seed", "temperature", "top_p", "top_k", "max_frames"):
        assert args[name] == getattr(SamplingParams, name)
    with pytest.raises(SystemExit):
        make_parser().parse_args(["say", "--help"])
    assert "0.01 to 1.0, default 0.8" in " ".join(capsys.readouterr().out.split())


def test_every_command_and_option_has_help():
    (commands,) = [action for action in make_parser()._actions if action.dest == "command"]
    assert {choice.dest for choice in commands._choices_actions if choice.help} == set(commands.choices)
    silent = [
        (name, action.option_strings or action.dest)
        for name, command in commands.choices.items()
        for action in command._actions
        if not action.help
    ]
    assert not silent
