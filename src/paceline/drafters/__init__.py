"""Who guesses: the Drafter protocol, the drafters, and their registry."""
