// What the page completes, and where hints go while a text changes. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import {
    about,
    choicesFor,
    isListed,
    moved,
    partAt,
    placeFor,
    tagChoices,
    tokenAt,
    withEntry,
} from "../../web/js/tokens.js"

const GROUPS = [
    {
        name: "emotion",
        place: "before",
        tags: [
            ["<|emotion:awe|>", "not learned"],
            ["<|emotion:anger|>", ""],
        ],
    },
    { name: "prosody", place: "before", tags: [["<|prosody:speed_slow|>", ""]] },
    { name: "sfx", place: "there", tags: [["<|sfx:laughter|>", ""]] },
    {
        name: "pause",
        place: "there",
        tags: [
            ["[pause]", ""],
            ["[pause 1.5]", ""],
            ["<|prosody:pause|>", ""],
        ],
    },
]
const TAGS = tagChoices(GROUPS)
const NAMES = ["Anna", "Anton", "Tom"]

/** The token before the | of a text. */
function at(text, hasNames = false) {
    const caret = text.indexOf("¦")
    return tokenAt(text.replace("¦", ""), caret, hasNames)
}

/** What is offered at the ¦ of a text. */
function offered(text, hasNames = false) {
    const token = at(text, hasNames)
    return token
        ? choicesFor(token, text.replace("¦", ""), TAGS, hasNames ? NAMES : []).map(({ label }) => label)
        : null
}

/** A text after its first offer was taken. */
function taken(text, hasNames = false) {
    const plain = text.replace("¦", "")
    const token = at(text, hasNames)
    const [choice] = choicesFor(token, plain, TAGS, hasNames ? NAMES : [])
    const { start, stop, value } = placeFor(choice, plain, text.indexOf("¦"), token)
    return plain.slice(0, start) + value + plain.slice(stop)
}

test("a tag begins with <| or its short spelling, and ends where it is closed", () => {
    assert.deepEqual(at("Hi <|emo¦ there"), { kind: "tag", start: 3, query: "emo", isSure: true })
    assert.equal(at("<|¦").query, "")
    assert.equal(at("<emotion:a¦").query, "emotion:a")
    for (const text of ["a < b¦", "<|emotion:awe|>¦", "a <| b\n¦", "<b>¦", "¦<|", "x".repeat(500) + "¦"]) {
        assert.equal(at(text), null, text)
    }
    const far = `${"word ".repeat(200)}<|sp¦`
    assert.equal(at(far).start, 1000)
})

test("what begins like it comes first, and what does nothing here last", () => {
    assert.deepEqual(offered("<|a¦"), ["emotion:anger", "sfx:laughter", "prosody:pause", "emotion:awe"])
    assert.deepEqual(offered("<|emotion:¦"), ["emotion:anger", "emotion:awe"])
    assert.deepEqual(offered("<|speed sl¦"), ["prosody:speed_slow"])
    assert.deepEqual(offered("<|zz¦"), [])
    assert.equal(TAGS.find(({ label }) => label === "emotion:awe").note, "not learned")
    assert.equal(TAGS.find(({ label }) => label === "emotion:anger").note, "Goes before.")
})

test("a bracket is a pause, and a speaker where a line begins", () => {
    assert.deepEqual(offered("Hi [¦"), ["[pause]", "[pause 1.5]"])
    assert.deepEqual(offered("Hi [pause 1¦"), ["[pause 1.5]"])
    assert.deepEqual(offered("Hi.\n [¦", true), ["[Anna]", "[Anton]", "[Tom]", "[pause]", "[pause 1.5]"])
    assert.deepEqual(offered("Hi [an¦", true), [])
    assert.deepEqual(offered("Hi [an¦"), [])
    assert.equal(offered("[pause]¦"), null)
    assert.equal(offered("[Anna|speed:¦", true), null)
})

test("a name is offered where a line begins, and Enter stays a new line", () => {
    assert.deepEqual(offered("An¦", true), ["Anna", "Anton"])
    assert.equal(at("Hi.\nAn¦", true).isSure, false)
    assert.deepEqual(offered("Hi.\nann¦", true), ["Anna"])
    assert.equal(offered("Anna: An¦", true), null)
    assert.equal(offered("A¦", true), null)
    assert.equal(offered("An¦"), null)
    assert.equal(at("\u0930\u093e¦", true).query, "\u0930\u093e")
    assert.deepEqual(offered("Hello¦", true), [])
    const middle = `${"so ".repeat(100)}An¦`
    assert.equal(offered(middle, true), null)
})

test("what is taken replaces what is written of it, also behind the caret", () => {
    assert.equal(taken("Hi <|ang¦ there"), "Hi <|emotion:anger|> there")
    assert.equal(taken("Hi <|emotion:ang¦er|> there"), "Hi <|emotion:anger|> there")
    assert.equal(taken("Hi <emotion:ang¦"), "Hi <|emotion:anger|>")
    assert.equal(taken("Hi [pa¦] there"), "Hi [pause] there")
    assert.equal(taken("An¦ hello", true), "Anna: hello")
    assert.equal(taken("An¦: hello", true), "Anna: hello")
    assert.equal(taken("[To¦", true), "[Tom] ")
    assert.deepEqual(placeFor(TAGS[1], "ab", 1, null), { start: 1, stop: 1, value: "<|emotion:anger|>" })
})

test("hints stay at their words while the text changes around them", () => {
    const hint = (start, stop) => ({ start, stop, says: "x" })
    assert.deepEqual(moved([hint(0, 3), hint(8, 11)], "abc defghij k", "abc XX defghij k"), [hint(0, 3), hint(11, 14)])
    assert.deepEqual(moved([hint(2, 6)], "ab<xy>cd", "ab<xyz>cd"), [], "it was changed itself")
    assert.deepEqual(moved([hint(2, 6)], "ab<xy>cd", "<xy>cd"), [hint(0, 4)])
    assert.deepEqual(moved([hint(2, 6)], "ab<xy>cd", "ab<xy>cd"), [hint(2, 6)])
    assert.deepEqual(moved([hint(2, 6)], "ab<xy>cd", ""), [])
})

test("seconds are told in words", () => {
    assert.deepEqual([null, 0, 0.4, 12.4, 75, 7300].map(about), [
        "",
        "",
        "about 1 s",
        "about 12 s",
        "about 1 min 15 s",
        "about 2.0 h",
    ])
})

test("an entry goes before the sections of speakers, once", () => {
    const entry = "06:32 = six thirty-two"
    assert.equal(withEntry("", entry), entry)
    assert.equal(withEntry("Nguyen = Win\n", entry), `Nguyen = Win\n${entry}`)
    assert.equal(withEntry("[Anna]\nYork = Yorrk", entry), `${entry}\n\n[Anna]\nYork = Yorrk`)
    assert.equal(withEntry("A = B\n[Anna]\nC = D", entry), `A = B\n${entry}\n\n[Anna]\nC = D`)
    assert.equal(withEntry(`${entry}\nA = B`, entry), `${entry}\nA = B`)
    assert.ok(isListed(`A = B\n ${entry}`, "06:32") && !isListed(entry, "6:32") && !isListed("", "06:32"))
})

test("a part is at the caret from its start to its end", () => {
    const parts = [
        { start: 1, stop: 3 },
        { start: 5, stop: 6 },
    ]
    assert.deepEqual(
        [0, 1, 3, 4, 6].map((caret) => partAt(parts, caret)?.start),
        [undefined, 1, 1, undefined, 5],
    )
})
