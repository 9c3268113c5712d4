"""Records and pure functions: arrays in, records out; no model, no clock, no state."""
