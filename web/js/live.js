// Players on the nodes that speak. Each shows the latest run of its node.
import { api, app } from "./comfy.js"
import { addElement, after, graphId, graphOf, speakerOf } from "./graph.js"
import { Player } from "./player.js"
import { HEIGHT, PlayerView } from "./player_view.js"
import { listen, runs } from "./server.js"
import { hasRetakes, hasRetakesOf, keepRetakes, problemOfRetakes, sentenceOf, takeAgain } from "./retakes.js"
import { hasSeed, keepSeed, problemOfSeed } from "./seed.js"
import { Sound } from "./sound.js"
import { openTakeList } from "./take_list.js"
import { inWords, RATE } from "./times.js"
import { say } from "./words.js"

const SETTING = "HiggsTTS.PlayWhileSpeaking"
const KEPT = 32 // players, as many as the server keeps sounds

/**
 * graph: the node's, or where it was found; over: speech has ended; wasKept: the run was kept by its seed.
 * @typedef {{player: Player, graph: string | undefined, over: Promise<void>, wasKept: boolean}} Entry
 */

/** @type {Entry[]} the oldest first */
const players = []
/** @type {WeakMap<import("../../tests/web/comfy").Node, PlayerView>} */
const views = new WeakMap()
let isOn = true // the setting
let told = "" // last setting sent to the server
/** @type {Set<string | undefined>} graphs whose runs were requested */
const asked = new Set()

async function tellServer() {
    const client = api.clientId
    if (!client || told === `${client} ${isOn}`) return
    told = `${client} ${isOn}`
    await listen(client, isOn)
}

/**
 * @param {import("./server.js").Run} run
 * @returns {Entry}
 */
function add(run) {
    const known = players.find(({ player }) => player.sound.run.id === run.id)
    if (known) return known
    const player = new Player(new Sound(run))
    const entry = { player, graph: graphOf(run.workflow), over: player.sound.follow(), wasKept: false }
    players.push(entry)
    if (players.length > KEPT) players.shift()
    return entry
}

/** A player's node, if the open graph has it. @param {Entry} entry */
function nodeOf({ player, graph }) {
    return graph && graph !== graphId() ? undefined : speakerOf(player.sound.run.node)
}

/** Shows players on the open graph's nodes. */
function attach() {
    players.forEach(attachOne)
}

/** @param {Entry} entry */
function attachOne(entry) {
    const node = nodeOf(entry)
    if (!node) return
    entry.graph = graphId()
    show(node, entry.player)
}

/** Stops sound whose node was removed, or whose workflow is no longer open. */
function silenceLost() {
    for (const entry of players) if (!nodeOf(entry)) entry.player.stop()
}

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {Player} player
 */
function show(node, player) {
    let view = views.get(node)
    if (!view) {
        view = new PlayerView(() => showTakes(node), hasRetakes(node) ? retakesOf(node) : null)
        views.set(node, view)
        addElement(node, "player", view.element, HEIGHT)
        after(node, "onRemoved", () => queueMicrotask(silenceLost)) // undo recreates all nodes
    }
    const before = view.player
    if (before === player) return
    if (!before?.isActive && before?.mode !== "waiting") return view.show(player)
    if (player.mode !== "waiting") return
    const onTurn = () => {
        if (player.mode === "waiting") return
        player.removeEventListener("change", onTurn)
        view.show(player)
    }
    player.addEventListener("change", onTurn)
}

/**
 * True if a run's node ran more than once in its prompt, for a list of inputs.
 * @param {import("./server.js").Run} run
 */
function isOfList({ id, node, prompt }) {
    const others = players.map(({ player }) => player.sound.run).filter((run) => run.id !== id)
    return others.some((run) => run.node === node && run.prompt === prompt)
}

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @returns {import("./player_view.js").Retakes}
 */
function retakesOf(node) {
    return {
        problem: (run) =>
            isOfList(run)
                ? say("Retakes would apply to the whole list. Connect a single item of it.")
                : problemOfRetakes(node, run),
        onAgain: (run, sentence) => takeAgain(node, run, sentence),
    }
}

