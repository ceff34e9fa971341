"""The arithmetic of `bench speed`, by hand."""

import pytest
import torch
from speed_toys import written

from explorer.benchmarks.contestants import GREEDY, NUCLEUS, PLAIN, Contestant
from explorer.benchmarks.speed_rows import agreement, cells_of, ratio, report_of, speed_figures, tokens_per_round


def cells(*repetitions):
    """Repetitions of groups of (tokens, seconds)."""
    return torch.tensor(repetitions, dtype=torch.float64)


def contestant(name, *, precision="float32", sampler=GREEDY, batch=1, is_hf=False):
    return Contestant(name, precision, sampler, lambda *_: None, batch, is_hf)


def test_speed_is_the_median_of_the_repetitions_by_hand():
    """30 tokens in 3 s, in 2 s and in 6 s: 10, 15 and 5 tokens per second."""
    found = speed_figures(cells([(10, 1.0), (20, 2.0)], [(10, 1.5), (20, 0.5)], [(10, 3.0), (20, 3.0)]))
    assert found == {"tokens_per_s": 10.0, "tokens_per_s_low": 5.0, "tokens_per_s_high": 15.0}


def test_a_ratio_by_hand():
    """Of repetitions 2, 3 and 9 times as fast the median is 3; a bootstrap of one group draws nothing else."""
    mine = cells([(10, 1.0)], [(30, 1.0)], [(90, 1.0)])
    theirs = cells([(10, 2.0)], [(10, 1.0)], [(10, 1.0)])
    assert ratio(mine, theirs) == (3.0, 2.0, 9.0)


def test_a_ratio_of_sums_over_prompts_by_hand():
    """20 + 40 tokens in 1 + 1 s against 20 + 20 in 1 + 1 s is 1.5; alone, the prompts give 1 and 2."""
    mine, theirs = cells([(20, 1.0), (40, 1.0)]), cells([(20, 1.0), (20, 1.0)])
    assert ratio(mine, theirs) == (1.5, 1.0, 2.0)


def test_the_interval_is_paired():
    """Prompts of very different speed and a machine that slows down: what both share is no noise."""
    generator = torch.Generator().manual_seed(0)
    theirs = torch.stack([torch.full((3, 9), 10.0), torch.rand(3, 9, generator=generator) + 0.1], dim=-1).double()
    theirs[..., 1] *= torch.tensor([[1.0], [2.0], [5.0]])
    mine = theirs.clone()
    mine[..., 1] /= 2
    assert ratio(mine, theirs) == (2.0, 2.0, 2.0)


def test_an_interval_covers_its_ratio_and_shrinks_with_more_prompts():
    generator = torch.Generator().manual_seed(1)

    def some(groups):
        seconds = torch.rand(3, groups, generator=generator) + 0.5
        return torch.stack([torch.full((3, groups), 10.0), seconds], dim=-1).double()

    widths = []
    for groups in (4, 200):
        middle, low, high = ratio(some(groups), some(groups))
        assert low < middle < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_the_interval_is_the_same_every_time():
    mine, theirs = cells([(9, 1.0), (5, 2.0)], [(7, 1.5), (6, 1.0)]), cells([(4, 1.0), (5, 1.0)], [(3, 1.0), (9, 1.0)])
    assert ratio(mine, theirs) == ratio(mine, theirs)


def test_tokens_per_round_by_hand():
    assert tokens_per_round([[written(10, 1.0, rounds=5), written(5, 1.0, rounds=1)]]) == 2.5
    assert tokens_per_round([[written(10, 1.0)]]) is None


def test_cells_are_repetitions_of_groups():
    found = cells_of([[written(1, 2.0), written(3, 4.0)], [written(5, 6.0), written(7, 8.0)]])
    assert found.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


@pytest.fixture
def results():
    """HF in two precisions, the second twice as fast, and ours; two prompts, once."""
    slow, fast = contestant("HF generate", is_hf=True), contestant("HF generate", precision="bfloat16", is_hf=True)
    ours, float16 = contestant("ours"), contestant("ours exact", precision="float16")
    attached = contestant("ours exact, page attached", precision="float16")
    return {
        slow: [[written(4, 2.0, ((1, 2, 3, 4),)), written(4, 2.0, ((5, 6, 7, 8),))]],
        fast: [[written(4, 1.0, ((1, 2, 9, 9),)), written(4, 1.0, ((5, 6, 7, 8),))]],
        ours: [[written(4, 0.5, ((1, 2, 3, 4),), 4), written(4, 0.5, ((5, 6, 7, 8),), 4)]],
        float16: [[written(4, 0.25, ((1, 2, 3, 4),), 2), written(4, 0.25, ((5, 6, 7, 0),), 2)]],
        attached: [[written(4, 0.5, ((1, 2, 3, 4),), 2), written(4, 0.5, ((5, 6, 7, 0),), 2)]],
    }


def test_a_report_by_hand(results):
    report = report_of(results)
    found = [(row["name"], row["tokens_per_s"], row["ratio_to_hf"], row["hf_precision"]) for row in report["rows"]]
    assert found == [
        ("HF generate", 2.0, 0.5, "bfloat16"),
        ("HF generate", 4.0, 1.0, "bfloat16"),
        ("ours", 8.0, 2.0, "bfloat16"),
        ("ours exact", 16.0, 4.0, "bfloat16"),
        ("ours exact, page attached", 8.0, 2.0, "bfloat16"),
    ]
    assert [row["num_tokens"] for row in report["rows"]] == [8] * 5
    assert [row["tokens_per_round"] for row in report["rows"]] == [None, None, 1.0, 2.0, 2.0]
    cost = {"name": "ours exact", "temperature": 0.0, "ratio": 2.0, "low": 2.0, "high": 2.0}
    assert report["attached_cost"] == [cost]


def test_text_is_compared_with_hfs_in_the_same_precision_or_the_first(results):
    found = [tuple(agreement(row, results).values()) for row in results]
    assert found == [(2, "float32"), (2, "bfloat16"), (2, "float32"), (1, "float32"), (1, "float32")]


def test_sampled_text_and_text_that_is_not_told_are_not_compared():
    hf, ours = contestant("HF generate", sampler=PLAIN, is_hf=True), contestant("ours", sampler=PLAIN)
    greedy, silent = contestant("HF generate", is_hf=True), contestant("llama.cpp", precision="gguf")
    told = [[written(2, 1.0, ((1, 2),))]]
    results = {hf: told, ours: told, greedy: told, silent: [[written(2, 1.0)]]}
    assert agreement(ours, results) == agreement(silent, results) == {"agreed": None, "agreed_with": None}


def test_a_row_is_compared_at_its_own_batch_temperature_and_nucleus():
    rows = {
        contestant("HF generate", sampler=sampler, batch=batch, is_hf=True): [[written(number, 1.0)]]
        for number, (sampler, batch) in enumerate([(GREEDY, 1), (PLAIN, 1), (NUCLEUS, 1), (PLAIN, 4)], start=1)
    }
    rows |= {
        contestant("ours", sampler=sampler, batch=batch): [[written(12, 1.0)]]
        for sampler, batch in [(GREEDY, 1), (PLAIN, 1), (NUCLEUS, 1), (PLAIN, 4)]
    }
    assert [row["ratio_to_hf"] for row in report_of(rows)["rows"][4:]] == [12, 6, 4, 3]
