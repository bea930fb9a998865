"""Cached prompt prefixes: keyed by exactly their inputs, equal to a full prefill, bounded, and freed."""

import contextlib
import dataclasses

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, SamplingParams, Voice
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.decode.prefix_cache import MIN_PREFIX, PrefixCache
from higgs_tts.engine.device.memory import PrivatePool
from higgs_tts.engine.prompt.builder import PromptBuilder

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0, max_frames=50)
TEXT = "Hello there. It is 3.14 past noon."


@pytest.fixture(scope="module", params=["v3", "v2", "v2-boson"])
def folder(request, written):
    return written[request.param]


@pytest.fixture
def engine(folder):
    with Engine(EngineConfig(model=str(folder), device="cpu")) as engine:
        yield engine


@pytest.fixture
def fills(engine, monkeypatch):
    """Return (start, stop) of every pass over a prompt."""
    talker, seen = engine.loaded.talker, []
    fill = type(talker).fill
    monkeypatch.setattr(talker, "fill", lambda *args: seen.append(args[-2:]) or fill(talker, *args))
    return seen


def voice(seed, frames=30, transcript="A reference."):
    g = torch.Generator().manual_seed(seed)
    return Voice(torch.randint(0, 1024, (frames, 8), generator=g), transcript)


def row(state):
    return state.cache.keys[:, 0], state.cache.values[:, 0]


def cache(most=4):
    return PrefixCache(PrivatePool(CPU), most)


def whole(prompt):
    return dataclasses.replace(prompt, prefix=0)


@pytest.mark.parametrize("family", ["v3", "v2"])
@pytest.mark.parametrize("length", [1, 4, 9, 20, -1], ids=lambda n: f"after{n}")
def test_a_prompt_in_two_passes_equals_the_whole_prompt(bench, small, family, length):
    """Cut anywhere: in text, inside the reference, before its last position."""
    room, other = bench(family), bench(family)
    prompt = small.prompt(room.config, frames=20)
    length %= len(prompt)
    keys, values = row(room.state)
    expected = room.talker.fill(prompt.ids, prompt.audio, keys, values, 0, len(prompt))[-1]
    other_keys, other_values = row(other.state)
    other.talker.fill(prompt.ids, prompt.audio, other_keys, other_values, 0, length)
    found = other.talker.fill(prompt.ids, prompt.audio, other_keys, other_values, length, len(prompt))[-1]
    assert (found - expected).abs().max() < 1e-5
    assert (other_keys - keys).abs().max() < 1e-5 and (other_values - values).abs().max() < 1e-5
    assert keys[:, :, : len(prompt)].abs().sum(-1).min() > 0 and not keys[:, :, len(prompt) :].any()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_hits_and_misses_give_the_whole_prompt_s_codes(bench, small, family):
    prefixes = cache()
    said = {}
    for name in ("whole", "unkept", "miss", "hit"):
        room = bench(family)
        prompt = small.prompt(room.config, frames=20)
        assert prompt.prefix >= MIN_PREFIX
        prompt = whole(prompt) if name == "whole" else prompt
        prompt.params = GREEDY
        room.prefill([(0, prompt)], prefixes if name in ("miss", "hit") else None)
        said[name] = (room.state.logits.clone(), room.state.cache.keys.clone(), room.run(50))
    for name in ("unkept", "hit"):
        assert all(torch.equal(a, b) for a, b in zip(said[name], said["miss"], strict=True)), name
    assert torch.equal(said["hit"][2], said["whole"][2])
    assert (said["hit"][0] - said["whole"][0]).abs().max() < 1e-5
    assert len(prefixes) == 1


def fake(ids, rows=None, prefix=MIN_PREFIX):
    audio = () if rows is None else ((2, rows),)
    return Sequence(list(ids), audio, prefix=prefix)


def test_only_equal_ids_and_rows_hit_the_cache():
    prefixes, keys = cache(), torch.randn(2, 2, 40, 8)
    ids, rows = list(range(20)), torch.arange(32).view(4, 8)
    prefixes.keep(fake(ids, rows), keys, keys + 1)
    fresh = [torch.zeros_like(keys) for _ in range(2)]
    changed = rows.clone()
    changed[3, 7] += 1
    strangers = [
        fake([*ids[:3], 99, *ids[4:]], rows),
        fake(ids, changed),
        fake(ids),
        fake(ids, rows[:3]),
        fake(ids, rows, MIN_PREFIX + 1),
        Sequence(ids, ((3, rows),), prefix=MIN_PREFIX),
    ]
    for stranger in strangers:
        assert not prefixes.load(stranger, *fresh) and not fresh[0].any()
    assert prefixes.load(fake([*ids[:MIN_PREFIX], 7, 8], rows), *fresh)  # another text
    for found, kept in zip(fresh, (keys, keys + 1), strict=True):
        assert torch.equal(found[:, :, :MIN_PREFIX], kept[:, :, :MIN_PREFIX]) and not found[:, :, MIN_PREFIX:].any()


