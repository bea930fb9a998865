"""Cast a text: which of its names have voices, and which speaker gets which voice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from .names import speaker_key

_Voice = TypeVar("_Voice")


class Cast(Generic[_Voice]):
    """The voices of a text's speakers: connected ones, and those that the text or a speaker names.

    If none of its names belongs to a voice, and enough voices are connected for all of them, `known` is empty: the
    speakers get the connected voices in turn, even if there is a file of that name.

    Args:
        names: Names of the text's speakers, or candidates.
        connected: Voices by number ("1"), and by `speaker_key` of their own names.
        head: Speaker -> name of a voice, as declared in the text.
        find: Returns what belongs to a voice's name, such as its file, or None.
    """

    def __init__(
        self,
        names: Iterable[str],
        connected: Mapping[str, _Voice],
        head: Mapping[str, str],
        find: Callable[[str], object | None],
    ):
        self._connected, self._head = connected, {speaker_key(name): voice for name, voice in head.items()}
        self._in_turn = [voice for name, voice in connected.items() if name.isdecimal()]
        spelled: dict[str, str] = {}  # by key, in the spelling that comes first
        for name in names:
            spelled.setdefault(speaker_key(name), name)
        self.known: list[str] = []  # names that begin turns, see `read_dialogue`
        if head or not spelled.keys().isdisjoint(connected) or len(self._in_turn) < len(spelled):
            known = [name for key, name in spelled.items() if name and (key in connected or find(name))]
            self.known = [*connected, *known] if head or known else []

    def assign(
        self, speakers: Iterable[str], load: Callable[[str], _Voice | None], load_declared: Callable[[str], _Voice]
    ) -> dict[str, _Voice]:
        """Return speaker -> voice, without speakers who have none. One without a name gets the first connected voice.

        load(name): the voice of that name that is not connected, or None. load_declared(name): the same for a voice
        that the head declares; raises HiggsError if there is none.
        """
        speakers, connected = list(speakers), dict(self._connected)
        if not self.known:
            connected |= zip(map(speaker_key, filter(None, speakers)), self._in_turn, strict=False)
        voices: dict[str, _Voice] = {}
        for speaker in speakers:
            declared = self._head.get(speaker_key(speaker))
            key = speaker_key(speaker if declared is None else declared)
            if key in connected:
                voices[speaker] = connected[key]
            elif declared is not None:
                voices[speaker] = load_declared(declared)
            elif not speaker and connected:
                voices[speaker] = next(iter(connected.values()))
            elif speaker and (voice := load(speaker)) is not None:
                voices[speaker] = voice
        return voices
