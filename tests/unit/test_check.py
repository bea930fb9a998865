"""The check of a chunk's words: by synthetic attention, and by codes of speech that were doubled, cut or dropped."""

import numpy as np
import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, Listener, SamplingParams, Turn
from higgs_tts.engine.core.config import FRAME_RATE
from higgs_tts.engine.decode.kv_cache import KVCache
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.scheduler import Scheduler
from higgs_tts.engine.engines.loaded_model import CPU_BATCH
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.prompt.chunking import sentence_texts, split_sentences, split_words
from higgs_tts.engine.voice.voice import voice_of_speech
from higgs_tts.engine.words import check as check_module
from higgs_tts.engine.words.attention import (
    Head,
    Listening,
    ReadWords,
    attention_to_words,
    by_layer,
    mean_attention,
)
from higgs_tts.engine.words.check import ChunkCheck, HeardSpeech, copied, frames_cleared, judge_words
from higgs_tts.engine.words.path import free_path

TEXT = "The ferry left at dusk. A woman stood at the rail and counted windows. Nobody spoke to her."
WORDS = [word for sentence in split_sentences(TEXT) for word in split_words(sentence)]
LENGTHS = [max(2, len(word)) for word in WORDS]  # frames
SENTENCES = np.array([number for number, one in enumerate(split_sentences(TEXT)) for _ in split_words(one)])


def attention(order, frames=None, sure=0.9):
    """Return [T, W]: words in this order, each for so many frames as it has letters."""
    rows = []
    for word in order:
        row = np.full(len(WORDS), (1 - sure) / len(WORDS), np.float32)
        row[word] += sure
        rows += [row] * ((frames or {}).get(word) or LENGTHS[word])
    return np.stack(rows)


def verdict(order, **more):
    return judge_words(WORDS, SENTENCES, np.arange(len(WORDS)), attention(order, **more))


def found(verdict):
    return [(doubt.kind, doubt.text) for doubt in verdict.doubts]


EVERY = list(range(len(WORDS)))


def test_speech_that_says_each_word_once_has_no_doubts():
    good = verdict(EVERY)
    assert good.doubts == () and good.method == "attention"
    assert good.starts == (0, sum(LENGTHS[:5]), sum(LENGTHS[:14]))


@pytest.mark.parametrize(
    ("order", "doubts", "sentences"),
    [
        ([*range(5), 2, 3, 4, *range(5, 18)], [("again", "left at dusk.")], [(0, 1)]),
        ([*range(14), *range(5, 18)], [("again", "A woman stood at the rail and counted windows.")], [(1, 2)]),
        ([*range(8), *range(3, 18)], [("again", "at dusk. A woman stood")], [(0, 2)]),
        ([*range(6), *range(8, 18)], [("missing", "woman stood")], [(1, 2)]),
        ([*range(5), *range(14, 18)], [("missing", "A woman stood at the rail and counted windows.")], [(1, 2)]),
        (list(range(14)), [("missing", "Nobody spoke to her.")], [(2, 3)]),
        (list(range(3, 18)), [("missing", "The ferry left")], [(0, 1)]),
        (
            [*range(4), 2, 3, *range(4, 14), *range(15, 18)],
            [("again", "left at"), ("missing", "Nobody")],
            [(0, 1), (2, 3)],
        ),
        ([0, 1, 0, 1, *range(18)], [("again", "The ferry"), ("again", "The ferry")], [(0, 1)]),
    ],
)
def test_words_said_again_and_words_not_heard_are_named_with_their_sentences(order, doubts, sentences):
    heard = verdict(order)
    assert found(heard) == doubts
    assert [passage.sentences for passage in heard.passages] == sentences
    for passage in heard.passages:
        assert all(passage.frames[0] <= one.frames[0] <= one.frames[1] <= passage.frames[1] for one in passage.doubts)


def test_a_passage_holds_all_frames_of_its_sentences():
    order = [*range(8), *range(3, 18)]
    heard, lengths = verdict(order), [LENGTHS[word] for word in order]
    assert heard.passages[0].frames == (0, sum(lengths[:-4])), "from the first sentence to the last word of the second"


def test_odd_lengths_are_named():
    assert found(verdict(EVERY, frames={6: 1, 7: 1})) == [("cut", "woman stood")]
    assert found(verdict(EVERY, frames={13: 1})) == [("cut", "windows.")]
    assert found(verdict(EVERY, frames={10: 90})) == [("added", "rail")]
    assert found(verdict(EVERY, frames={3: 1, 9: 1})) == [], "short words may be short"
    assert found(verdict([*range(3), *range(4, 18)])) == [], "and share a frame with another"


