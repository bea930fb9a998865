// What a player says of its run, and how times are written. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { whatItSays } from "../../web/js/player_words.js"
import { clock, inWords, RATE } from "../../web/js/times.js"

/** A player of a long text after its first five seconds, and what is different. */
function says({ sound = {}, ...player }) {
    const run = { seed: 7 }
    const whole = { run, state: "speaking", samples: 5 * RATE, length: 1330 * RATE, restarts: [], ...sound }
    return whatItSays({
        mode: "playing",
        sound: { done: 48.2, left: 452.4, pace: 2, speed: 4, waited: 0, ...whole },
        ...player,
    })
}

test("times from a minute on are written in minutes", () => {
    assert.deepEqual(
        [0, 45.4, 59.4, 60, 87, 90, 452, 3725].map((seconds) => inWords(seconds)),
        ["0 s", "45 s", "59 s", "1:00", "1:27", "1:30", "7:32", "62:05"],
    )
    assert.deepEqual(
        [6.24, 59.94, 119.6].map((seconds) => inWords(seconds, 1)),
        ["6.2 s", "59.9 s", "2:00"],
    )
    assert.equal(clock(65.32 * RATE), "1:05.3")
})

test("it says how far speech is and how long that takes", () => {
    assert.equal(says({}), "0:48 of about 22:10, ready in 7:33.")
    assert.equal(says({ sound: { left: 12 } }), "0:48 of about 22:10, ready in 0:12.")
    assert.equal(says({ sound: { done: 0, samples: 0, length: 0 }, mode: "buffering" }), "Starting...")
    assert.equal(says({ sound: { state: "complete" }, mode: "ended" }), "Seed 7.")
    const run = { seed: 7, doubts: ["Voice bob: Cloning works less well without a transcript."] }
    assert.equal(says({ sound: { state: "complete", run }, mode: "ended" }), `Seed 7. ${run.doubts[0]}`)
})

test("it says what it waits for where nothing is left to hear", () => {
    const waits = says({ mode: "buffering", isSlow: true, sound: { waited: 6 } })
    assert.equal(
        waits,
        "Waiting for the next part: 0:48 of about 22:10, ready in 7:33. " +
            "Each part plays once it is complete and has been checked.",
    )
    const slow = says({ mode: "buffering", sound: { waited: 1, pace: 0.4, speed: 0.5 } })
    assert.equal(slow, "Slower than real time: buffering. 0:48 of about 22:10, ready in 7:33.")
    const late = says({ mode: "buffering", isSlow: true, sound: { waited: 1 } })
    const batch = says({ mode: "buffering", sound: { waited: 1, pace: 0.4, speed: 1.3 } })
    assert.equal(batch, "0:48 of about 22:10, ready in 7:33.", "four chunks at a time are faster than real time")
    assert.equal(late, "Buffering. 0:48 of about 22:10, ready in 7:33.")
})
