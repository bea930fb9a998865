"""A random user of a real ComfyUI: prompts, cancels, unloads, rival models, broken inputs, two clients, restarts.

    python tests/faults/random_user.py --actions 60 --seed 45      # without --seed, a fresh one is printed
    python tests/faults/random_user.py --actions 750 --seconds 570 --device cuda --out   # into results/faults.json

COMFYUI_PATH and COMFYUI_PYTHON are as for tests/comfyui. All choices are drawn from one Random, whatever ComfyUI
answers and when. Checked after every action: its outcome, equal sound for equal prompts, memory, queue and log.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import pathlib
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pack  # noqa: F401  (imports the pack as higgs_tts)
from higgs_tts.benchmarks.common import commit, put
from higgs_tts.tests.comfyui.server import BUTTONS, SUSPECT, Comfy, Outcome, at_message, serving, suspects
from higgs_tts.tests.faults import results
from higgs_tts.tests.faults.user_prompts import (
    IN_FOLDERS,
    Drawn,
    Prompts,
    check_refused,
    dealt,
    differing,
    files_of,
    furnish,
    node,
    sounds_of,
)
from higgs_tts.tests.user_folders import CHANGING, replace_clip

OURS = re.compile(r"Higgs TTS(:| could| needs)|IMPORT FAILED.*Higgs|ComfyUI-Higgs-TTS/\S+\.py:\d+: \w*Warning")
FLAGS = ((), ("--cache-none",), ("--cache-classic",), ("--cache-lru", "3"), ("--disable-smart-memory",))  # of restarts
SLACK = 256 << 20  # bytes of libraries and kernels that CUDA keeps once they have run


class User:
    """A running ComfyUI, the choices of its user, and what was heard so far."""

    def __init__(self, seed: int, base: pathlib.Path, flags: tuple[str, ...], address: str):
        self.rng, self.base, self.flags, self.address = random.Random(seed), base, flags, address
        self.number = 0  # of the action
        self.heard: dict[str, dict[str, Any]] = {}  # a prompt's key -> its sounds
        self.failures: list[str] = []
        self.warnings: set[str] = set()  # lines of logs
        self.start()
        self.prompts = Prompts(self.rng, self.comfy.get("/object_info"), "--cpu" in flags)

    def start(self, *flags: str) -> None:
        """Start ComfyUI, as a user does after a crash: in the same folders."""
        self.comfy = Comfy(self.base, (*self.flags, *flags))
        self.read = 0  # bytes of its log
        self.most_free = 0  # bytes of the device after unloading, in this process
        self.read_log(OURS)

    def read_log(self, pattern: re.Pattern[str] = SUSPECT) -> None:
        """Raise AssertionError if there are such lines in the part of the log that was not read yet."""
        size = self.comfy.log.stat().st_size
        found = suspects(self.comfy.log, self.read, pattern)
        self.read, self.warnings = size, self.warnings | found
        assert not found, f"in the log: {sorted(found)[:5]}"

    def run(self, drawn: Drawn, on_event: Callable[[dict[str, Any]], None] | None = None, number: int = 0) -> Outcome:
        """Queue a prompt and wait for its end. Equal numbers give equal prompts."""
        return self.comfy.run(drawn.fresh(number or self.number, self.address), on_event)

    def succeed(self, drawn: Drawn, outcome: Outcome, number: int = 0, heard_on: str = "PreviewAudio") -> None:
        """Check a success, and that it sounds as the same prompt did before."""
        assert outcome.end == "success", f"{outcome.end}: {outcome.error[:600]} {drawn.key}"
        sounds = sounds_of(self.base, drawn, outcome, number or self.number, heard_on)
        apart = differing(self.heard.setdefault(drawn.key, sounds), sounds, "--cpu" not in self.flags)
        assert not apart, f"it sounded different before: {apart[:3]} {drawn.key}"

    def speak(self, drawn: Drawn, number: int = 0) -> str:
        """Run a prompt that must succeed, and return its template."""
        self.succeed(drawn, self.run(drawn, number=number), number)
        return drawn.template

    def resume(self, drawn: Drawn, earlier: Drawn) -> str:
        """Run a stopped prompt again if it writes files, also with one missing, and in one go. Else another one."""
        if drawn.template not in IN_FOLDERS:
            return self.speak(earlier)
        self.speak(drawn)
        files_of(self.base, drawn, self.number)[0].unlink()
        self.speak(drawn)
        return self.speak(drawn, 100_000 + self.number)

    def is_closed(self, state: dict[str, Any]) -> bool:
        """True if no engine is open and the device has its memory back. state: the probe's."""
        free = self.comfy.get("/higgs_bench")["free"]  # 0 on a CPU
        self.most_free = max(self.most_free, free)
        state |= {"free": free, "most_free": self.most_free}  # told if it never closes
        return state["open"] == 0 and state["loaded"] == [] and free >= self.most_free - SLACK


def speak(user: User) -> str:
    """Speak a template with random settings."""
    return user.speak(user.prompts.draw())


