"""Speech over HTTP, as programs ask for it that know OpenAI's API. Nothing else imports aiohttp."""
