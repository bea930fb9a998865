// Which word of a speech is marked at a time. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { heardWord } from "../../web/js/heard_word.js"

const words = [
    [0.1, 0.4],
    [0.4, 0.7],
    [0.8, 1], // after a stop inside the sentence
    [2.5, 2.9], // after a pause
].map(([start, end]) => ({ word: "word", start, end, speaker: "", method: "estimated" }))

/** The words that are marked at these times. @param {number[]} times */
const marked = (...times) => times.map((seconds) => heardWord(words, seconds))

test("a word is marked from its start until the next one starts", () => {
    assert.deepEqual(marked(0, 0.0999, 0.1, 0.3999, 0.4, 0.75, 0.7999, 0.8), [-1, -1, 0, 0, 1, 1, 1, 2])
})

test("a word is marked no longer than a moment into a pause", () => {
    assert.deepEqual(marked(1.2, 1.29, 1.31, 2.4999, 2.5), [2, 2, -1, -1, 3])
})

test("nothing is marked after the last word: what follows has no times yet", () => {
    assert.deepEqual(marked(2.8999, 2.9, 60), [3, -1, -1])
    assert.equal(heardWord([], 0), -1)
})
