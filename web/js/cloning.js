// Clip of Higgs Voice: chosen, dropped or recorded, cut, heard, written down and saved. What is chosen is kept in the
// node's own widgets, so a saved workflow needs no page.
import { Clip } from "./clip.js"
import { ClipView, HEIGHT } from "./clip_view.js"
import { MOST } from "./clip_wave.js"
import { app } from "./comfy.js"
import { addElement, after, isLinked, setWidget, sourceOf, widgetOf } from "./graph.js"
import { Recorder } from "./recorder.js"
import { checksOf, partAddress, recordingOf } from "./server.js"
import { isDownload, Transcription, whisper } from "./transcript.js"
import { begin, end } from "./turns.js"
import { send } from "./upload.js"
import { openVoiceSaving } from "./voice_saving.js"
import { say, translatedLines } from "./words.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

const LINKED = "the audio input" // as in nodes/library/clip_files.py
const FRESH = 15 // seconds of a part of a recording that is too long
const WAIT = 300 // ms after a change before the part is checked again

class Cloning {
    #name = "" // of the shown recording
    /** @type {import("./server.js").Recording} */
    #recording = { seconds: 0, outline: [] }
    /** @type {Recorder | null} */
    #recorder = null
    /** @type {Clip | null} */
    #clip = null
    /** @type {Transcription | null} */
    #transcription = null
    #isOpening = false // the microphone
    #isClosed = false // the node is gone
    #mayDownload = false
    #timer = 0
    #asked = 0 // number of the last request

