// The page's one audio context, at the speech's own rate, and its volume.
import { RATE } from "./times.js"

const VOLUME = "HiggsTTS.volume" // in the browser's storage
const REST = 1000 // ms of silence after which the context is suspended: silence takes power too
const PATIENCE = 1000 // ms that a browser may take to begin

/** @type {AudioContext | undefined} */
let context
/** @type {GainNode | undefined} */
let gain
let resting = 0 // timer

function storedVolume() {
    const stored = parseFloat(localStorage.getItem(VOLUME) ?? "")
    return stored >= 0 && stored <= 1 ? stored : 1
}

export let volume = storedVolume()
export const volumeChanges = new EventTarget() // dispatches "change"

/** The context, and the node that all sound goes into. Made on first use: browsers warn about one made earlier. */
export function speaker() {
    if (!context || !gain) {
        context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" })
        gain = new GainNode(context, { gain: volume })
        gain.connect(context.destination)
    }
    return { context, gain }
}

/** @param {number} value 0 to 1 */
export function setVolume(value) {
    volume = value
    localStorage.setItem(VOLUME, String(value))
    if (gain) gain.gain.value = value
    volumeChanges.dispatchEvent(new Event("change"))
}

/** Samples between the context's clock and the loudspeaker, as far as the browser knows. */
export function latency() {
    return context?.outputLatency ? context.outputLatency * RATE : 0
}

/** Suspends the context soon, unless sound begins before that. */
export function rest() {
    clearTimeout(resting)
    resting = window.setTimeout(() => context?.suspend(), REST)
}

/** True if sound is audible now. Browsers allow it once the user has clicked or typed. */
export async function isAllowed() {
    const { context } = speaker()
    clearTimeout(resting)
    // The promise of `resume` stays pending until then.
    await Promise.race([context.resume(), new Promise((resolve) => setTimeout(resolve, PATIENCE))])
    return context.state === "running"
}
