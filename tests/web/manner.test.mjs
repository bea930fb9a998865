// How a turn's manner is written. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { mannerChoices, placeForManner } from "../../web/js/manner.js"
import { tagChoices } from "../../web/js/tokens.js"

const TAGS = tagChoices([
    { name: "emotion", place: "before", tags: [["<|emotion:awe|>", "not learned"]] },
    { name: "prosody", place: "before", tags: [["<|prosody:speed_slow|>", ""]] },
    { name: "sfx", place: "there", tags: [["<|sfx:laughter|>", ""]] },
])
const NAMES = ["Anna", "Tom"]

/** A text with its caret at ¦ after a manner was chosen. */
function chosen(text, value) {
    const caret = text.indexOf("¦")
    const plain = text.replace("¦", "")
    const { start, stop, value: put } = placeForManner({ value }, plain, caret, NAMES)
    return plain.slice(0, start) + put + plain.slice(stop)
}

test("only what stands before a text is offered, and volume where it can be set", () => {
    const labels = (hasVolume) => mannerChoices(TAGS, hasVolume).map(({ label }) => label)
    assert.deepEqual(labels(false), ["emotion:awe", "prosody:speed_slow"])
    assert.deepEqual(labels(true).slice(2), ["volume:-12 dB", "volume:-6 dB", "volume:6 dB"])
    assert.equal(mannerChoices(TAGS, true)[0].isOff, true)
})

const SLOW = "<|prosody:speed_slow|>"
const FAST = "<|prosody:speed_fast|>"
const AWE = "<|emotion:awe|>"
for (const [before, value, after] of [
    ["Anna: Hello¦ there.\nTom: Yes.", SLOW, `Anna: ${SLOW}Hello there.\nTom: Yes.`],
    ["Anna: Hello.\nTom: Y¦es.", AWE, `Anna: Hello.\nTom: ${AWE}Yes.`],
    [`Anna: ${SLOW}Hel¦lo.`, FAST, `Anna: ${FAST}Hello.`],
    [`Anna: ${SLOW}Hel¦lo.`, AWE, `Anna: ${AWE}${SLOW}Hello.`],
    [`Anna: ${AWE}${SLOW} Hel¦lo.`, SLOW, `Anna: ${AWE}Hello.`],
    ["[Anna|seed:2] Hel¦lo.", SLOW, `[Anna|seed:2] ${SLOW}Hello.`],
    ["He said: no¦.", SLOW, `${SLOW}He said: no.`],
    ["¦", SLOW, SLOW],
    ["anna: Hi.¦", "volume:-6dB", "[anna|volume:-6dB] Hi."],
    [`Anna: ${SLOW}Hi.¦`, "volume:-6dB", `[Anna|volume:-6dB] ${SLOW}Hi.`],
    ["[Anna|seed:2|volume:2] Hi.¦", "volume:6dB", "[Anna|seed:2|volume:6dB] Hi."],
    ["[Anna|volume:6dB] Hi.¦", "volume:6dB", "[Anna] Hi."],
    ["Nobody is named.¦", "volume:6dB", "Nobody is named."],
]) {
    test(`${value} in ${before}`, () => assert.equal(chosen(before, value), after))
}