    /** @param {Node} node */
    constructor(node) {
        this.node = node
        this.view = new ClipView({
            onRecord: () => (this.#recorder ? this.#keepRecording() : this.#startRecording()),
            onPlay: () => this.#play(),
            onTranscribe: () => (this.#transcription ? this.#transcription.stop() : this.#transcribe()),
            onSave: () => openVoiceSaving(this.view.save, this.#part, this.#words, this.#tell),
            onPart: (start, stop) => this.#onPart(start, stop),
            onFile: (file) => this.#take(file),
        })
        addElement(node, "clip_editor", this.view.element, HEIGHT, 4)
        for (const widget of node.widgets ?? []) {
            const { callback, name } = widget
            if (!["clip", "start", "length", "transcript"].includes(name)) continue
            widget.callback = (value) => {
                callback?.call(widget, value)
                this.look()
            }
        }
        // Values and links of a saved node are set after it is created.
        after(node, "onConfigure", () => setTimeout(() => this.look()))
        after(node, "onConnectionsChange", () => setTimeout(() => this.look())) // once the link is there
        after(node, "onRemoved", () => this.#close())
        node.onDragOver = (event) => Boolean(event.dataTransfer?.types.includes("Files"))
        node.onDragDrop = (event) => {
            const file = event.dataTransfer?.files[0]
            if (file) this.#take(file)
            return Boolean(file)
        }
        this.view.element.addEventListener("pointerenter", () => this.look()) // Load Audio may have another file now
        this.look()
    }

    /** @param {string} name */
    #value(name) {
        return widgetOf(this.node, name)?.value ?? ""
    }

    /** Name of the recording in ComfyUI's input folder, "" if there is none that the page knows. */
    get #source() {
        const chosen = this.#value("clip")
        return chosen && chosen !== LINKED ? chosen : sourceOf(this.node, "audio")
    }

    /** Seconds of the part's ends. */
    get #ends() {
        const { seconds } = this.#recording
        const [start, length] = [Number(this.#value("start")), Number(this.#value("length"))]
        return [Math.min(start, seconds), length ? Math.min(start + length, seconds) : seconds]
    }

    /** @returns {import("./server.js").Part} */
    get #part() {
        return { clip: this.#name, start: Number(this.#value("start")), length: Number(this.#value("length")) }
    }

    /** Words of the clip, null if they come from another node. More clips have a line each. */
    get #words() {
        if (isLinked(this.node, "transcript")) return null
        const words = String(this.#value("transcript"))
        return isLinked(this.node, "more_clips.audio_2") ? words.split("\n")[0] : words
    }

    /** What Whisper listens to, and what its words would replace. */
    get #given() {
        return JSON.stringify([this.#source, this.#part, this.#value("transcript")])
    }

    /** @param {[text: string, isProblem?: boolean]} said */
    #tell = (...said) => this.view.tell(...said)

    /** Shows the node's clip, if something has changed. */
    look() {
        if (this.#recorder) return
        const name = this.#source
        if (name === this.#name) return this.#show()
        this.#name = name
        this.#clip?.stop()
        this.#load()
    }

    async #load() {
        this.#recording = { seconds: 0, outline: [] }
        this.view.clear()
        this.#show()
        const name = this.#name
        if (!name) return
        try {
            const recording = await recordingOf(name)
            if (name !== this.#name) return
            this.#recording = recording
            this.#show()
        } catch (error) {
            if (name === this.#name) this.#tellError(error)
        }
    }

    #show() {
        this.#showState()
        const { seconds, outline } = this.#recording
        const [start, stop] = this.#ends
        this.view.wave.show(outline, seconds, start, stop)
        clearTimeout(this.#timer)
        if (seconds) this.#timer = window.setTimeout(() => this.#check(), WAIT)
        else if (!this.#name && isLinked(this.node, "audio")) {
            this.#tell(say("The clip comes from another node. It is checked when the workflow runs."))
        } else if (!this.#name) this.#tell(say("Choose, drop or record a clip: 5 to 15 seconds of one speaker."))
    }

    #showState() {
        const [start, stop] = this.#ends
        this.view.showState({
            isRecording: Boolean(this.#recorder),
            isPlaying: Boolean(this.#clip?.isPlaying),
            isTranscribing: Boolean(this.#transcription),
            hasPart: this.#recording.seconds > 0,
            isFixed: isLinked(this.node, "transcript"),
            seconds: this.#recorder ? this.#recorder.seconds : Math.max(0, stop - start),
        })
    }

    async #check() {
        const number = ++this.#asked
        const words = this.#words
        try {
            const { checks, misfit } = await checksOf(this.#part, words ?? "")
            if (number !== this.#asked || this.#recorder || this.#transcription) return
            this.view.showChecks(checks, misfit || (words === "" ? say("Now enter its words into transcript.") : ""))
        } catch (error) {
            if (number === this.#asked) this.#tellError(error)
        }
    }

    /** @param {unknown} error */
    #tellError(error) {
        this.#tell(translatedLines(error instanceof Error ? error.message : String(error)), true)
    }

    /**
     * @param {number} start
     * @param {number} stop
     */
    #onPart(start, stop) {
        const { seconds } = this.#recording
        const tenth = (/** @type {number} */ value) => Math.round(10 * value) / 10
        this.#clip?.stop()
        setWidget(this.node, "start", tenth(start))
        setWidget(this.node, "length", stop < seconds || seconds - start > MOST ? tenth(stop - start) : 0)
    }

    #play() {
        if (this.#clip?.isPlaying) return this.#clip.stop()
        const clip = (this.#clip = new Clip(partAddress(this.#part)))
        clip.addEventListener("change", () => this.#showState())
        clip.addEventListener("error", () => this.#tell(say("The clip cannot be played."), true))
        clip.play()
    }

    /** Uploads a file and uses it. @param {File} file */
    async #take(file) {
        this.#tell(say("uploading {name}...", { name: file.name }))
        try {
            const name = await send(file)
            await app.refreshComboInNodes() // values outside the list are refused
            this.#name = "" // the same name may hold another recording now
            setWidget(this.node, "start", 0)
            setWidget(this.node, "length", 0)
            setWidget(this.node, "clip", name)
            this.look()
            const { seconds } = await recordingOf(name)
            if (seconds > MOST && name === this.#name) setWidget(this.node, "length", FRESH)
        } catch (error) {
            const reason = error instanceof Error ? error.message : String(error)
            this.#tell(say("upload failed: {reason}", { reason: translatedLines(reason) }), true)
        }
    }

    async #startRecording() {
        if (this.#isOpening) return
        this.#isOpening = true
        this.#clip?.stop()
        try {
            const recorder = await Recorder.open()
            if (this.#isClosed) return void recorder.stop()
            this.#recorder = recorder
            begin(this.#turn)
            recorder.addEventListener("level", () => {
                this.view.showLevel(recorder.level)
                this.view.wave.showLive(recorder.peaks)
                this.#showState()
            })
            recorder.addEventListener("full", () => this.#keepRecording())
            this.view.clear()
            this.#tell(say("Speak 5 to 15 seconds, as the voice should sound."))
            this.#showState()
        } catch (error) {
            this.#tellError(error)
        } finally {
            this.#isOpening = false
        }
    }

    /** Another sound that begins ends the recording. */
    #turn = { play: () => {}, pause: () => this.#keepRecording() }

    #keepRecording() {
        const recorder = this.#recorder
        if (!recorder) return
        this.#recorder = null
        end(this.#turn)
        const file = recorder.stop()
        if (recorder.blocks.length) this.#take(file)
        this.#showState()
    }

    async #transcribe() {
        try {
            const choice = await whisper()
            if (isDownload(choice) && !this.#mayDownload) {
                this.#mayDownload = true
                this.#tell(say("Whisper is missing. Press Transcribe again to download it (1.0 GB)."))
                return
            }
            const [part, given] = [this.#part, this.#given]
            this.#transcription = new Transcription()
            this.#showState()
            this.#tell(say("Whisper is listening, as soon as ComfyUI's queue lets it..."))
            const words = (await this.#transcription.words(part, choice)).trim()
            if (this.#given !== given) {
                throw new Error(say("The clip or its transcript has changed. Press Transcribe again."))
            }
            this.#transcription = null
            const others = this.#value("transcript").split("\n").slice(1) // of more clips
            setWidget(
                this.node,
                "transcript",
                isLinked(this.node, "more_clips.audio_2") ? [words, ...others].join("\n") : words,
            )
            this.#show()
        } catch (error) {
            this.#transcription = null
            this.#showState()
            this.#tellError(error)
        }
    }

    #close() {
        this.#isClosed = true
        clearTimeout(this.#timer)
        this.#clip?.stop()
        this.#transcription?.stop()
        this.#keepRecording()
    }
}

app.registerExtension({
    name: "HiggsTTS.Cloning",
    nodeCreated(node) {
        if ((node.comfyClass ?? node.type) === "HiggsTTSVoice") new Cloning(node)
    },
})