def test_nine_equal_frames_are_a_copy_and_the_eight_of_a_pause_are_not():
    codes = np.arange(60).repeat(2).reshape(60, 2)
    codes[40:48] = codes[10:18]
    assert copied(codes) == []
    codes[48] = codes[18]
    assert copied(codes) == [(40, 49, 30)]


def test_attention_that_follows_no_words_gives_no_verdict():
    assert verdict(EVERY, sure=0.3) is None
    flicker = attention(EVERY)
    flicker[20:22] = attention([3])[:2]
    assert judge_words(WORDS, SENTENCES, np.arange(len(WORDS)), flicker).doubts == ()


def test_words_that_share_their_tokens_are_judged_together():
    firsts = np.arange(0, len(WORDS), 2)
    shared = np.add.reduceat(attention([word for word in EVERY if word not in (6, 7)]), firsts, axis=1)
    assert found(judge_words(WORDS, SENTENCES, firsts, shared)) == [("missing", "woman stood")]


@pytest.mark.parametrize("seed", range(20))
def test_a_free_path_equals_the_best_of_all_paths(seed):
    """By brute force over a few words and runs."""
    draw = np.random.default_rng(seed)
    scores = draw.random((5, 3)).astype(np.float32) ** 3
    skips = draw.random(3) * 4
    best, costs = None, np.concatenate([[0.0], skips.cumsum()])
    for path in np.ndindex(*[3] * 5):
        total = np.log(scores[0, path[0]] + 1e-3) - costs[path[0]]
        for before, (frame, word) in zip(path, list(enumerate(path))[1:], strict=False):
            step = -9.0 if word < before else -(costs[word] - costs[before + 1]) if word > before else 0.0
            total += max(step, -9.0 if word != before else step) + np.log(scores[frame, word] + 1e-3)
        total -= costs[3] - costs[path[-1] + 1]
        best = max(best or (-np.inf, None), (total, path))
    # Runs of frames that attend most to the same word stay together, so compare where there are none.
    if (np.diff(scores.argmax(1)) != 0).all():
        assert tuple(free_path(scores, skips)) == best[1]


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


@pytest.fixture(scope="module")
def speech(engine):
    return engine.speak(TEXT, params=SamplingParams(seed=1))


@pytest.fixture(scope="module")
def check(engine):
    """check() -> a new check of TEXT."""
    builder = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config, engine.planner.card)
    return lambda: ChunkCheck(engine.loaded.talker, builder, engine.heads(), builder.build(TEXT))


def word_starts(engine, speech):
    return [round(word.start * 25) for word in engine.words(speech)]


def test_real_speech_has_no_doubts_and_its_verdict_is_in_the_result(engine, speech):
    (chunk,) = speech.said
    assert chunk.verdict.method == "attention" and chunk.verdict.doubts == ()
    starts, words = chunk.verdict.starts, word_starts(engine, speech)
    assert all(abs(starts[number] - words[first]) <= 4 for number, first in enumerate((0, 5, 14)))
    off = engine.speak(TEXT, params=SamplingParams(seed=1, check=False))
    assert off.said[0].verdict is None and torch.equal(off.codes, speech.codes)


def test_planted_splices_are_found_at_their_places(engine, speech, check):
    codes, at = speech.codes, word_starts(engine, speech)
    doubled = torch.cat([codes[: at[11]], codes[at[7] : at[11]], codes[at[11] :]])
    (doubt,) = check().verdict(doubled).doubts
    assert doubt.kind == "again" and "at the rail" in doubt.text and abs(doubt.frames[0] - at[11]) < 8
    dropped = torch.cat([codes[: at[7]], codes[at[12] :]])
    (doubt,) = check().verdict(dropped).doubts
    assert doubt.kind in ("missing", "cut") and "the rail" in doubt.text and abs(doubt.frames[0] - at[7]) < 13
    (doubt,) = check().verdict(codes[: at[14]]).doubts
    assert doubt.kind in ("missing", "cut") and "spoke to her." in doubt.text


def test_a_listener_hears_a_sentence_once_the_next_one_has_begun(engine, speech, check):
    codes, at = speech.codes, word_starts(engine, speech)
    follow, cleared = check(), []
    for stop in range(4, len(codes), 4):
        cleared.append((stop, follow.frames_to_hear(codes[:stop])))
    free = [stop for stop, frames in cleared if frames == stop]
    assert free == list(range(4, free[-1] + 4, 4)) and at[5] / 3 < free[-1] < at[5], "most of the first sentence"
    later = [frames for _, frames in cleared]
    assert later == sorted(later) and not any(
        at[5] + 3 < frames < at[14] - 3 or frames > at[14] + 3 for frames in later
    )
    assert abs(later[-1] - at[14]) <= 3, "the third sentence is being checked"
    assert follow.verdict(codes).doubts == check().verdict(codes).doubts == ()


