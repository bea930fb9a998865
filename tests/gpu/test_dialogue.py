"""Dialogues on the GPU: a turn's codes do not depend on its batch, and memory is freed."""

import gc

import pytest
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, Listener, SamplingParams, Turn, Voice

PARAMS = SamplingParams(seed=5, max_frames=60)
SCENE = [Turn(("Ann", "Bob")[number % 2], f"This is what turn number {number} says.") for number in range(66)]


def voices():
    codes = torch.randint(0, 1024, (2, 60, 8), generator=torch.Generator().manual_seed(1))
    return {name: Voice(one, "A reference.", name) for name, one in zip(("Ann", "Bob"), codes, strict=True)}


def config(**changes):
    return EngineConfig(**{"model": str(EMBEDDED), "device": "cuda:0", "context": 1024, **changes})


def codes_of(speech):
    """Return the codes of each turn."""
    return [speech.codes[slice(*turn.frames)] for turn in speech.turns]


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_turn_s_codes_do_not_depend_on_other_turns(dtype):
    said = {}
    for batch in (2, 8, 64):
        with Engine(config(batch=batch, dtype=dtype)) as engine:
            said[batch] = engine.speak_turns(SCENE, voices(), PARAMS)
    for speech in said.values():
        assert torch.equal(speech.codes, said[2].codes)
        assert torch.allclose(speech.wav, said[2].wav, atol=1e-3)  # windows have other company, and cuDNN uses TF32
    turns = codes_of(said[2])
    with Engine(config(dtype=dtype)) as engine:
        for place in (0, 7):
            alone = engine.speak_turns([SCENE[place]], voices(), PARAMS)
            assert torch.equal(alone.codes, turns[place]), "one turn goes the way of many"
        edited = engine.speak_turns([*SCENE[:5], Turn("Ann", "A new one."), *SCENE[5:]], voices(), PARAMS, reuse=False)
        again = codes_of(edited)
        assert all(torch.equal(one, other) for one, other in zip(turns, again[:5] + again[6:], strict=True))


def test_a_chunk_s_codes_do_not_depend_on_later_chunks():
    """Without a voice the first is spoken alone. The second uses the batch's path, even if it is the last."""
    sentences = ["This is the first sentence of all.", "Then there comes another one.", "And a third one ends it."]
    params = SamplingParams(seed=5, chunk_seconds=2.5, retries=0)
    with Engine(config()) as engine:
        two, three = (engine.speak(" ".join(sentences[:count]), params=params) for count in (2, 3))
    assert (two.chunks, three.chunks) == (2, 3)
    assert torch.equal(two.codes, three.codes[: two.frames])


def test_a_scene_leaves_no_memory_on_the_device():
    free = []
    for _ in range(3):
        with Engine(config()) as engine:
            for _ in range(2):
                engine.speak_turns(
                    [*SCENE[:12], Turn("Cid", "I have no voice."), Turn("Cid", "Now I do.")], voices(), PARAMS
                )
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[1] == free[2]


def test_a_pause_is_exact_while_the_codec_runs_beside_the_talker():
    heard = []
    with Engine(config()) as engine:
        text = "One apple is here. [pause 1.25] Two apples are there."
        speech = engine.speak(text, params=PARAMS)
        engine.speak(text, params=PARAMS, listener=Listener(on_audio=lambda wav: heard.append(wav.clone())))
    for wav in (speech.wav, torch.cat(heard)):
        edges = torch.cat([torch.zeros(1), (wav == 0).float(), torch.zeros(1)]).diff().nonzero().flatten()
        assert int((edges[1::2] - edges[::2]).max()) == 1.25 * SAMPLE_RATE
