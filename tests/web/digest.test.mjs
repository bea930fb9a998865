// The digest of a text. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { digestOf } from "../../web/js/digest.js"

test("the digest is the server's, also of half an emoji", () => {
    // As in tests/unit/nodes/test_routes.py.
    assert.equal(digestOf("Grüße, 声音 😀 ".repeat(9)), 567214605)
    assert.equal(digestOf("a\ud800"), 718673308)
})