def test_a_title_s_sentence_is_heard_as_it_comes(engine):
    """Alone, it is over long before the next sentence can be checked."""
    text = "The Letter <|prosody:pause|>\n\nIt came with the last boat of October, in the rain. Nobody had expected it."
    params = SamplingParams(seed=3, retries=0, max_frames=75)
    codes = engine.speak(text, params=params).codes
    builder = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config, engine.planner.card)
    follow = ChunkCheck(engine.loaded.talker, builder, engine.heads(), builder.build(text))
    free = [stop for stop in range(4, len(codes), 4) if follow.frames_to_hear(codes[:stop]) == stop]
    assert free[-1] > 2 * FRAME_RATE, "beyond the title"


def test_the_first_sentence_is_heard_as_it_comes_and_named_if_it_is_bad(engine, speech, check):
    codes, at = speech.codes, word_starts(engine, speech)
    first = torch.cat([codes[: at[4]], codes[at[2] :]])
    follow = check()
    for stop in range(4, len(first), 4):
        follow.frames_to_hear(first[:stop])
    verdict = follow.verdict(first)
    assert verdict.passages == () and [doubt.kind for doubt in verdict.heard] == ["again"] == [
        one.kind for one in verdict.doubts
    ]


def test_a_sentence_that_was_heard_in_part_stays():
    lost = attention([*range(5), *range(8, 18)])
    for heard, sentences in ((0, 0), (LENGTHS[0], 1), (sum(LENGTHS[:5]) + 4, 2)):
        verdict = judge_words(WORDS, np.array(SENTENCES), np.arange(18), lost, heard=HeardSpeech(frames=heard))
        assert [doubt.kind for doubt in verdict.doubts] in (["missing"], ["cut"])
        assert bool(verdict.passages) == (sentences < 2) and bool(verdict.heard) == (sentences == 2)
        assert verdict.fixed == (0, *verdict.starts[1:])[sentences]


def test_frames_are_cleared_up_to_the_first_bad_sentence():
    good, bad = attention(EVERY), attention([*range(14), *range(9, 18)])
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), good[: LENGTHS[0]]) == (0, 0, False)
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), good) == (2, sum(LENGTHS[:14]), False)
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), bad) == (1, sum(LENGTHS[:5]), True)
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), bad, 2)[:2] == (2, sum(LENGTHS[:14]) + sum(LENGTHS[9:14]))
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), good[: sum(LENGTHS[:10])], 2) == (0, 0, False)
    assert frames_cleared(WORDS, SENTENCES, np.arange(18), attention(EVERY, sure=0.3)) is None


def test_sentences_to_be_spoken_by_themselves_carry_their_tags():
    text = "<|prosody:speed_slow|>One apple. Two <|prosody:pause|>pears! <|prosody:speed_fast|>Three."
    assert sentence_texts(text) == [
        "<|prosody:speed_slow|>One apple.",
        "<|prosody:speed_slow|>Two <|prosody:pause|>pears!",
        "<|prosody:speed_fast|>Three.",
    ]
    assert len(sentence_texts(TEXT)) == len(split_sentences(TEXT)) == 3


@pytest.fixture
def by_prefill(monkeypatch):
    """A list that grows with each chunk whose codes the talker reads again."""
    real, read = check_module.attention_to_words, []

    def counted(talker, chunk, codes, heads):
        read.append(chunk.prompt.text)
        return real(talker, chunk, codes, heads)

    monkeypatch.setattr(check_module, "attention_to_words", counted)
    return read


LINES = ["She left. Nobody spoke to her.", "One thing.", "And then it rained. It went on!", "No. Yes.", "Good, good."]


def judged_again(engine, chunk, codes, voice=None):
    """Return the verdict on a chunk by reading its codes again."""
    builder = PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config, engine.planner.card)
    prompt = builder.build(chunk.text, voice)
    return ChunkCheck(engine.loaded.talker, builder, engine.heads(), prompt).verdict(codes[slice(*chunk.frames)])


def test_queries_kept_while_speaking_give_the_verdict_of_reading_the_codes_again(engine, speech, by_prefill):
    """In rows that others had before, with a voice and with a listener."""
    turns = [Turn(f"A{number}", text) for number, text in enumerate(LINES * 2)]
    params = SamplingParams(seed=4, retries=0)
    assert len(turns) > CPU_BATCH
    many = engine.speak_turns(turns, {}, params, reuse=False)
    voice = voice_of_speech(speech.codes, TEXT, "own")
    cloned = engine.speak(LINES[2], voice, params)
    heard = engine.speak(LINES[0], params=params, listener=Listener(on_audio=lambda wav: None))
    assert by_prefill == [] and all(many.checked)
    for made, own in ((many, None), (cloned, voice), (heard, None)):
        for chunk in made.said:
            again = judged_again(engine, chunk, made.codes, own)
            assert (again.starts, again.doubts) == (chunk.verdict.starts, chunk.verdict.doubts)


