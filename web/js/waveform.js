// Draws a sound's outline: the played part, the available part, and space for the rest.
import { FRAME } from "./sound.js"

const BAR = 2 // CSS pixels; the gap between bars is half of that

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./sound.js").Sound} sound
 * @param {number} position the sample that is playing
 */
export function drawWaveform(canvas, sound, position) {
    const scale = globalThis.devicePixelRatio || 1
    const [width, height] = [canvas.clientWidth, canvas.clientHeight]
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.width = Math.round(width * scale)
        canvas.height = Math.round(height * scale)
    }
    const pen = canvas.getContext("2d")
    if (!pen || !width) return
    pen.setTransform(scale, 0, 0, scale, 0, 0)
    pen.clearRect(0, 0, width, height)
    const style = getComputedStyle(canvas)
    const [heard, there] = ["--higgs-heard", "--higgs-there"].map((name) => style.getPropertyValue(name))
    const step = BAR * 1.5
    const frames = Math.max(1, sound.length / FRAME)
    for (let x = 0; x < width; x += step) {
        const first = Math.floor((x / width) * frames)
        const last = Math.max(first + 1, Math.floor(((x + step) / width) * frames))
        const isThere = first < sound.drawn
        const peak = isThere ? loudest(sound.outline, first, Math.min(last, sound.drawn)) / 255 : 0
        const bar = Math.max(1, Math.sqrt(peak) * height)
        const isHeard = first * FRAME < position
        pen.fillStyle = isHeard ? heard : there
        pen.globalAlpha = isThere ? 1 : 0.35
        pen.fillRect(x, (height - bar) / 2, BAR, bar)
    }
    pen.globalAlpha = 1
    pen.fillStyle = heard
    pen.fillRect(Math.min(width - 1, (position / FRAME / frames) * width), 0, 1, height)
}

/**
 * @param {Uint8Array} outline
 * @param {number} first
 * @param {number} stop
 */
function loudest(outline, first, stop) {
    let peak = 0
    for (let at = first; at < stop; ++at) if (outline[at] > peak) peak = outline[at]
    return peak
}
