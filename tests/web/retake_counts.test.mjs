// The text of a widget "retakes". Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { once } from "../../web/js/retake_counts.js"

test("a sentence is taken once more, and others keep their takes", () => {
    assert.equal(once("", 3), "3:1")
    assert.equal(once("3:1", 3), "3:2")
    assert.equal(once("10:1, 7 : 2", 8), "7:2, 8:1, 10:1")
})

test("what cannot be read is left out", () => {
    assert.equal(once("the third, 2:1", 2), "2:2")
})
