"""Warnings about speech that was cut, and how much of the text is missing."""

from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.speech import ending


def sequence(text="Some words.", expected=100, frames=100, ended=True, budget=4000):
    made = Sequence([1], text=text, expected=expected, budget=budget)
    made.num_frames, made.finished, made.ended = frames, True, ended
    return made


def test_speech_that_ended_by_itself_is_complete():
    assert ending.stopped([sequence(), sequence(frames=20)], 250, 4096) == "end of speech"
    assert ending.warnings([sequence(), sequence(frames=20)], 250, 4096) == []


def test_the_unspoken_share_is_reported():
    (told,) = ending.warnings([sequence(expected=5000, frames=250, ended=False)], 250, 4096)
    assert told == (
        "Speech was cut at the frame limit (250 frames, 10.0 s): about 95 % of the text was not spoken. "
        "Raise max_frames, or set chunk_seconds above 0 so that the text is split."
    )


def test_the_unspoken_share_is_of_the_whole_text_and_the_chunk_is_quoted():
    sequences = [
        sequence(),
        sequence("It was short,  and whoever wrote it\nhad not signed it.", 200, 100, False),
        sequence(),
    ]
    (told,) = ending.warnings(sequences, 100, 4096)
    assert '"It was short, and whoever wrote it had n..."' in told and "25 %" in told
    stopped = ending.stopped(sequences, 100, 4096)
    assert "100 frames, 4.0 s" in stopped and "chunk 2 of 3" in stopped


def test_a_full_context_has_another_remedy():
    cut = [sequence(expected=300, frames=200, ended=False, budget=200)]
    (told,) = ending.warnings(cut, 2048, 512)
    assert "512" in told and "33 %" in told and "larger context" in told
    stopped = ending.stopped(cut, 2048, 512)
    assert "context" in stopped and "512" in stopped


def test_speech_that_ran_on_is_not_reported_as_cut():
    (told,) = ending.warnings([sequence(expected=50, frames=250, ended=False)], 250, 4096)
    assert "%" not in told and "did not end" in told and "seed" in told


def test_a_tiny_unspoken_share_is_not_rounded_to_zero():
    (told,) = ending.warnings([sequence(expected=1001, frames=1000, ended=False)], 1000, 4096)
    assert " 1 %" in told


def test_several_chunks_are_counted_in_one_warning():
    cut = sequence(expected=100, frames=50, ended=False)
    (told,) = ending.warnings([cut, sequence(), cut, sequence()], 50, 4096)
    assert "2 of 4 chunks" in told and "25 %" in told
    both = ending.warnings([cut, sequence(expected=20, frames=50, ended=False)], 50, 4096)
    assert len(both) == 2 and "%" in both[0] and "did not end" in both[1]
