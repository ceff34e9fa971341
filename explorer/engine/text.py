"""Token ids to text, one token at a time, also for tokens that may still be thrown away.

A byte-level token can hold part of a character. The text of such a token is empty, and the token that completes the
character carries it whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

BROKEN = "\ufffd"
# An unfinished UTF-8 character has at most three bytes, each of which can read as a broken character of its own.
_MAX_BROKEN = 3
# Text that never completes (bytes of no character) is not carried along for ever.
_MAX_RECENT = 24
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


@dataclass(frozen=True, slots=True)
class TextState:
    """Where a text stands: a value, so that drafts can be read ahead without changing it.

    Attributes:
        context: What the next ids are read after, () at the start of a text: many tokenizers drop a space there.
        recent: Ids read since the text was last complete.
        num_given: Characters of the text of both that were given out.
    """

    context: tuple[int, ...] = ()
    recent: tuple[int, ...] = ()
    num_given: int = 0


class TextReader:
    """Reads tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.special_ids = frozenset(tokenizer.all_special_ids) | {i for i, token in added if token.special}
        self.piece = lru_cache(maxsize=65536)(self._piece)

    def decode(self, ids: tuple[int, ...] | list[int]) -> str:
        """The text of some ids, special tokens written out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def start(self, prompt_ids: list[int] | tuple[int, ...]) -> TextState:
        """The state after a prompt; a character that the prompt left unfinished is the answer's to complete."""
        size = 8
        ids = tuple(prompt_ids[-size:])
        while self.decode(ids).startswith(BROKEN) and size < len(prompt_ids):
            size *= 2
            ids = tuple(prompt_ids[-size:])
        while ids and self.decode(ids).endswith(BROKEN):
            ids = ids[:-1]
        unfinished = tuple(prompt_ids[-size:])[len(ids) :]
        text = self.decode(self._anchor + unfinished)
        return TextState(self._anchor, unfinished, len(text) - _num_held(text))

    def read(self, state: TextState, token_id: int) -> tuple[TextState, str]:
        """The state after one more token, and the text this token completes."""
        recent = (*state.recent, token_id)
        text = self.decode(state.context + recent)[state.num_given :]
        held = _num_held(text)
        piece = text[: len(text) - held]
        if piece and not held:
            # Any token in the middle of a text will do as context, but for the one just read: it may be the last of a
            # run of SentencePiece bytes, all of which read as broken while the next character is incomplete.
            return TextState(self._anchor, (), len(self.decode(self._anchor))), piece
        if len(recent) > _MAX_RECENT:
            recent = recent[-_MAX_RECENT // 2 :]
            return TextState(self._anchor, recent, len(self.decode(self._anchor + recent)) - held), piece
        return TextState(state.context, recent, state.num_given + len(piece)), piece

    def rest(self, state: TextState) -> str:
        """Text still held back when the answer ends."""
        return self.decode(state.context + state.recent)[state.num_given :] if state.recent else ""

    def _piece(self, token_id: int) -> str:
        """How one token reads on its own, leading space kept; part of a character as its bytes, ⟨F0 9F⟩."""
        anchor = self._anchor
        text = self.decode((*anchor, token_id))[len(self.decode(anchor)) :]
        if BROKEN in text:
            raw = self.tokenizer.convert_ids_to_tokens(token_id)
            is_bytes = all(character in _BYTES for character in raw) and not raw.startswith("<0x")
            return f"⟨{' '.join(f'{_BYTES[c]:02X}' for c in raw) if is_bytes else raw.strip('<>').removeprefix('0x')}⟩"
        return text

    @cached_property
    def _anchor(self) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode("a", add_special_tokens=False)[-1:])


def _num_held(text: str) -> int:
    """Characters at the end of `text` that may be the start of one that is not complete yet."""
    return min(len(text) - len(text.rstrip(BROKEN)), _MAX_BROKEN)