def repeat(user: User) -> str:
    """Speak an earlier prompt again: the same sound."""
    return user.speak(user.prompts.earlier())


def cancel(user: User) -> str:
    """Cancel in the middle. Then resume, or speak an earlier prompt."""
    drawn, wanted, earlier = user.prompts.draw_long(), user.rng.randint(1, 9), user.prompts.earlier()
    outcome = user.run(drawn, at_message(wanted, lambda: user.comfy.post("/interrupt", {})))
    if outcome.end != "interrupted":
        user.succeed(drawn, outcome)
    return f"{drawn.template} at {wanted}: {outcome.end}, {user.resume(drawn, earlier)}"


def restart(user: User) -> str:
    """Kill ComfyUI in the middle, or after the end. Start it again, and resume."""
    drawn, wanted, earlier = user.prompts.draw_long(), user.rng.randint(1, 9), user.prompts.earlier()
    flags = user.rng.choice(FLAGS)
    try:
        end = user.run(drawn, at_message(wanted, user.comfy.kill)).end
    except OSError:  # also urllib's, if the kill came with the last message
        assert user.comfy.process.poll() is not None, "ComfyUI does not answer"
        end = "killed"
    user.read_log()
    user.comfy.kill()
    user.start(*flags)
    return f"{drawn.template} at {wanted}: {end}, {flags}, {user.resume(drawn, earlier)}"


def unload(user: User) -> str:
    """Speak an earlier prompt, press Unload Models, and speak it again."""
    earlier = user.prompts.earlier()
    user.speak(earlier)  # so that CUDA's libraries, which stay, are loaded before memory is first measured
    user.comfy.free(user.rng.choice(BUTTONS), user.is_closed)
    return user.speak(earlier)


def unload_while_speaking(user: User) -> str:
    """Press Unload Models in the middle: it is done at the end."""
    drawn, body = user.prompts.draw(), user.rng.choice(BUTTONS)
    user.succeed(drawn, user.run(drawn, at_message(1, lambda: user.comfy.post("/free", body))))
    user.comfy.until(user.is_closed)
    return drawn.template


def rival(user: User) -> str:
    """Speak, let another model need a little or all of the memory, and speak again."""
    template = user.rng.choice(("speak", "dialogue", "long_narration", "lora", "subtitles"))
    drawn, wanted = user.prompts.draw(template), user.rng.choice(("a little", "all"))
    asked = copy.deepcopy(drawn)
    asked.prompt["90"] = node("HiggsProbePressure", audio=drawn.inputs_of("PreviewAudio")["audio"], wanted=wanted)
    outcome = user.run(asked)
    user.succeed(drawn, outcome)
    before, after = json.loads(outcome.text("HiggsProbePressure"))
    assert all(state["open"] == len(state["loaded"]) for state in (before, after)), (before, after)
    is_trimmed = wanted == "a little" and sum(after["loaded"]) < sum(before["loaded"])
    assert after["open"] == 0 or is_trimmed, (before, after)
    return f"{user.speak(drawn)}, {wanted}"


def both(user: User) -> str:
    """Speak two prompts, each with its own model, in one workflow."""
    first, second = (user.prompts.draw(user.rng.choice(("speak", "dialogue", "lora"))) for _ in range(2))
    saved = copy.deepcopy(second)
    saved.inputs_of("PreviewAudio")["filename_prefix"] = "both"
    text = json.dumps(saved.fresh(user.number, user.address)).replace("PreviewAudio", "SaveAudio")
    others = json.loads(re.sub(r'"(\d)"', r'"5\1"', text))  # other numbers of nodes
    outcome = user.comfy.run(first.fresh(user.number, user.address) | others)
    user.succeed(first, outcome)
    user.succeed(second, outcome, heard_on="SaveAudio")
    return f"{first.template}, {second.template}"


def change_clip(user: User) -> str:
    """Replace a clip of the voice library, and again by the first one: each is heard."""
    drawn, voices = user.prompts.draw("long_narration"), user.rng.sample(("amber", "oliver", "sky"), 2)
    drawn.inputs_of("HiggsTTSLoadVoice")["voice"] = CHANGING
    for voice in (*voices, voices[0]):
        replace_clip(user.base, voice)
        spoken = copy.deepcopy(drawn)
        spoken.prompt["90"] = node("PrimitiveString", value=voice)  # not run: tells the sounds apart
        user.speak(spoken)
    return " ".join(voices)


def refuse(user: User) -> str:
    """Give an input that must be refused: an error that says what to do."""
    name, prompt, parts = user.prompts.refused(user.address)
    check_refused(user.comfy.run(prompt), parts)
    return name


