"""What a request's grammar leaves no choice about: the brackets and names of JSON, for the most part."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.tree import EMPTY, Draft
from paceline.drafters.base import Seen, SequenceView


class Forced:
    """Drafts tokens that are the only ones allowed, which the target is bound to take."""

    name = "grammar"

    def begin(self, seq: SequenceView) -> None:
        pass  # the mask knows where the text stands

    def propose(self, seqs: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft]:
        return [self._forced(seq, limit) for seq, limit in zip(seqs, limits, strict=True)]

    def observe(self, seq: SequenceView, seen: Seen) -> None:
        pass

    def end(self, seq: SequenceView) -> None:
        pass

    def _forced(self, seq: SequenceView, limit: int) -> Draft:
        if (grammar := seq.shaping.grammar) is None:
            return EMPTY
        return Draft.chain(grammar.forced(seq.tokens[seq.prompt_len :], limit), self.name)
