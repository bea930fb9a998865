"""Engines and the decoders behind them: one device, several, servers, a Ray cluster."""
