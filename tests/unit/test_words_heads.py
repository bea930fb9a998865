"""When words are heard: paths through attention, aligning heads, ends at pauses."""

import json
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, SamplingParams, Turn
from higgs_tts.engine.cuda import cubin_cache
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.engine.words.attention import Head
from higgs_tts.engine.words.boundaries import word_spans
from higgs_tts.engine.words.heads import choose_heads, keep_heads, kept_heads
from higgs_tts.engine.words.letters import token_shares, words_of
from higgs_tts.engine.words.path import find_paths

FRAME = 960


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cubin_cache, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


def planted(starts, frames, share, seed=0):
    """Return attention [1, T, W]: `share` of it on the word that is said, the rest at random."""
    noise = torch.rand(1, frames, len(starts), generator=torch.Generator().manual_seed(seed))
    attention = (1 - share) * noise / noise.sum(-1, keepdim=True)
    for word, (start, stop) in enumerate(zip(starts, [*starts[1:], frames], strict=True)):
        attention[0, start:stop, word] += share
    return attention


def spoken(words, starts, frames, pauses):
    """Return (words, wav) whose words begin at these frames, with silences (start, stop) in frames."""
    wav = 0.1 * torch.randn(frames * FRAME, generator=torch.Generator().manual_seed(1))
    for start, stop in pauses:
        wav[start * FRAME : stop * FRAME] = 0
    return words, wav


@pytest.mark.parametrize("share", [1.0, 0.8, 0.5])
def test_a_planted_path_is_found_to_the_frame(share):
    starts = [0, 3, 4, 11, 30, 31, 50]
    found, on_path = find_paths(planted(starts, 60, share))
    assert found.tolist() == [starts]
    assert float(on_path) == pytest.approx(share, abs=0.6 * (1 - share) + 1e-6)


def test_every_word_has_a_frame_even_without_attention():
    attention = torch.zeros(2, 5, 5)
    assert find_paths(attention)[0].tolist() == [[0, 1, 2, 3, 4]] * 2


WORDS = ["One", "two.", "Three", "four,", "five", "six.", "Seven", "eight."]
STARTS, FRAMES, PAUSES = [0, 10, 24, 31, 45, 50, 66, 72], 85, [(17, 23), (39, 44), (57, 65)]


@pytest.mark.parametrize("lag", [-3, 0, 5])
def test_a_head_that_follows_the_words_is_found_with_its_lag(lag):
    chunk, wav = spoken(WORDS, STARTS, FRAMES, PAUSES)
    shifted = [0, *(start + lag for start in STARTS[1:])]
    noise = torch.rand(3, FRAMES, 8, generator=torch.Generator().manual_seed(2))
    layers = [noise / noise.sum(-1, keepdim=True), torch.cat([noise[:1] / 8, planted(shifted, FRAMES, 0.9)])]
    assert choose_heads(layers, chunk, wav, 0) == (Head(1, 1, lag),)


def test_a_sure_head_that_does_not_meet_the_pauses_is_none():
    chunk, wav = spoken(WORDS, STARTS, FRAMES, PAUSES)
    assert choose_heads([planted([0, 1, 2, 3, 4, 5, 6, 7], FRAMES, 0.95)], chunk, wav, 0) == ()


def test_random_attention_has_no_aligning_heads():
    chunk, wav = spoken(WORDS, STARTS, FRAMES, PAUSES)
    noise = torch.randn(32, FRAMES, 8, generator=torch.Generator().manual_seed(3)).softmax(-1)
    assert choose_heads([noise] * 4, chunk, wav, 0) == ()


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_a_random_checkpoint_has_no_aligning_heads_and_its_words_are_estimated(kind, tmp_path, cache, monkeypatch):
    folder = write_tiny(tmp_path / "tiny", kind)
    params = SamplingParams(max_frames=50, retries=0)
    with Engine(EngineConfig(str(folder), device="cpu")) as engine:
        speech = engine.speak("Two words, or six of them.", params=params)
        assert engine.heads() == ()
        assert {word.method for word in engine.words(speech)} == {"estimated"}
    assert [json.loads(path.read_text()) for path in (cache / "heads").iterdir()] == [{"heads": []}]
    with Engine(EngineConfig(str(folder), device="cpu")) as engine:
        monkeypatch.setattr(engine, "speak", lambda *args, **given: pytest.fail("it looked again"))
        assert engine.heads() == ()


def test_the_guided_heads_of_the_embedded_talker_are_found_by_its_speech(cache):
    engine = Engine(EngineConfig(str(EMBEDDED), device="cpu"))
    engine.planner.card = replace(engine.planner.card, word_heads=None)
    with engine:
        found = engine.heads()
        assert {(head.layer, head.head) for head in found} == {(1, 0), (2, 0)}
        assert all(abs(head.lag) <= 1 for head in found)
        assert kept_heads(engine.fingerprint, engine.checkpoint.config) == found
        assert engine.loaded.runner().state.cache.aligned == (), "as it was opened"
        engine.speak("Hello.", params=SamplingParams(seed=1, retries=0))
        assert engine.loaded.runner().state.cache.aligned == engine.aligned == ((1, 0), (2, 0))


def test_heads_are_not_looked_for_while_the_engine_speaks_for_others(cache, tmp_path):
    with Engine(EngineConfig(str(write_tiny(tmp_path / "tiny", "v3")), device="cpu")) as engine:
        with engine.decoding():
            assert engine.heads() == () and not cache.exists()
        engine.heads()
        assert cache.exists()


