// Status line of a player: what it waits for, and the progress of speech.
import { inWords, minutes, RATE } from "./times.js"

const LONGEST_PIECE = 5 // seconds; streamed speech comes in shorter pieces

/** @param {import("./player.js").Player} player */
export function whatItSays(player) {
    const { sound, mode } = player
    const said = []
    if (player.isBlocked) said.push("Press play: browsers block sound until you click.")
    else if (mode === "waiting") said.push("Plays next.")
    else if (sound.state === "speaking") said.push(whatItWaitsFor(player), progress(sound))
    else if (sound.state === "gone") said.push("No longer available. Run the node again.")
    else if (sound.state === "stopped") said.push(sound.problem || "Stopped.")
    else if (sound.run.seed !== null) said.push(`Seed ${sound.run.seed}.`)
    if (isBetweenParts(player)) said.push("Each part plays once it is complete and has been checked.")
    if (sound.restarts.length) said.push(`Spoken again: ${sound.restarts.join(", then ")}.`)
    return said.filter(Boolean).join(" ")
}

/** @param {import("./player.js").Player} player */
function isBetweenParts({ sound, mode }) {
    const isWaiting = sound.state === "speaking" && mode === "buffering" && sound.samples > 0
    return isWaiting && sound.waited >= LONGEST_PIECE
}

/** @param {import("./player.js").Player} player */
function whatItWaitsFor(player) {
    const { sound, mode } = player
    if (mode !== "buffering" || !sound.samples) return ""
    if (isBetweenParts(player)) return "Waiting for the next part:"
    if (sound.pace > 0 && sound.pace < 1) return "Slower than real time: buffering."
    return player.isSlow ? "Buffering." : ""
}

/** @param {import("./sound.js").Sound} sound */
function progress(sound) {
    const done = Math.max(sound.done, sound.samples / RATE)
    if (!done) return "Starting..."
    const left = sound.left >= 1 ? `, ${inWords(sound.left)} left` : ""
    return `${minutes(done)} of about ${minutes(sound.length / RATE)} spoken${left}.`
}
