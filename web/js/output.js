// Output of a player: an AudioWorklet if the page may use one, else scheduled buffers.
import { ScheduledOutput } from "./scheduled_output.js"
import { WorkletOutput } from "./worklet_output.js"

/**
 * onOver: everything pushed has been heard, and later samples wait for `go`.
 * @typedef {{onProgress: () => void, onOver: () => void}} Listener
 */

/** @returns {WorkletOutput | ScheduledOutput} */
export function makeOutput() {
    // Over plain HTTP on a local network, browsers have no AudioWorklet. Chromium still shows the class of its node
    // there.
    return "audioWorklet" in BaseAudioContext.prototype ? new WorkletOutput() : new ScheduledOutput()
}
