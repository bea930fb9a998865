// Who is heard: one at a time on the page. Whoever begins pauses the others, or waits until they have ended.

/** @typedef {{play: () => void, pause: () => void}} Heard */

/** @type {Heard | null} */
let heard = null
/** @type {Heard[]} who plays once that one has ended */
const waiting = []

/** @param {Heard} one */
export function isHeard(one) {
    return heard === one
}

export function isSilent() {
    return !heard
}

/** Whoever was heard before is paused. @param {Heard} one */
export function begin(one) {
    if (heard !== one) heard?.pause()
    forget(one)
    heard = one
}

/** Somebody pauses. Who waits goes on waiting. @param {Heard} one */
export function leave(one) {
    if (heard === one) heard = null
}

/** Somebody has ended. @param {Heard} one */
export function end(one) {
    leave(one)
    if (!heard) waiting.shift()?.play()
}

/** @param {Heard} one plays once nobody is heard any more */
export function wait(one) {
    waiting.push(one)
}

/** @param {Heard} one waits no longer */
export function forget(one) {
    const place = waiting.indexOf(one)
    if (place >= 0) waiting.splice(place, 1)
}
