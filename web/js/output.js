// What a player plays through: an AudioWorklet where the page may have one, scheduled buffers elsewhere.
import { ScheduledOutput } from "./scheduled_output.js"
import { WorkletOutput } from "./worklet_output.js"

/**
 * onOver: all that was pushed has been heard, and what follows waits for `go`.
 * @typedef {{onProgress: () => void, onOver: () => void}} Listener
 */

/** @returns {WorkletOutput | ScheduledOutput} */
export function makeOutput() {
    // ComfyUI at an address of the local network is plain http, where browsers have no AudioWorklet: Chromium lets one
    // see its node's class there all the same.
    return "audioWorklet" in BaseAudioContext.prototype ? new WorkletOutput() : new ScheduledOutput()
}
