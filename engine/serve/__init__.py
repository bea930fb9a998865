"""Speech over HTTP, compatible with OpenAI's API. The only room that imports aiohttp."""
