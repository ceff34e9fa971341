"""The cache with a length per row: what a pass writes, what it sees, what a rollback leaves."""

import pytest
import torch
from toys import KINDS, VOCAB, language_model, random_network

from explorer.engine.cache import RowCache, visible


def written(cache, starts, width, fill):
    """Write `fill` + position into every slot of a pass; returns what the pass may look at."""
    starts = torch.tensor(starts)
    positions = cache.at(starts, width)
    states = (fill + positions).float()[:, None, :, None].expand(-1, 2, -1, 3).contiguous()
    keys, values = cache.update(states, -states, 0)
    assert torch.equal(keys, -values)
    return keys[:, 0, :, 0]


def test_rows_write_at_their_own_positions():
    cache = RowCache(num_layers=1, capacity=8)
    assert written(cache, [0, 0], 3, 10).tolist() == [[10, 11, 12]] * 2
    seen = written(cache, [1, 3], 2, 20)
    assert seen[0, :3].tolist() == [10, 21, 22]
    assert seen[1].tolist() == [10, 11, 12, 23, 24]
    assert seen.shape[1] == cache.end == 5


def test_equal_starts_take_the_short_way_and_write_the_same():
    """A slice where rows agree, an index where they do not: both must do what the other does."""
    for starts in ([2, 2], [2, 1]):
        cache = RowCache(num_layers=1, capacity=8)
        written(cache, [0, 0], 5, 10)
        seen = written(cache, starts, 2, 20)
        for row, start in enumerate(starts):
            assert seen[row, start : start + 2].tolist() == [20 + start, 21 + start]
            assert seen[row, :start].tolist() == [10 + i for i in range(start)]


def test_unwritten_slots_are_finite():
    cache = RowCache(num_layers=1, capacity=8)
    assert written(cache, [0, 4], 2, 10)[0, 2:].tolist() == [0] * 4


def test_selecting_keeps_rows_in_order():
    cache = RowCache(num_layers=2, capacity=4)
    written(cache, [0, 1, 2], 1, 10)
    cache.select(torch.tensor([2, 0]))
    assert cache.layers[0].keys[:, 0, :, 0].tolist() == [[0, 0, 12, 0], [10, 0, 0, 0]]
    assert not cache.layers[1].is_initialized


@pytest.mark.parametrize(("starts", "width"), [([7], 2), ([0, 6], 3), ([-1], 1)])
def test_a_pass_that_does_not_fit_is_refused(starts, width):
    with pytest.raises(ValueError, match="do not fit a cache of 8"):
        RowCache(num_layers=1, capacity=8).at(torch.tensor(starts), width)


@pytest.mark.parametrize("window", [None, 1, 3, 20])
def test_visible_slots_by_brute_force(window):
    positions = torch.tensor([[0, 1, 2], [4, 5, 6]])
    mask = visible(positions, 7, window)
    assert mask.shape == (2, 1, 3, 7)
    for b in range(2):
        for t in range(3):
            here = int(positions[b, t])
            expected = [slot <= here and (window is None or here - slot < window) for slot in range(7)]
            assert mask[b, 0, t].tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_rolled_back_cache_reads_like_a_fresh_text(kind):
    """Prefill, drafts, rollback by unequal amounts, new tokens over the old: logits are those of plain passes."""
    model = language_model(random_network(kind))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (3, 40), generator=generator)
    lengths = torch.tensor([1, 9, 20])
    with torch.inference_mode():
        cache = model.new_cache(64)
        model.forward(
            torch.randint(VOCAB, (3, 20), generator=generator), cache, torch.zeros(3, dtype=torch.long), keep=1
        )
        model.forward(ids[:, :20], cache, torch.zeros(3, dtype=torch.long), keep=1)
        drafts = torch.randint(VOCAB, (3, 6), generator=generator)
        model.forward(drafts, cache, lengths, keep=6)  # all thrown away
        new = torch.stack([ids[b, length : length + 4] for b, length in enumerate(lengths.tolist())])
        found = model.forward(new, cache, lengths, keep=3).logits
        for b, length in enumerate(lengths.tolist()):
            plain = model.model(ids[b : b + 1, : length + 4]).logits[0, -3:]
            torch.testing.assert_close(found[b], plain, atol=2e-4, rtol=1e-4)
