// Lets one sound play at a time. A new one pauses the others, or waits until they end.

/** @typedef {{play: () => void, pause: () => void}} Heard */

/** @type {Heard | null} */
let heard = null
/** @type {Heard[]} waiting for the current one to end */
const waiting = []

/** @param {Heard} one */
export function isHeard(one) {
    return heard === one
}

export function isSilent() {
    return !heard
}

/** Makes this sound the current one, pausing the one before. @param {Heard} one */
export function begin(one) {
    if (heard !== one) heard?.pause()
    forget(one)
    heard = one
}

/** Ends a paused sound's turn. Waiting sounds keep waiting. @param {Heard} one */
export function leave(one) {
    if (heard === one) heard = null
}

/** Ends a finished sound's turn, and plays the next waiting one. @param {Heard} one */
export function end(one) {
    leave(one)
    if (!heard) waiting.shift()?.play()
}

/** @param {Heard} one plays once nothing else does */
export function wait(one) {
    waiting.push(one)
}

/** @param {Heard} one stops waiting */
export function forget(one) {
    const place = waiting.indexOf(one)
    if (place >= 0) waiting.splice(place, 1)
}
