"""Callers of the server in a process of their own: load, arrivals, callers that misbehave, and callers that compare.

    python benchmarks/callers.py PORT load CLIENTS WARM_SECONDS SECONDS FRAMES
    python benchmarks/callers.py PORT open RATE SECONDS FRAMES
    python benchmarks/callers.py PORT soak REQUESTS CLIENTS
    python benchmarks/callers.py PORT compare CLIENTS SECONDS ANSWERS.json

All print one JSON line. `serve.py` and `tests/faults/soak.py` start them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import pathlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from text_callers import PHASES, WAYS, Gone, TextCaller

WORDS = """the harbour was quiet and a small boat came in under wide grey sky while people on shore looked for their
friends they had waited since morning with warm bread cold tea old stories about winter storms far from any
town""".split()
WORDS_A_TEXT = 20
SAMPLE_BYTES, SAMPLE_RATE = 2, 24_000
KINDS = "whole", "stream", "sse", "batch", "text", "bad", "leave at once", "leave in the middle", "leave a batch"
BATCHES = "batch", "leave a batch"
PATIENCE = 120.0  # seconds without an answer that count as a hang
COMPARED = 16  # texts of `compare`
ARRIVALS = 76  # seed of `open`
BAD = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"input": ""}',
    b'{"input": "Hi", "response_format": "mid"}',
    b'{"input": "Hi", "temperature": "hot"}',
    b'{"input": "Hi", "ref_audio": "UklGRg=="}',
    b'{"input": "Hi", "voice": "nobody"}',
    b'{"input": "' + b"x" * 30_000 + b'"}',
)


def text_of(random: random.Random, words: int = WORDS_A_TEXT) -> str:
    """Return a text of `words` words."""
    return " ".join(random.choice(WORDS) for _ in range(words)).capitalize() + "."


@dataclass
class Answer:
    """The result of one call: its status, 0 if the connection broke, and when all samples had arrived."""

    began: float
    ended: float = 0.0
    status: int = 0
    samples: int = 0
    heard: bool = False
    body: bytearray = field(default_factory=bytearray)


class Left(Exception):
    """The caller left before the answer was complete."""


async def call(
    port: int, body: bytes, hear=lambda answer, count: None, leave_after: int | None = None, batch: bool = False
) -> Answer:
    """Call /v1/audio/speech over a new connection. hear(answer, bytes of sound) is called as they come.

    leave_after: bytes of the answer after which the caller leaves, by raising Left; 0: right after the request.
    """
    answer = Answer(time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/audio/speech{'/batch' * batch} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        if leave_after == 0:
            raise Left
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, chunked, received = int(head.split()[1]), "transfer-encoding: chunked" in head, 0
        async for part in _chunks(reader) if chunked else _rest(reader):
            received += len(part)
            answer.body += part
            hear(answer, len(part))
            if leave_after is not None and received >= leave_after:
                raise Left
        answer.status, answer.samples = status, received // SAMPLE_BYTES
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # status stays 0
    finally:
        answer.ended = time.perf_counter()
        writer.close()
    return answer


async def _chunks(reader: asyncio.StreamReader):
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)


async def _rest(reader: asyncio.StreamReader):
    while part := await reader.read(1 << 16):
        yield part


async def load(port: int, clients: int, warm: float, seconds: float, frames: int) -> dict:
    """Run `clients` callers that repeat their calls, and return a row, counted after the warm-up."""
    return await Load(port, clients, warm, seconds, frames).run()


class Load:
    """Callers and their counts."""

    def __init__(self, port: int, clients: int, warm: float, seconds: float, frames: int):
        self._port, self._clients, self._frames = port, clients, frames
        self._begin = time.perf_counter() + warm
        self._end = self._begin + seconds
        self._bytes = self._errors = 0
        self._answers: list[Answer] = []
        self._first: list[float] = []  # ms to the first sound, also of answers that are cut off by the end

    async def run(self) -> dict:
        callers = [asyncio.create_task(self._ask(number)) for number in range(self._clients)]
        await asyncio.sleep(self._end - time.perf_counter())
        for caller in callers:
            caller.cancel()
        for end in await asyncio.gather(*callers, return_exceptions=True):
            if not isinstance(end, asyncio.CancelledError):
                raise end
        return self._row()

    async def _ask(self, number: int):
        words = random.Random(number)
        while True:
            answer = await call(self._port, stream_body(words, self._frames), self._hear)
            if answer.status == 200 and answer.samples:
                self._answers.append(answer)
            else:
                self._errors += 1
                await asyncio.sleep(0.1)

    def _hear(self, answer: Answer, count: int):
        now = time.perf_counter()
        if now >= self._begin:
            self._bytes += count
        if answer.began >= self._begin and not answer.heard:
            self._first.append(1000 * (now - answer.began))
        answer.heard = True

    def _row(self) -> dict:
        seconds = self._end - self._begin
        counted = [one for one in self._answers if one.ended >= self._begin]
        first = sorted(self._first)
        return {
            "clients": self._clients,
            "requests_s": round(len(counted) / seconds, 2),
            "audio_s_per_s": round(self._bytes / SAMPLE_BYTES / SAMPLE_RATE / seconds, 2),
            "first_ms_p50": _share(first, 0.5),
            "first_ms_p99": _share(first, 0.99),
            "errors": self._errors,
            "requests": len(counted),
            "seconds": seconds,
        }


def _share(found: list[float], share: float) -> float | None:
    return round(found[round(share * (len(found) - 1))], 1) if found else None


async def arrive(port: int, rate: float, seconds: float, frames: int) -> dict:
    """Make `rate` calls a second at random, whether or not earlier ones have been answered, and return a row."""
    arrivals, streams, tasks = random.Random(ARRIVALS), [], []
    began = at = time.perf_counter()
    while (at := at + arrivals.expovariate(rate)) < began + seconds:
        await asyncio.sleep(at - time.perf_counter())
        streams.append(Playback())
        tasks.append(asyncio.create_task(call(port, stream_body(arrivals, frames), streams[-1].hear)))
    answers = await asyncio.gather(*tasks)
    took = time.perf_counter() - began
    whole = [stream for stream, answer in zip(streams, answers, strict=True) if answer.status == 200 and stream.first]
    first = sorted(stream.first for stream in whole)
    return {
        "rate": rate,
        "calls": len(answers),
        "failed": len(answers) - len(whole),
        "first_call_ms": round(streams[0].first, 1),
        **{f"first_ms_p{share}": _share(first, share / 100) for share in (50, 95, 99)},
        "dry": sum(stream.dry > 0 for stream in whole),
        "worst_dry_ms": round(max((stream.dry for stream in whole), default=0.0), 1),
        "audio_s_per_s": round(sum(answer.samples for answer in answers) / SAMPLE_RATE / took, 2),
    }


@dataclass
class Playback:
    """A stream that plays from its first sound on, and pauses while there is none.

    first: ms to the first sound. dry: the longest pause in ms.
    """

    first: float = 0.0
    dry: float = 0.0
    _ends: float = 0.0  # of what has come, if nothing follows

    def hear(self, answer: Answer, count: int) -> None:
        now = time.perf_counter()
        if self.first:
            self.dry = max(self.dry, 1000 * (now - self._ends))
        else:
            self.first, self._ends = 1000 * (now - answer.began), now
        self._ends = max(self._ends, now) + count / SAMPLE_BYTES / SAMPLE_RATE


def stream_body(words: random.Random, frames: int) -> bytes:
    """Return the body of a call for a stream of `frames` frames at most."""
    body = {"input": text_of(words), "voice": "alloy", "response_format": "pcm", "stream": True, "retries": 0}
    return json.dumps(body | {"seed": words.randrange(1 << 32), "max_new_tokens": frames}).encode()


def body_of(kind: str, number: int, words: random.Random) -> bytes:
    """Return the body of a call of KINDS."""
    body = {"input": text_of(words, words.randint(1, 12)), "response_format": words.choice(("pcm", "wav", "mp3"))}
    body |= {"seed": number, "max_new_tokens": words.randint(5, 60), "retries": 0}
    if kind == "whole":
        body["stream"] = False
    elif kind in ("stream", "leave in the middle"):
        body |= {"response_format": "pcm", "stream": True}
    elif kind == "sse":
        body |= {"response_format": "pcm", "stream_format": "sse"}
    elif kind in BATCHES:  # two texts and one that nobody can speak
        body["items"] = [{"input": body.pop("input")}, {"input": "Good day."}, {"input": ""}]
    return words.choice(BAD) if kind == "bad" else json.dumps(body).encode()


async def soak(port: int, requests: int, clients: int) -> dict:
    """Make calls of every kind in random order, many at once: whole, streamed, batches, bad, callers who leave."""
    kinds, counts = random.Random(requests), Counter()
    left = iter(range(requests))

    async def one(number: int):
        kind, words = kinds.choice(KINDS), random.Random(number)
        if kind == "text":
            await text(words)
            return
        data, batch = body_of(kind, number, words), kind in BATCHES
        leave = {"leave at once": 0, "leave a batch": 0, "leave in the middle": words.choice((1, 20_000))}.get(kind)
        try:
            answer = await asyncio.wait_for(call(port, data, leave_after=leave, batch=batch), PATIENCE)
        except Left:
            counts["cancels"] += 1
            return
        except (asyncio.TimeoutError, TimeoutError):
            counts["hung"] += 1
            return
        wanted = (400, 404) if kind == "bad" else (200,)
        counts["bad" if kind == "bad" else "spoken"] += 1
        counts["batches"] += batch
        counts["wrong"] += answer.status not in wanted or (batch and not is_right(answer.body))

    async def text(words: random.Random):
        phase = words.choice(PHASES)
        caller = TextCaller(words, phase, words.choice(WAYS))
        counts["texts"] += 1
        try:
            await asyncio.wait_for(caller.run(port), PATIENCE)
        except Gone:
            counts["cancels"] += 1
        except (asyncio.TimeoutError, TimeoutError):
            counts["hung"] += 1
        else:
            counts["spoken"] += 1
        counts["wrong"] += not caller.is_right
        interrupts[phase] += caller.is_cut

    async def caller():
        for number in left:
            await one(number)

    interrupts: Counter[str] = Counter()
    await asyncio.gather(*(caller() for _ in range(clients)))
    listed = {key: counts[key] for key in ("spoken", "cancels", "bad", "batches", "texts", "wrong", "hung")}
    return {"requests": requests, **listed, "interrupts": {phase: interrupts[phase] for phase in PHASES[:-1]}}


async def compare(port: int, clients: int, seconds: float, path: pathlib.Path) -> dict:
    """Repeat short calls, and compare each answer with the one in a file, which the first run writes.

    Returns answers per second and, of all calls, those with other samples, with fewer samples as if they were whole,
    and with an error.
    """

    async def ask(number: int) -> Answer:
        body = {"input": text_of(random.Random(number), 6), "seed": number, "retries": 0, "response_format": "pcm"}
        return await call(port, json.dumps({**body, "max_new_tokens": 100}).encode())

    if not path.is_file():
        answers = [await ask(number) for number in range(COMPARED)]
        path.write_text(
            json.dumps([(len(one.body), hashlib.sha256(one.body).hexdigest()) for one in answers]), encoding="utf-8"
        )
    wanted, counts, numbers = json.loads(path.read_text(encoding="utf-8")), Counter(), itertools.count()
    began = time.perf_counter()

    async def caller():
        while time.perf_counter() - began < seconds:
            number = next(numbers) % COMPARED
            answer = await ask(number)
            length, digest = wanted[number]
            if answer.status != 200:
                counts["errors"] += 1
                await asyncio.sleep(0.1)
            elif hashlib.sha256(answer.body).hexdigest() == digest:
                counts["right"] += 1
            else:
                counts["silent_short" if len(answer.body) < length else "wrong"] += 1

    await asyncio.gather(*(caller() for _ in range(clients)))
    rate = counts["right"] / (time.perf_counter() - began)
    return {"requests_s": round(rate, 2), **{key: counts[key] for key in ("right", "wrong", "silent_short", "errors")}}


def is_right(body: bytes) -> bool:
    """True if a batch's answer has the sound of its two texts, and the third's error."""
    results = json.loads(body)["results"]
    sounds = [len(result.get("audio_data", "")) > 100 for result in results]
    return sounds == [True, True, False] and results[2]["error"]["param"] == "input"


def main() -> None:
    """Run the command; the last line of output is JSON."""
    port, kind, *numbers = sys.argv[1:]
    if kind == "load":
        clients, warm, seconds, frames = map(float, numbers)
        result = load(int(port), int(clients), warm, seconds, int(frames))
    elif kind == "open":
        rate, seconds, frames = map(float, numbers)
        result = arrive(int(port), rate, seconds, int(frames))
    elif kind == "compare":
        clients, seconds, path = numbers
        result = compare(int(port), int(clients), float(seconds), pathlib.Path(path))
    else:
        result = soak(int(port), *map(int, numbers))
    print(json.dumps(asyncio.run(result)))


if __name__ == "__main__":
    main()
