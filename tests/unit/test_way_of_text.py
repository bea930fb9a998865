"""The path from Engine.speak to the network: few files, each room entered once, as ARCHITECTURE.md lists it."""

import itertools
import pathlib
import re
import traceback

import pytest
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, SamplingParams
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.talker import Talker

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE = ROOT / "engine"


def way_to(function, monkeypatch):
    """Return the engine's files on the stack, from Engine.speak to the first call of `function`."""
    stacks = []
    real = getattr(*function)

    def seen(*args, **kwargs):
        calls = traceback.extract_stack()[:-1]
        speaks = [number for number, call in enumerate(calls) if call.name == "speak"]
        if not speaks:  # opening looks at what the talker predicts
            return real(*args, **kwargs)
        files = [*(call.filename for call in calls[speaks[-1] :]), real.__code__.co_filename]
        ours = [path.relative_to(ENGINE).as_posix() for path in map(pathlib.Path, files) if ENGINE in path.parents]
        stacks.append([path for path, _ in itertools.groupby(ours)])
        return real(*args, **kwargs)

    monkeypatch.setattr(*function, seen)
    with Engine(EngineConfig(str(EMBEDDED), device="cpu", context=512)) as engine:
        engine.speak("Hello.", params=SamplingParams(max_frames=3))
    monkeypatch.undo()
    return stacks[-1]


WAYS = {
    "prompt": (PromptBuilder, "build"),
    "prefill": (Talker, "fill"),
    "step": (Talker, "decode"),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_way_of_a_text_takes_few_files_and_enters_each_room_once(name, monkeypatch):
    way = way_to(WAYS[name], monkeypatch)
    rooms = [room for room, _ in itertools.groupby(path.partition("/")[0] for path in way)]
    assert len(way) <= 7, way
    assert len(rooms) == len(set(rooms)), rooms


def test_the_architecture_page_lists_the_way_of_a_text(monkeypatch):
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.findall(r"\| `engine/([\w/]+\.py)` \|$", page, re.MULTILINE)
    for name in ("prefill", "step"):
        way = way_to(WAYS[name], monkeypatch)
        assert [path for path in listed if path in way] == way
