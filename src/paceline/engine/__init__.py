"""Continuous batching around one step: schedule, plan, draft, trim, forward, walk, commit, observe."""