def test_words_are_found_while_the_engine_speaks_for_others(engine):
    speech = engine.speak("Hello, you two.")
    alone = engine.words(speech)
    with engine.decoding():
        assert engine.words(speech) == alone


def test_heads_are_kept_by_fingerprint_and_damaged_ones_are_missing(engine, cache):
    config = engine.checkpoint.config
    assert kept_heads("a", config) is None
    keep_heads("a", [Head(1, 0, 2)])
    assert kept_heads("a", config) == (Head(1, 0, 2),) and kept_heads("b", config) is None
    for content in ('{"heads": [[99, 0, 0]]}', '{"heads": [[1, 0]]}', '{"heads": [["1", 0, 0]]}', "{}", "{"):
        (cache / "heads" / "a.json").write_text(content)
        assert kept_heads("a", config) is None


def test_the_embedded_talker_s_words_are_in_order_and_none_is_missing(engine):
    assert engine.heads() == (Head(1, 0), Head(2, 0))
    turns = [
        Turn("Ann", '[pause 0.5] "A first sentence," she said. And <|prosody:pause|>more.'),
        Turn("Bob", "It is 7:22 now — really? Yes!"),
    ]
    speech = engine.speak_turns(turns, params=SamplingParams(seed=3))
    words = engine.words(speech)
    assert [word.text for word in words] == [word for chunk in speech.said for word in words_of(chunk.text)]
    assert {word.method for word in words} == {"attention"}
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and all(word.end > word.start for word in words)
    for chunk in speech.said:
        own = [word for word in words if word.speaker == chunk.speaker]
        assert chunk.start / SAMPLE_RATE <= own[0].start and own[-1].end <= chunk.stop / SAMPLE_RATE


def test_a_chunk_that_is_trimmed_has_the_times_of_one_that_is_not(engine):
    text, params = "Good morning. How are you?", SamplingParams(seed=1)
    whole = engine.speak(text, params=params)
    trimmed = engine.speak("[pause 1]" + text, params=params)
    (chunk,) = trimmed.said
    assert chunk.lead > 0 and torch.equal(trimmed.codes, whole.codes)
    moved = (chunk.start - chunk.lead) / SAMPLE_RATE
    pairs = zip(engine.words(whole), engine.words(trimmed), strict=True)
    assert all(late.start == pytest.approx(word.start + moved, abs=0.02) for word, late in pairs)


def test_an_engine_that_is_closed_or_has_no_memory_estimates(engine, monkeypatch):
    def no_memory(*given):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    speech = engine.speak("Hello.")
    assert [word.method for word in engine.words(speech)] == ["attention"]
    assert [word.method for word in Engine(engine.config).words(speech)] == ["estimated"]
    monkeypatch.setattr(engine, "words_by", no_memory)
    assert [word.method for word in engine.words(speech)] == ["estimated"]


@pytest.mark.parametrize(
    ("text", "tokens", "shares"),
    [
        ("a bc", [(0, 1), (1, 2), (2, 4)], [[1, 0], [0, 0], [0, 1]]),
        ('"a," b.', [(0, 1), (1, 2), (2, 4), (4, 6), (6, 7)], [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]),
        ("a <|prosody:pause|>b", [(0, 2), (2, 19), (19, 20)], [[1, 0], [0, 0], [0, 1]]),
        ("世界", [(0, 2)], [[0.5, 0.5]]),
        ("世界", [(0, 1), (0, 1), (1, 2)], [[1, 0], [1, 0], [0, 1]]),
    ],
)
def test_tokens_are_matched_with_words(text, tokens, shares):
    assert token_shares(words_of(text), text, tokens).tolist() == shares


def test_other_letters_are_not_matched():
    assert token_shares(["a"], "b", [(0, 1)]) is None
    assert token_shares(["a", "b"], "a b", [(0, 1)]) is None


def test_words_that_start_after_the_sound_share_its_end():
    """The path gives words that nobody said frames of a silence that was trimmed."""
    _, wav = spoken(WORDS, STARTS, FRAMES, PAUSES)
    spans = word_spans([*(start * FRAME for start in STARTS[:-3]), len(wav) - 10, len(wav), len(wav) + 3 * FRAME], wav)
    assert spans[-3:] == [(len(wav) - FRAME * part // 2, len(wav) - FRAME * (part - 1) // 2) for part in (3, 2, 1)]
    for start, stop in word_spans([0.0, 50.0, 60.0], wav[:FRAME]):
        assert 0 <= start <= stop <= FRAME


def test_a_word_ends_before_a_pause_and_the_last_with_the_sound():
    _, wav = spoken(WORDS, STARTS, FRAMES, [(0, 4), *PAUSES, (80, 85)])
    spans = word_spans([(start + 0.5) * FRAME for start in STARTS], wav)
    starts, ends = ([round(edge / FRAME, 2) for edge in edges] for edges in zip(*spans, strict=True))
    assert starts == [4, 10.5, 24.5, 31.5, 45.5, 50.5, 66.5, 72.5]
    assert [ends[place] for place in (1, 3, 5, 7)] == [17, 39, 57, 80]
    assert [ends[place] for place in (0, 2, 4, 6)] == [9.5, 30.5, 49.5, 71.5]