def test_the_least_recently_used_prefix_is_dropped():
    prefixes, keys = cache(most=2), torch.randn(1, 2, 40, 4)
    one, two, three = (fake(range(n, n + 20)) for n in (0, 100, 200))
    prefixes.keep(one, keys, keys)
    prefixes.keep(two, keys, keys)
    assert prefixes.nbytes() == 2 * 2 * keys[:, :, :MIN_PREFIX].nbytes
    assert prefixes.load(one, keys, keys)
    prefixes.keep(three, keys, keys)
    assert [prefixes.load(prompt, keys, keys) for prompt in (one, two, three)] == [True, False, True]
    prefixes.clear()
    assert not prefixes.load(one, keys, keys) and len(prefixes) == prefixes.nbytes() == 0


def test_prefixes_without_room_are_not_kept():
    class Full(PrivatePool):
        @contextlib.contextmanager
        def allocate(self):
            raise torch.cuda.OutOfMemoryError("full")
            yield

    prefixes, keys = PrefixCache(Full(CPU), 2), torch.randn(1, 2, 40, 4)
    prefixes.keep(fake(range(20)), keys, keys)
    assert not prefixes.load(fake(range(20)), keys, keys)


def test_a_voice_s_prompt_is_computed_once(engine, fills):
    one, two = voice(1), voice(2)
    first = engine.speak(TEXT, one, GREEDY)
    (start, prefix), (again, length) = fills
    assert start == 0 and prefix == again and MIN_PREFIX < prefix < length
    assert torch.equal(engine.speak(TEXT, one, GREEDY).wav, first.wav)
    engine.speak("Another text, then.", one, GREEDY)
    assert [begin for begin, _ in fills[2:]] == [prefix, prefix]
    assert not torch.equal(engine.speak(TEXT, two, GREEDY).codes, first.codes)
    assert [begin for begin, _ in fills[4:]] == [0, prefix]
    without = Voice(one.codes)  # the same codes without their transcript are another prefix
    assert not torch.equal(engine.speak(TEXT, without, GREEDY).codes, first.codes)
    assert torch.equal(engine.speak(TEXT, Voice(one.codes.clone(), one.transcript), GREEDY).wav, first.wav)
    assert len(fills) == 9 and len(engine.loaded.prefixes) == 3


def test_another_scene_is_another_prefix(engine, fills):
    if engine.family == "v3":
        pytest.skip("v3 takes no scene")
    quiet = engine.speak(TEXT, params=GREEDY)
    street = engine.speak(TEXT, params=GREEDY, scene="A street with cars and rain.")
    assert [start == 0 for start, _ in fills] == [True, False, True, False]
    assert not torch.equal(quiet.codes, street.codes)
    assert torch.equal(engine.speak(TEXT, params=GREEDY).codes, quiet.codes)
    assert len(fills) == 5


def test_trimming_and_closing_free_the_prefixes(engine):
    one = voice(1)
    first = engine.speak(TEXT, one, GREEDY)
    loaded = engine.loaded
    held = engine.held_bytes
    assert loaded.prefixes.nbytes() > 0 and held == engine.planned_bytes + loaded.prefixes.nbytes()
    engine.trim()
    assert not len(loaded.prefixes) and engine.held_bytes < engine.planned_bytes
    assert torch.equal(engine.speak(TEXT, one, GREEDY).wav, first.wav)
    engine.close()
    assert not len(loaded.prefixes) and loaded.pool.live_bytes() == 0


@pytest.mark.parametrize("speaker", [None, voice(3), Voice(voice(3).codes)], ids=["nobody", "transcript", "codes"])
def test_the_prefix_ends_where_the_text_begins(engine, speaker):
    build = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config).build
    texts = ("Hello.", "hello", "0", "... well")
    prompts = [build(text, speaker) for text in texts]
    length = prompts[0].prefix
    assert {prompt.prefix for prompt in prompts} == {length} and 0 < length < len(prompts[0])
    assert len({tuple(prompt.ids[:length]) for prompt in prompts}) == 1
    assert len({tuple(prompt.ids[length:]) for prompt in prompts}) == len(texts)
    for at, rows in prompts[0].audio:
        assert at + len(rows) <= length or at >= length
