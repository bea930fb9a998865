// Lets one sound play at a time. A new one pauses the others, or waits until they end. Sounds of the page itself, such as
// those of Preview Audio, take turns too.

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

/** Ends the turn of a sound of the page. @param {Event} event */
function follow({ type, target }) {
    if (!(target instanceof HTMLMediaElement) || heard !== target) return
    const mayGoOn = type === "pause" && target.isConnected && !target.ended
    if (mayGoOn) leave(target)
    else end(target)
}

document.addEventListener(
    "play",
    ({ target }) => {
        if (!(target instanceof HTMLMediaElement) || target.muted) return
        begin(target)
        // Here, not on the document: a player that is taken off the page stops as well. "emptied": another file is set.
        for (const type of ["pause", "emptied"]) target.addEventListener(type, follow)
    },
    true, // media events do not bubble
)

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
