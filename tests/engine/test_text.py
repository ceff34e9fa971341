"""Tokens to text, one at a time: characters split over tokens, spacing, special tokens."""

import pytest
from toys import byte_tokenizer, fallback_tokenizer, letter_tokenizer

from explorer.engine.text import BROKEN, TextReader, TextState

TEXTS = [
    "plain words, then the end",
    "😀😁😂🤣 four",
    "日本語のテキスト, 中文",
    "é" * 12,
    "👩‍👩‍👧‍👦 family, 🇫🇷 flag",
    "a😀b日c",
    "<b>not bold</b> `code` ${7*6} <img src=x onerror=alert(1)>",
    " leading and trailing ",
    "line\n\n\tbreaks\u2028and separators",
    "العربية हिन्दी",
    "a real \ufffd replacement character",
]


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def pieces_of(reader, ids, state=None):
    state = state or TextState()
    pieces = []
    for token_id in ids:
        state, piece = reader.read(state, token_id)
        pieces.append(piece)
    return [*pieces, reader.rest(state)]


@pytest.mark.parametrize("make", [byte_tokenizer, fallback_tokenizer])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_add_up_to_the_text(text, make):
    """Also in a long run of SentencePiece bytes, where reading from the middle of a character breaks the whole run."""
    reader = TextReader(make())
    ids = ids_of(reader.tokenizer, text)
    pieces = pieces_of(reader, ids)
    assert "".join(pieces) == reader.decode(ids)
    assert "".join(pieces).strip() == text.strip()
    for piece in pieces:
        assert piece == "" or BROKEN not in piece or BROKEN in text


@pytest.mark.parametrize("make", [byte_tokenizer, fallback_tokenizer])
@pytest.mark.parametrize("size", [1, 3, 4, 9])
@pytest.mark.parametrize("text", TEXTS[:6])
def test_pieces_continue_a_prompt(text, size, make):
    """The prompt may end inside a character; the answer completes it."""
    reader = TextReader(make())
    ids = ids_of(reader.tokenizer, text + text)
    prompt, answer = ids[:size], ids[size:]
    whole = next(n for n in range(size, -1, -1) if not reader.decode(prompt[:n]).endswith(BROKEN))
    given = reader.decode(prompt[:whole]) if make is fallback_tokenizer else reader.decode(prompt).rstrip(BROKEN)
    assert given + "".join(pieces_of(reader, answer, reader.start(prompt))) == reader.decode(ids)


def test_a_character_is_given_whole_by_the_token_that_completes_it():
    reader = TextReader(byte_tokenizer())
    assert pieces_of(reader, ids_of(reader.tokenizer, "x😀日!")) == ["x", "", "", "", "😀", "", "", "日", "!", ""]


def test_tokens_that_end_one_character_and_begin_the_next():
    """The vocabulary has a token of the last byte of one emoji and the first of the next."""
    reader = TextReader(byte_tokenizer())
    ids = ids_of(reader.tokenizer, "😀" * 5)
    assert len(ids) == 16
    pieces = pieces_of(reader, ids)
    assert [piece for piece in pieces if piece] == ["😀"] * 5


def test_reading_ahead_leaves_the_state_alone():
    reader = TextReader(byte_tokenizer())
    emoji, other = ids_of(reader.tokenizer, "😀"), ids_of(reader.tokenizer, "é")
    state, _ = reader.read(TextState(), emoji[0])
    before = state
    ahead = pieces_of(reader, other, state)
    assert BROKEN in "".join(ahead)
    assert state == before
    assert pieces_of(reader, emoji[1:], state) == ["", "", "😀", ""]


def test_bytes_that_are_no_character_are_shown_as_such_and_lose_nothing():
    reader = TextReader(byte_tokenizer())
    byte = dict(zip(range(33, 127), ids_of(reader.tokenizer, "".join(map(chr, range(33, 127)))), strict=True))
    high = ids_of(reader.tokenizer, "😀")
    for ids in (
        [high[0]] * 9 + [byte[65]],
        [high[3]] * 40 + high + [byte[66]],
        [*high[:3], byte[67], *high],
        high[:2] * 30,
        [*high[:3], *high[:3]],
    ):
        pieces = pieces_of(reader, ids)
        assert "".join(pieces) == reader.decode(ids)
        assert len(pieces[-1]) <= 3


def test_the_state_stays_small():
    reader = TextReader(byte_tokenizer())
    for text in ("😀" * 50, "word " * 50):
        state = TextState()
        for token_id in ids_of(reader.tokenizer, text):
            state, _ = reader.read(state, token_id)
        assert len(state.context) + len(state.recent) < 200
    state = TextState()
    for _ in range(300):
        state, _ = reader.read(state, ids_of(reader.tokenizer, "😀")[0])
    assert len(state.context) + len(state.recent) < 60


def test_special_tokens_are_written_out():
    reader = TextReader(byte_tokenizer())
    ids = ids_of(reader.tokenizer, "a<|user|>b<|end|>")
    assert pieces_of(reader, ids) == ["a", "<|user|>", "b", "<|end|>", ""]
    assert {ids[1], ids[3]} <= reader.special_ids
    assert ids[0] not in reader.special_ids


def test_every_token_marked_special_counts_as_such():
    """Llama 3's <|eot_id|> is none of the named tokens (bos, eos, pad), only marked."""
    tokenizer = letter_tokenizer(8)
    tokenizer.add_tokens(["<plain>"])
    tokenizer.add_tokens(["<marked>"], special_tokens=True)
    reader = TextReader(tokenizer)
    assert tokenizer.convert_tokens_to_ids("<marked>") in reader.special_ids
    assert tokenizer.convert_tokens_to_ids("<plain>") not in reader.special_ids


def test_a_token_on_its_own():
    reader = TextReader(byte_tokenizer())
    space_t, emoji, end = (ids_of(reader.tokenizer, text) for text in (" t", "😀", "<|end|>"))
    assert reader.piece(space_t[0]) == " t"
    assert reader.piece(end[0]) == "<|end|>"
    assert [reader.piece(i) for i in emoji] == ["⟨F0⟩", "⟨9F⟩", "⟨98⟩", "⟨80⟩"]
    assert reader.piece(ids_of(reader.tokenizer, "<")[0]) == "<"


def test_a_token_on_its_own_with_byte_fallback():
    reader = TextReader(fallback_tokenizer())
    assert reader.piece(reader.tokenizer.convert_tokens_to_ids("▁b")) == " b"
    assert reader.piece(0xF0) == "⟨F0⟩"
    assert reader.piece(ord("x")) == "x"
