// Digest of a text, by which a run's text is compared with a node's.

/** CRC-32 of a text's UTF-16, as `Run.about` in nodes/page/events.py has it. @param {string} text */
export function digestOf(text) {
    let crc = -1
    for (let at = 0; at < text.length; ++at) {
        crc ^= text.charCodeAt(at)
        for (let bit = 0; bit < 16; ++bit) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0)
    }
    return ~crc >>> 0
}