def two_clients(user: User) -> str:
    """Queue prompts of two clients at once: each gets its own."""
    other = copy.copy(user)
    other.comfy = copy.copy(user.comfy)
    other.comfy.client = f"{user.rng.getrandbits(128):032x}"
    user.comfy.post("/higgs_tts/listen", {"client": user.comfy.client, "on": user.rng.random() < 0.5})
    parts = [[(user.prompts.draw(), None, user.number + n * 10**6) for n in pair] for pair in ((0, 1), (2, 3))]
    with ThreadPoolExecutor(2) as clients:
        outcomes = list(clients.map(lambda one, part: [one.run(*given) for given in part], (user, other), parts))
    for (drawn, _, number), outcome in zip((*parts[0], *parts[1]), (*outcomes[0], *outcomes[1]), strict=True):
        user.succeed(drawn, outcome, number)
        assert len({event["data"].get("prompt_id") for event in outcome.events} - {None}) == 1, "another's prompt"
    assert not any(outcome.data("higgs_tts.run") for outcome in outcomes[1]), "a client that does not listen got sound"
    return " | ".join(", ".join(drawn.template for drawn, *_ in part) for part in parts)


def delete(user: User) -> str:
    """Delete a prompt from the queue while another speaks, and cancel that: the deleted one never runs."""
    first, second = user.prompts.draw("speak", long=True), user.prompts.draw()
    first.inputs_of("HiggsTTSSpeak")["text"] *= 4
    deleted: list[str] = []

    def press() -> None:
        asked = {"prompt": second.fresh(user.number, user.address), "client_id": "another"}
        deleted.append(user.comfy.post("/prompt", asked)["prompt_id"])
        user.comfy.post("/queue", {"delete": deleted})
        user.comfy.post("/interrupt", {})

    assert user.run(first, at_message(1, press)).end == "interrupted"
    assert not user.comfy.get(f"/history/{deleted[0]}"), "a deleted prompt ran"
    return second.template


def save_voice(user: User) -> str:
    """Save a voice, load it, and speak with it as with the one that was saved."""
    drawn, name = user.prompts.draw("clone_voice"), f"made/{user.number}"
    drawn.prompt["20"] = node("HiggsTTSSaveVoice", voice=["3", 0], name=name, overwrite=user.rng.random() < 0.5)
    user.speak(drawn)
    loaded = Drawn(drawn.template, {number: drawn.prompt[number] for number in ("2", "5", "6", "7")})
    loaded.prompt["3"] = node("HiggsTTSLoadVoice", voice=f"{name}.safetensors")
    user.heard[loaded.key] = user.heard[drawn.key]
    user.speak(loaded)
    return name


ACTIONS: dict[Callable[[User], str], int] = {  # how many of sixty
    speak: 15, repeat: 5, refuse: 15, cancel: 8, restart: 2, unload: 4, unload_while_speaking: 2, rival: 3,
    two_clients: 2, delete: 1, save_voice: 1, both: 1, change_clip: 1,
}  # fmt: skip


def act(user: User, action: Callable[[User], str], command: str) -> None:
    """Do an action. A ComfyUI that has failed is replaced."""
    began = time.monotonic()
    try:
        told = action(user)
        queue = user.comfy.get("/queue")
        assert not queue["queue_running"] and not queue["queue_pending"], f"still queued: {queue}"
        user.read_log(OURS if action is refuse else SUSPECT)
    except Exception as error:  # any is a defect
        told = f"{type(error).__name__}: {error}"
        user.failures.append(f"{user.number} {action.__name__} {told}")
        traceback.print_exc(file=sys.stdout)
        print(f"{user.comfy.abort()}\nFAILED. Repeat it: {command}", flush=True)
        user.start()
    print(f"{user.number} {action.__name__} {told} {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    """Run the actions, print the row, and fail if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no action after this long")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", action="store_true", help="put the row into results/faults.json")
    given = parser.parse_args()
    command = f"python tests/faults/random_user.py --seed {given.seed} --device {given.device} --actions"
    print(f"{command} {given.actions}", flush=True)
    flags = ("--verbose", "DEBUG") if given.device == "cuda" else ("--cpu",)
    with tempfile.TemporaryDirectory() as folder:
        furnish(base := pathlib.Path(folder, "base"))
        with serving(base / "tiny" / "v3") as address:
            user = User(given.seed, base, flags, address)
            try:
                deck = dealt(user.rng, [action for action, times in ACTIONS.items() for _ in range(times)])
                until = time.monotonic() + given.seconds
                while user.number < given.actions and time.monotonic() < until:
                    user.number += 1
                    act(user, next(deck), f"{command} {user.number}")
                stats = user.comfy.get("/system_stats")
            finally:
                user.comfy.stop()
    row = {"device": stats["devices"][0]["name"], "seed": given.seed, "actions": user.number}
    row |= {"failures": user.failures, "warnings": sorted(user.warnings), "date": str(datetime.date.today())}
    row |= {name: stats["system"][f"{name}_version"] for name in ("comfyui", "pytorch")} | {"commit": commit()}
    print(json.dumps(row))
    if given.out:
        results.write("users", put(results.read("users"), row, ("device", "comfyui", "seed")))
    sys.exit(1 if user.failures else 0)


if __name__ == "__main__":
    main()
