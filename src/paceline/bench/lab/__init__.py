"""How speculation fails, on purpose, and what the governor does about it."""
