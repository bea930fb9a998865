// Finds the token at the caret and its completions. Uses no page elements and no server.
import { say, translated } from "./words.js"

/**
 * Offered piece of text. note: its place, or its problem; isOff: it has no effect here; isManner: see manner.js.
 * @typedef {{value: string, label: string, group: string, note: string, isOff: boolean, isManner?: boolean}} Choice
 */

/**
 * Unfinished tag, bracket or name before the caret. isSure: it cannot be anything else.
 * @typedef {{kind: "tag" | "bracket" | "name", start: number, query: string, isSure: boolean}} Token
 */

/** @typedef {{start: number, stop: number, says: string}} Hint */

/**
 * Part of a text that is said otherwise than written. entry: the line of `pronunciations` that says the same, if any.
 * @typedef {{start: number, stop: number, said: string, entry: string}} Said
 */

const TAG = /<(?:\|[^<>|\n]{0,40}|[a-z]+:[^<>|\n]{0,30})$/
const BRACKET = /\[[^[\]\n|]{0,40}$/
const NAME = /(?:^|\n)[ \t]*(\p{L}[\p{L}\p{M}\p{N} _.'’-]{1,38})$/u
const LONGEST = 64 // characters before the caret that are searched

/**
 * @param {string} text
 * @param {number} caret
 * @param {boolean} hasNames true if such a text names speakers
 * @returns {Token | null}
 */
export function tokenAt(text, caret, hasNames) {
    const from = Math.max(0, caret - LONGEST)
    const before = text.slice(from, caret)
    for (const [kind, pattern] of /** @type {["tag" | "bracket", RegExp][]} */ ([
        ["tag", TAG],
        ["bracket", BRACKET],
    ])) {
        const found = pattern.exec(before)
        if (found) {
            const query = found[0].replace(/^(<\|?|\[)\s*/, "")
            return { kind, start: from + found.index, query, isSure: true }
        }
    }
    const found = hasNames && (from === 0 || before.includes("\n")) ? NAME.exec(before) : null
    return found && { kind: "name", start: caret - found[1].length, query: found[1], isSure: false }
}

/**
 * Groups of tags as choices, in order.
 * @param {import("./server.js").TagGroup[]} groups
 * @returns {Choice[]}
 */
export function tagChoices(groups) {
    return groups.flatMap(({ name, place, tags }) =>
        tags.map(([value, lacks]) => ({
            value,
            label: value.replace(/^<\|(.*)\|>$/, "$1"),
            group: name,
            note: translated(lacks || `Goes ${place}.`),
            isOff: Boolean(lacks),
        })),
    )
}

/**
 * Completions of a token: those that start like it first, those without effect last.
 * @param {Token} token
 * @param {string} text
 * @param {Choice[]} tags
 * @param {string[]} names of speakers
 * @returns {Choice[]}
 */
export function choicesFor(token, text, tags, names) {
    const speaker = (/** @type {string} */ value, /** @type {string} */ label) => ({
        value,
        label,
        group: "speaker",
        note: token.isSure ? say("Starts a turn.") : say("Starts a turn. Press Tab to insert."),
        isOff: false,
    })
    const sign = token.kind === "tag" ? "<" : "["
    let all = token.kind === "name" ? [] : tags.filter(({ value }) => value.startsWith(sign))
    if (token.kind === "name") all = names.map((name) => speaker(`${name}: `, name))
    else if (token.kind === "bracket" && !text.slice(text.lastIndexOf("\n", token.start - 1) + 1, token.start).trim()) {
        all = [...names.map((name) => speaker(`[${name}] `, `[${name}]`)), ...all]
    }
    const query = token.query.toLowerCase().replace(/\s+/g, token.kind === "tag" ? "_" : " ")
    const ranked = all.map((choice) => ({ choice, rank: rank(choice, query, token.kind === "name") }))
    const order = (/** @type {{choice: Choice, rank: number}} */ one) => one.rank + (one.choice.isOff ? 2 : 0)
    return ranked
        .filter(({ rank }) => rank < 2)
        .sort((a, b) => order(a) - order(b))
        .map(({ choice }) => choice)
}

/**
 * 0 if a choice or one of its words starts with the query, 1 if it contains it, else 2.
 * @param {Choice} choice
 * @param {string} query
 * @param {boolean} isWhole match only the beginning
 */
function rank({ label }, query, isWhole) {
    const plain = label.toLowerCase().replace(/^\[|\]$/g, "")
    if (plain.startsWith(query)) return 0
    if (isWhole) return 2
    if (plain.split(/[:_]/).some((word) => word.startsWith(query))) return 0
    return plain.includes(query) ? 1 : 2
}

/**
 * Range that a choice replaces: the part already written, also after the caret.
 * @param {Choice} choice
 * @param {string} text
 * @param {number} caret
 * @param {Token | null} token null if nothing of it is written
 */
export function placeFor(choice, text, caret, token) {
    const rest = text.slice(caret, caret + LONGEST)
    const written = { tag: /^[\w:]*\|?>/, bracket: /^[\w. ]*\]/, name: /^(?:[ \t]*:)?[ \t]*/ }
    const behind = token ? (written[token.kind].exec(rest)?.[0].length ?? 0) : 0
    return { start: token?.start ?? caret, stop: caret + behind, value: choice.value }
}

/**
 * Hints moved to their new positions after a change of the text. Those inside the change are dropped.
 * @template {{start: number, stop: number}} Part
 * @param {Part[]} hints
 * @param {string} before
 * @param {string} after
 */
export function moved(hints, before, after) {
    const shorter = Math.min(before.length, after.length)
    let same = 0
    while (same < shorter && before[same] === after[same]) ++same
    let end = 0
    while (end < shorter - same && before[before.length - 1 - end] === after[after.length - 1 - end]) ++end
    const by = after.length - before.length
    return hints.flatMap((hint) => {
        if (hint.stop <= same) return [hint]
        if (hint.start < before.length - end) return []
        return [{ ...hint, start: hint.start + by, stop: hint.stop + by }]
    })
}

/**
 * Part of a text at the caret.
 * @template {{start: number, stop: number}} Part
 * @param {Part[]} parts
 * @param {number} caret
 */
export function partAt(parts, caret) {
    return parts.find(({ start, stop }) => start <= caret && caret <= stop)
}

/**
 * True if a list of pronunciations has an entry for what is written.
 * @param {string} list
 * @param {string} written
 */
export function isListed(list, written) {
    return list.split("\n").some((line) => line.split("=")[0].trim() === written)
}

/**
 * A list of pronunciations with one more entry, unless it has it. It stands before the sections of speakers.
 * @param {string} list
 * @param {string} entry
 */
export function withEntry(list, entry) {
    const lines = list.split("\n")
    if (lines.some((line) => line.trim() === entry)) return list
    const section = lines.findIndex((line) => /^\s*\[.+\]\s*$/.test(line))
    const own = (section < 0 ? lines : lines.slice(0, section)).join("\n").trimEnd()
    const rest = section < 0 ? [] : ["", ...lines.slice(section)]
    return [...(own ? [own] : []), entry, ...rest].join("\n")
}

/**
 * Formats a length in words.
 * @param {number | null} seconds
 */
export function about(seconds) {
    if (!seconds) return ""
    if (seconds < 60) return say("about {seconds} s", { seconds: Math.max(1, Math.round(seconds)) })
    const [minutes, rest] = [Math.floor(seconds / 60), Math.round(seconds % 60)]
    if (seconds < 3600) return say("about {minutes} min {rest} s", { minutes, rest })
    return say("about {hours} h", { hours: (seconds / 3600).toFixed(1) })
}