/**
 * Opens the list of a node's latest runs, newest first.
 * @param {import("../../tests/web/comfy").Node} node
 */
function showTakes(node) {
    const view = views.get(node)
    if (!view) return
    const mine = players.filter((entry) => nodeOf(entry) === node)
    const takes = mine.map((entry) => takeOf(entry, node, view)).reverse()
    openTakeList(view.element, say("Latest runs of this node"), takes)
}

/**
 * @param {Entry} entry
 * @param {import("../../tests/web/comfy").Node} node
 * @param {PlayerView} view
 * @returns {import("./take_list.js").Take}
 */
function takeOf(entry, node, view) {
    const { player } = entry
    const { sound } = player
    const { seed, said, retakes } = sound.run
    const parts = [...(seed === null ? [] : [say("seed {seed}", { seed })]), ...(retakes ? [`↻ ${retakes}`] : [])]
    return {
        name: () => [...parts, inWords(sound.samples / RATE, 1)].join(" · "),
        said,
        isPlaying: () => player.isActive,
        isShown: () => view.player === player,
        isOwn: () => seed !== null && hasSeed(node, seed) && hasRetakesOf(node, sound.run),
        wasKept: () => entry.wasKept,
        problem: seed === null ? say("This run cannot be repeated from its seed alone.") : problemOfSeed(node),
        play() {
            view.show(player)
            if (player.isActive) player.pause()
            else player.play()
        },
        keep() {
            if (seed === null) return
            keepSeed(node, seed)
            keepRetakes(node, sound.run)
            entry.wasKept = true
        },
        changes: [player],
    }
}

/** @param {CustomEvent} event a node starts to speak */
function onRun(event) {
    const entry = add(event.detail)
    const node = nodeOf(entry)
    if (!node) return // can be played once its workflow is open
    const sentence = sentenceOf(node, entry.player.sound.run)
    if (sentence) entry.over.then(() => playSentence(entry.player, sentence))
    else entry.player.playInTurn()
    attachOne(entry)
}

/**
 * Plays from a sentence that was taken again.
 * @param {Player} player
 * @param {number} number
 */
function playSentence(player, number) {
    const first = player.sound.words.find(({ sentence }) => sentence === number)
    if (first && player.sound.state === "complete") player.playFrom(first.start * RATE)
}

/** @param {CustomEvent} event a prompt ended early, perhaps at a later node */
function onStop(event) {
    for (const { player, over } of players) {
        const { sound } = player
        if (sound.run.prompt !== event.detail?.prompt_id || sound.state !== "speaking") continue
        over.then(() => sound.state === "complete" || player.stop())
    }
}

async function onConnect() {
    await tellServer()
    asked.clear()
    await onGraph()
}

/** Shows the open graph's players, after another graph was opened: this page's own, and those it can take over. */
async function onGraph() {
    attach()
    const graph = graphOf(graphId())
    if (!api.clientId || asked.has(graph)) return
    const told = await runs(api.clientId, graph)
    asked.add(graph)
    told.forEach(add)
    const ids = told.map(({ id }) => id)
    players.sort((one, other) => ids.indexOf(one.player.sound.run.id) - ids.indexOf(other.player.sound.run.id))
    attach()
}

app.registerExtension({
    name: "HiggsTTS.Live",
    settings: [
        {
            id: SETTING,
            name: "Play while it speaks",
            type: "boolean",
            defaultValue: true,
            tooltip:
                "Adds a player to Higgs nodes that starts with the first words. If off, no audio is sent to this page.",
            category: ["Higgs TTS", "Player", "Play while it speaks"],
            onChange(value) {
                isOn = value
                tellServer()
            },
        },
    ],
    async setup() {
        api.addEventListener("higgs_tts.run", onRun)
        api.addEventListener("execution_interrupted", onStop)
        api.addEventListener("execution_error", onStop)
        api.addEventListener("reconnected", () => {
            told = ""
            onConnect()
        })
        if (api.clientId) await onConnect()
        else api.addEventListener("status", () => told || onConnect())
    },
    afterConfigureGraph() {
        onGraph().catch(console.warn) // not awaited
    },
})
