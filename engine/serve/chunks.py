"""Chunks that another machine has planned: codes, samples and verdicts for our own clients, and for nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

import torch
from aiohttp import web

from ..core.config import MOST_VOICE_FRAMES, VERSION
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..engines.planner import Planner
from ..engines.remote import wire
from ..engines.remote.wire import ChunkOrder, Wire, WirePiece
from ..engines.speech_api import SpeechAPI
from ..speech.decoder import Heard
from ..speech.drive import Stages
from ..speech.verdict import Verdict
from ..voice.voice import Voice
from .access import CALL, DISCONNECTED
from .bodies import most_text
from .calls import BadCall, bounded
from .clips import CallVoices
from .errors import failure
from .speaker import SpeakerThread
from .streams import answer_headers
from .unread import Said, UnreadSpeech, WirePart

_PROGRESS = 0.5  # seconds between reports that have no samples
_BEAT = 10.0  # seconds between signs of life while a chunk waits


class ChunkRequest:
    """One chunk for the loop that drives requests. tell(part): takes each part of its answer."""

    def __init__(self, sequence: Sequence, tell: Callable[[WirePart], object]):
        self.sequence, self._tell = sequence, tell
        self._wavs: list[torch.Tensor] = []
        self._told_at, self._cleared = 0.0, -1
        self.is_settled = False

    def hear(self, output: Heard) -> list[Sequence]:
        """Take output, and tell it if it is news. Raises HiggsError if sound that was told is void."""
        if output.void:
            raise HiggsError(f"The chunk was interrupted: {output.void}")
        sequence, cleared = output.sequence, output.cleared
        self._wavs += [output.wav] if len(output.wav) else []
        is_news = sequence.listened and (self._wavs or cleared not in (None, self._cleared))
        if output.is_last or is_news or time.monotonic() - self._told_at > _PROGRESS:
            wav = torch.cat(self._wavs) if self._wavs and (is_news or output.is_last) else torch.empty(0)
            self._wavs = [] if len(wav) else self._wavs
            codes = torch.cat(sequence.codes) if output.is_last else None
            verdict = sequence.verdict if output.is_last and isinstance(sequence.verdict, Verdict) else None
            piece = WirePiece(sequence.num_frames, wav, cleared, codes, sequence.ended, verdict)
            self._told_at, self._cleared = time.monotonic(), cleared
            self._tell(WirePart(wire.pack_piece(piece), len(wav), output.is_last))
        self.is_settled = output.is_last
        return []

    def result(self) -> Sequence:
        return self.sequence


@dataclass(eq=False)
class ChunkJob:
    """A chunk for the speaker's thread. Like `SpeechJob`."""

    order: ChunkOrder
    voice: Voice | None
    unread: UnreadSpeech
    adapter: str = ""

    def begin(self, planner: Planner) -> tuple[ChunkRequest, Stages]:
        order = self.order
        sequence = planner.chunk(order.text, self.voice, order.scene, order.params, order.index, order.budget)
        if order.codes is not None:
            if order.codes.shape[1] != planner.codebooks:
                raise HiggsError(
                    f"The chunk has {order.codes.shape[1]} codebooks, but the model has {planner.codebooks}."
                )
            sequence.fill(order.codes, order.ended)
        sequence.checked, sequence.listened = order.checked, order.listened and not sequence.finished
        return ChunkRequest(sequence, self.unread.tell), iter([[sequence]])

    def end(self, result: object) -> None:
        """Tell an error. All else was told before."""
        if isinstance(result, BaseException):
            self.unread.tell(result)


class ChunkCalls:
    """Answers calls of our own clients. most_characters: of a text."""

    def __init__(self, speaker: SpeakerThread, voices: CallVoices, most_characters: int):
        self._speaker, self._voices, self._most = speaker, voices, most_characters
        self._wires: dict[str, Wire] = {}  # by adapter
        self.most_bytes = most_text(most_characters, 2) + 4 * MOST_VOICE_FRAMES * 64

    def about(self, adapter: str) -> dict:
        """Return what clients are told of the model. Reads files once."""
        if adapter not in self._wires:
            self._wires[adapter] = wire_of_engine(self._speaker.engines[adapter])
        return self._wires[adapter].as_json()

    def read(self, data: bytes) -> ChunkOrder:
        """Parse a call. Raises BadCall."""
        with _bad_calls():
            order = wire.read_order(data)
        bounded("text", order.text, self._most)
        bounded("scene", order.scene or "", self._most)
        bounded("transcript", (isinstance(order.voice, Voice) and order.voice.transcript) or "", self._most)
        return order

    async def job(self, order: ChunkOrder, adapter: str, unread: UnreadSpeech) -> ChunkJob:
        """Return the job of a call. Raises BadCall for a voice of an unknown name."""
        voice = await self._voices.named(order.voice) if isinstance(order.voice, str) else order.voice
        return ChunkJob(order, voice, unread, adapter)

    async def answer(
        self, request: web.Request, model: str, unread: UnreadSpeech, parts: AsyncGenerator[Said | WirePart, None]
    ) -> web.StreamResponse:
        """Send the parts of a chunk's answer, and signs of life while it waits."""
        answer = web.StreamResponse(headers=answer_headers(model, ()) | {"Content-Type": wire.MEDIA})
        beats = asyncio.ensure_future(_beat(unread))
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    if not answer.prepared:
                        await answer.prepare(request)
                    assert isinstance(part, WirePart)
                    await answer.write(part.data)
        except (HiggsError, torch.OutOfMemoryError) as error:
            if not answer.prepared:
                raise
            CALL.get().kind = failure(error).kind
            await answer.write(wire.pack({"error": failure(error).envelope()}))
        except ConnectionResetError:  # the caller disconnected, and this task was not cancelled yet
            CALL.get().kind = DISCONNECTED
        finally:
            beats.cancel()
        return answer

    async def encode(self, data: bytes) -> bytes:
        with _bad_calls():
            wav, rate, transcript = await asyncio.to_thread(wire.read_clip_order, data)
        bounded("transcript", transcript, self._most)
        return wire.pack_voice(await asyncio.wrap_future(self._speaker.encode(wav, rate, transcript)))


def wire_of_engine(engine: SpeechAPI) -> Wire:
    """Return what clients of ours are told of an engine's model. Reads its files."""
    planner, kind = engine.planner, engine.kind
    kind = f"{VERSION}, torch {torch.__version__}, {kind}" if kind else ""
    seconds = planner.prompts.chunk_seconds
    return Wire(planner.context, planner.codebooks, planner.codec, engine.fingerprint, kind, seconds)


@contextlib.contextmanager
def _bad_calls() -> Iterator[None]:
    try:
        yield
    except BadCall:
        raise
    except HiggsError as error:
        raise BadCall(f"the call cannot be read: {error}") from error


async def _beat(unread: UnreadSpeech) -> None:
    """Tell an empty part now and then, so that a client sees that the server lives."""
    while True:
        await asyncio.sleep(_BEAT)
        unread.put(WirePart(wire.pack({}), 0, False))
