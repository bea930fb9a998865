// The text of a widget "retakes", such as "3:1, 7:2".

/**
 * Adds one more take of a sentence. What cannot be read is left out.
 * @param {string} text
 * @param {number} sentence
 */
export function once(text, sentence) {
    /** @type {Map<number, number>} */
    const counts = new Map()
    for (const [, number, times] of text.matchAll(/(\d+)\s*:\s*(\d+)/g)) counts.set(Number(number), Number(times))
    counts.set(sentence, (counts.get(sentence) ?? 0) + 1)
    const entries = [...counts].sort(([one], [other]) => one - other)
    return entries.map(([number, times]) => `${number}:${times}`).join(", ")
}
