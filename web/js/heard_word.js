// Finds the word that is heard at a time.

/**
 * Word and when it is heard, in seconds; see `word_rows` in engine/words/word.py. sentence: its number, from 1. doubt:
 * kind of doubt, a key of DOUBTS in engine/speech/verdict.py.
 * @typedef {{word: string, start: number, end: number, speaker: string, method: string, sentence?: number,
 *     doubt?: string}} Word
 */

const LINGER = 0.3 // seconds that a word stays marked, if the next one does not begin earlier

/**
 * Index of the word that is heard, -1 if none is. Nothing is marked after the last one: what follows has no times yet.
 * @param {Word[]} words in order of their starts
 * @param {number} seconds
 */
export function heardWord(words, seconds) {
    let [first, stop] = [0, words.length] // of those that may be the first to begin later
    while (first < stop) {
        const middle = (first + stop) >> 1
        if (words[middle].start > seconds) stop = middle
        else first = middle + 1
    }
    const at = first - 1
    if (at < 0) return -1
    const { end } = words[at]
    return seconds < end + (at + 1 < words.length ? LINGER : 0) ? at : -1
}
