// Formats lengths of sound for people.
import { say } from "./words.js"

export const RATE = 24000 // Hz

/** Minutes and seconds to a tenth. @param {number} samples */
export function clock(samples) {
    const tenths = Math.floor((10 * Math.max(0, samples)) / RATE + 1e-6)
    return `${Math.floor(tenths / 600)}:${((tenths % 600) / 10).toFixed(1).padStart(4, "0")}`
}

/** Minutes and whole seconds. @param {number} seconds */
export function minutes(seconds) {
    const whole = Math.floor(seconds + 1e-6)
    return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`
}

/**
 * Formats seconds, from 60 on as minutes and seconds.
 * @param {number} seconds
 * @param {number} [digits] of a second, below 60
 */
export function inWords(seconds, digits = 0) {
    return seconds < 60 ? say("{seconds} s", { seconds: seconds.toFixed(digits) }) : minutes(Math.round(seconds))
}
