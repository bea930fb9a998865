// ComfyUI's own modules, and the types of what we use of them. The only file that imports them.
// @ts-ignore: ComfyUI serves it
import { api as theirApi } from "../../../scripts/api.js"
// @ts-ignore: ComfyUI serves it
import { app as theirApp } from "../../../scripts/app.js"

/** @type {import("../../tests/web/comfy").App} */
export const app = theirApp
/** @type {import("../../tests/web/comfy").Api} */
export const api = theirApi
