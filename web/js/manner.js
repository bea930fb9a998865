// Writes how a turn is spoken at its start: tags, or the volume beside its name. Uses no page elements and no server.
import { say } from "./words.js"

/** @typedef {import("./tokens.js").Choice} Choice */

const BRACKET = /^([ \t]*)\[([^[\]|\n]+)((?:\|[^[\]|\n]*)*)\][ \t]*/
const COLON = /^([ \t]*)(\p{L}[^:\n]{0,38}):[ \t]*/u
const TAGS = /^(?:<\|[a-z]+:[a-z_]+\|>[ \t]*)*/
const VOLUMES = ["-12dB", "-6dB", "6dB"]
const KINDS = ["emotion", "style", "prosody"] // of the tags that stand before a text

/**
 * Choices of the menu of manners.
 * @param {Choice[]} tags of the model
 * @param {boolean} hasVolume true if such a text can set the volume of a turn
 * @returns {Choice[]}
 */
export function mannerChoices(tags, hasVolume) {
    const volumes = VOLUMES.map((value) => ({
        value: `volume:${value}`,
        label: `volume:${value.replace("dB", " dB")}`,
        group: say("volume"),
        note: say("Stands beside the name."),
        isOff: false,
    }))
    const own = [...tags.filter(({ group }) => KINDS.includes(group)), ...(hasVolume ? volumes : [])]
    return own.map((choice) => ({ ...choice, isManner: true }))
}

/** What a tag decides: only one of each is of use. @param {string} tag */
function slotOf(tag) {
    return (
        tag
            .match(/^<\|(?:prosody:([a-z]+)_|([a-z]+):)/)
            ?.slice(1)
            .join("") ?? ""
    )
}

/**
 * Range to replace, and the text to put there, so that the turn at the caret has a manner, or no longer if it had it.
 * @param {Choice} choice
 * @param {string} text
 * @param {number} caret
 * @param {string[]} names of speakers
 */
export function placeForManner({ value }, text, caret, names) {
    const start = text.lastIndexOf("\n", caret - 1) + 1
    const line = text.slice(start).split("\n", 1)[0]
    const [colon, bracket] = [line.match(COLON), line.match(BRACKET)]
    const isNamed = colon && names.some((name) => name.toLowerCase() === colon[2].trim().toLowerCase())
    const head = bracket ?? (isNamed ? colon : null)
    const before = head?.[0] ?? line.match(/^[ \t]*/)?.[0] ?? ""
    const tags = line.slice(before.length).match(TAGS)?.[0] ?? ""
    const stop = start + before.length + tags.length
    if (!value.startsWith("volume:")) {
        /** @type {string[]} */
        const held = tags.match(/<\|[^|]*\|>/g) ?? []
        const others = held.filter((tag) => slotOf(tag) !== slotOf(value))
        return {
            start,
            stop,
            value: before + [...(held.includes(value) ? [] : [value]), ...others].join(""),
        }
    }
    if (!head) return { start, stop, value: before + tags } // nobody has a volume here
    const held = (bracket?.[3] ?? "").split("|").slice(1)
    const others = held.filter((setting) => !setting.trim().startsWith("volume"))
    const settings = [head[2].trim(), ...others, ...(held.includes(value) ? [] : [value])]
    return { start, stop, value: `${head[1]}[${settings.join("|")}] ${tags}` }
}