def test_codes_from_elsewhere_are_read_again(engine, by_prefill):
    turns, params = [Turn("A", LINES[2])], SamplingParams(seed=5, retries=0)
    first = engine.speak_turns(turns, {}, params)
    assert by_prefill == []
    again = engine.speak_turns(turns, {}, params)
    assert again.reused == 1 and by_prefill == [LINES[2]]
    assert again.said[0].verdict == first.said[0].verdict


def test_speech_in_doubt_after_a_voice_is_read_again_without_it(engine, speech, monkeypatch):
    real, read = check_module.attention_to_words, []

    def lost(talker, chunk, codes, heads):
        read.append(chunk.prompt.voice is not None)
        maps = real(talker, chunk, codes, heads)
        return [torch.cat([one, one], 1)[:, 20 : 20 + len(codes)] for one in maps] if read[-1] else maps

    monkeypatch.setattr(check_module, "attention_to_words", lost)
    verdict = judged_again(engine, speech.said[0], speech.codes, voice_of_speech(speech.codes, TEXT, "own"))
    assert verdict == speech.said[0].verdict and verdict.doubts == () and read == [True, False]


def test_speech_beyond_the_context_is_not_checked(engine, check):
    """As a chunk may be whose sentences took longer when they were spoken again."""
    codes = torch.zeros(len(engine.loaded.talker.cos), engine.checkpoint.config.codebooks, dtype=torch.int64)
    assert check().verdict(codes) is None


def test_a_full_device_costs_what_could_be_heard_before_the_verdict(engine, speech, monkeypatch):
    def full(*args):
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(ChunkCheck, "frames_to_hear", full)
    heard = []
    told = engine.speak(TEXT, params=SamplingParams(seed=1), listener=Listener(on_audio=heard.append))
    assert torch.equal(told.codes, speech.codes) and torch.equal(torch.cat(heard), told.wav)


def test_a_full_device_costs_only_the_kept_queries(engine, by_prefill, monkeypatch):
    def full(*args):
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(KVCache, "row_keys", full)
    told = engine.speak(LINES[2], params=SamplingParams(seed=6, retries=0))
    assert by_prefill == [LINES[2]] and told.said[0].verdict == judged_again(engine, told.said[0], told.codes)


def test_the_kept_queries_are_planned(engine):
    cache, config = engine.loaded.runner().state.cache, engine.checkpoint.config
    assert len(engine.aligned) == len(cache.queries) == 2
    assert engine.held_bytes == engine.planned_bytes + engine.loaded.prefixes.nbytes()
    size = 1, engine.planner.context, engine.device, engine.dtype, "auto"
    with_them, without = (sum(ModelRunner.planned_sizes(config, *size, heads)) for heads in (engine.aligned, ()))
    assert with_them - without == cache.queries.nbytes


@pytest.mark.parametrize("family", ["v3", "v2"])
@torch.inference_mode()
def test_kept_queries_attend_as_a_prefill_does(bench, small, family):
    runner, heads = bench(family, batch=3), [Head(0, 0, 1), Head(1, 0), Head(1, 3, -1), Head(1, 0, 2)]
    prompts = [small.prompt(runner.config, seed=seed, frames=4 + seed) for seed in range(5)]
    for seed, prompt in enumerate(prompts):
        prompt.params = SamplingParams(seed=seed, max_frames=9 + 4 * seed)
    words = ["a", "b"]
    chunks = {one: ReadWords(one, words, words, [0, 0], torch.rand(len(one) - one.prefix - 1, 2)) for one in prompts}
    heard = {one: Listening(chunk, heads) for one, chunk in chunks.items()}
    scheduler = Scheduler(runner)
    scheduler.add(*prompts)
    while scheduler.is_busy:
        for one, _ in scheduler.step():
            if one.finished or one is prompts[1]:  # some while it is spoken
                heard[one].listen(*scheduler.place_of(one), one.num_frames)
    for one in prompts:
        maps = attention_to_words(runner.talker, chunks[one], torch.cat(one.codes), by_layer(heads))
        read, kept = mean_attention(maps, heads), heard[one].mean()
        assert heard[one].frames == one.num_frames == len(read) > 5
        torch.testing.assert_close(kept[2:], read[2:], atol=1e-5, rtol=1e-4)
