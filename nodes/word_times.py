"""Word times of the nodes that speak: the input `srt_words`, the output `words`, and when they are needed."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import SpeechAPI, SpeechResult, SubtitleParams, Word
from .comfy import widgets
from .comfy.linked import is_used


def srt_words_input() -> io.Input:
    """The widget of subtitles' words. Must come last, like every new widget: workflows store them by position."""
    return widgets.number(
        SubtitleParams,
        "srt_words",
        advanced=True,
        tooltip="Most words of a subtitle cue: 1 shows word by word, 5 short lines. 0 makes one cue per sentence.",
    )


def words_output() -> io.Output:
    """The words output. New outputs come after it: workflows refer to outputs by position."""
    return io.String.Output(
        display_name="words",
        tooltip="When each word is heard, as JSON: word, start and end in seconds, speaker, method. Computed only "
        "while this output is connected.",
    )


def words_if_needed(
    engine: SpeechAPI, speech: SpeechResult, output: tuple[str, int], srt_words: int, known: tuple[Word, ...] | None
) -> tuple[Word, ...] | None:
    """Return the speech's words if subtitles need them or the output (node id, position) is used, else None.

    known: the words, if they were found already.
    """
    if not srt_words and not is_used(*output):
        return None
    return engine.words(speech) if known is None else known
