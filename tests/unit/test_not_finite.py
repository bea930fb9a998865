"""NaN and infinities in the model's results stop speech with a clear error, with every runner."""

import dataclasses

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, Listener, SamplingParams, Voice
from higgs_tts.engine.core.codes import BOC, EOC
from higgs_tts.engine.decode.scheduler import Scheduler

PARAMS = SamplingParams(seed=7, max_frames=30)
INF, NAN = float("inf"), float("nan")
REFUSED = "NaN or infinity"
WEIGHTS = {
    "the last norm": lambda talker: talker.norm[5:6],
    "a layer's norm": lambda talker: talker.layers[0].code.mlp_norm[5:6],
    "a product": lambda talker: talker.layers[1].code.down.data[3, 7:8],
    "the prompt's product": lambda talker: talker.layers[0].text.gate_up.data[3, 7:8],
    "one code's head": lambda talker: talker.head_codes.data[2 * 1026 + 700, 9:10],
}


def said(small, room, count, params=PARAMS):
    """Return the codes of so many sequences."""
    prompts = [small.prompt(room.config, seed=index, frames=3 + 2 * index) for index in range(count)]
    sequences = [dataclasses.replace(prompt, index=index, params=params) for index, prompt in enumerate(prompts)]
    scheduler = Scheduler(room)
    scheduler.add(*sequences)
    while scheduler.is_busy:
        for sequence, _ in scheduler.step():
            if sequence.error:
                raise sequence.error
    return [torch.cat(sequence.codes) for sequence in sequences]


def after_each_step(room, change):
    """Call change(state) after each of the talker's predictions."""
    decode = room.talker.decode

    def changed(state):
        decode(state)
        change(state)

    room.talker.decode = changed


@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_one_weight_that_is_not_finite_stops_speech(bench, small, family, is_traced, rows, weight, value):
    room = bench(family, batch=rows)
    weight(room.talker).fill_(value)
    with pytest.raises(HiggsError, match=f"{REFUSED}.*damaged(?!.*fp32)"):
        said(small, room, rows + 1)


def test_bf16_errors_also_suggest_another_dtype(bench, small):
    room = bench("v3", dtype=torch.bfloat16)
    room.talker.norm[0] = INF
    with pytest.raises(HiggsError, match=f"{REFUSED}.*damaged.*fp32"):
        said(small, room, 1)


@pytest.mark.parametrize("params", [PARAMS, SamplingParams(temperature=0)], ids=["sampled", "greedy"])
@pytest.mark.parametrize("code", [3, BOC, EOC])  # the last two are never drawn here: the raw logits count
@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_one_bad_logit_flags_only_its_row_for_good(bench, small, family, value, code, params):
    expected, room = bench(family, batch=3), bench(family, batch=3)
    for one in (expected, room):
        one.start(params, [small.prompt(one.config, seed=b) for b in range(3)])
    after_each_step(
        room, lambda state: state.logits[1, 6, code].add_(value) if int(state.delay.num_generated[1]) == 10 else None
    )
    expected, rows = expected.run(20), room.run(20)
    assert room.state.sampler.finite.tolist() == [True, False, True]
    assert torch.equal(rows[[0, 2]], expected[[0, 2]])
    assert ((rows >= 0) & (rows <= EOC)).all()
    room.start(params)
    assert room.state.sampler.finite.all()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_single_bad_frame_between_two_checks_is_noticed(bench, small, family):
    room = bench(family, batch=2)
    after_each_step(room, lambda state: state.logits[1].fill_(NAN) if int(state.delay.num_generated[1]) == 13 else None)
    with pytest.raises(HiggsError, match=REFUSED):
        said(small, room, 2)


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_values_after_a_row_s_end_are_ignored(bench, small, family):
    """Neither its logits nor its cache entries."""

    def spoil(state):
        for b in state.delay.done.nonzero()[:, 0].tolist():
            state.logits[b] = NAN
            state.cache.keys[:, b, :, state.cache.position[b] :] = NAN
            state.cache.values[:, b, :, state.cache.position[b] :] = NAN

    expected = said(small, bench(family, batch=2), 6)
    room = bench(family, batch=2)
    after_each_step(room, spoil)
    for codes, other in zip(said(small, room, 6), expected, strict=True):
        assert torch.equal(codes, other)


@pytest.mark.parametrize("text", ["One line.", "The first line. The second one. The third line. And the last one."])
@pytest.mark.parametrize("value", [INF, NAN])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_engine_stays_usable_after_the_error(written, family, is_traced, value, text):
    """With a voice, whose prefix is cached between calls."""
    voice = Voice(torch.randint(0, 1024, (40, 8), generator=torch.Generator().manual_seed(3)), "A clip.", "voice")
    params, heard = SamplingParams(seed=7, max_frames=12, chunk_seconds=2.0), []
    engine = Engine(EngineConfig(model=str(written[family]), device="cpu", context=512))
    with engine:
        expected = engine.speak(text, voice, params)
        weight = engine.loaded.talker.layers[0].text.down.data[0, :1]
        kept = weight.clone()
        weight.fill_(value)
        engine.loaded.prefixes.clear()
        with pytest.raises(HiggsError, match=REFUSED):
            engine.speak(text, voice, params, listener=Listener(on_audio=heard.append))
        assert not heard and not len(engine.loaded.prefixes)
        weight.copy_(kept)
        again = engine.speak(text, voice, params)
        assert torch.equal(again.codes, expected.codes) and torch.equal(again.wav, expected.wav)
    assert engine.held_bytes == 0


def test_checked_speech_that_somebody_hears_stops_before_its_first_frame():
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu")) as engine:
        engine.speak("One.", params=SamplingParams(seed=7, max_frames=10))  # finds out that heads align
        engine.loaded.talker.layers[-1].text.down.data[0, :1].fill_(NAN)
        with pytest.raises(HiggsError, match=REFUSED):
            engine.speak("One line. And another one.", listener=Listener(on_audio=lambda wav: None))


def test_nan_from_the_codec_is_reported(written):
    with Engine(EngineConfig(model=str(written["v3"]), device="cpu", context=512)) as engine:
        next(engine.loaded.decoder.parameters()).fill_(NAN)
        with pytest.raises(HiggsError, match=r"audio.*NaN"):
            engine.speak("One line.", params=PARAMS)
