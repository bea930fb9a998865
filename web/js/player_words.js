// Status line of a player: what it waits for, and the progress of speech.
import { minutes, RATE } from "./times.js"
import { listed, say, translated } from "./words.js"

const LONGEST_PIECE = 5 // seconds; streamed speech comes in shorter pieces

/** @param {import("./player.js").Player} player */
export function whatItSays(player) {
    const { sound, mode } = player
    const said = []
    if (player.isBlocked) said.push(say("Press play: browsers block sound until you click."))
    else if (mode === "waiting") said.push(say("Plays next."))
    else if (sound.state === "speaking") said.push(whatItWaitsFor(player), progress(sound))
    else if (sound.state === "gone") said.push(say("No longer available. Run the node again."))
    else if (sound.state === "stopped") said.push(sound.problem || say("Stopped."))
    else {
        if (sound.run.seed !== null) said.push(say("Seed {seed}.", { seed: sound.run.seed }))
        said.push(...(sound.run.doubts ?? []))
    }
    if (isBetweenParts(player)) said.push(say("Each part plays once it is complete and has been checked."))
    if (sound.restarts.length)
        said.push(say("Spoken again: {reasons}.", { reasons: reasons(sound).join(say(", then ")) }))
    return said.filter(Boolean).join(" ")
}

/** @param {import("./sound.js").Sound} sound */
function reasons({ restarts }) {
    return restarts.map((reason) => listed(reason.split(" and ").map(translated)))
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
    if (isBetweenParts(player)) return say("Waiting for the next part:")
    if (sound.speed > 0 && sound.speed < 1) return say("Slower than real time: buffering.")
    return player.isSlow ? say("Buffering.") : ""
}

/** @param {import("./sound.js").Sound} sound */
function progress(sound) {
    const done = Math.max(sound.done, sound.samples / RATE)
    if (!done) return say("Starting...")
    const values = { done: minutes(done), whole: minutes(sound.length / RATE), left: minutes(Math.ceil(sound.left)) }
    if (sound.left < 1) return say("{done} of about {whole} spoken.", values)
    return say("{done} of about {whole}, ready in {left}.", values)
}
