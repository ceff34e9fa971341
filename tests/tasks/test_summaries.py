"""ROUGE-2 against a case worked by hand, and what is said where its package is missing."""

import sys

import pytest

from explorer.errors import SettingError
from explorer.tasks import load_task
from explorer.tasks.summaries import ARTICLE_CHARACTERS, make_scorer, rouge2, shorten


def records(count=30):
    return [{"article": f"Story {i}. It was told.", "highlights": "the cat sat on the mat"} for i in range(count)]


@pytest.fixture
def scorer():
    pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install rouge-score==0.1.2")
    return make_scorer()


@pytest.mark.parametrize("name", ["cnndm", "xsum"])
def test_a_missing_package_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(SettingError, match="not installed. Run: pip install rouge-score==0.1.2"):
        load_task(name)


def test_rouge2_by_hand(scorer):
    # Bigrams of the reference: the-cat cat-sat sat-on on-the the-mat; of the answer: the-cat cat-sat sat-under
    # under-the the-mat. Three are shared: precision 3/5, recall 3/5.
    assert rouge2(scorer, "The cat sat under the mat.", "the cat sat on the mat") == pytest.approx(0.6)
    # Bigrams: the-cat cat-sat. Precision 2/2, recall 2/5, F1 = 2 * 1 * .4 / 1.4.
    assert rouge2(scorer, "The cat sat", "the cat sat on the mat") == pytest.approx(0.8 / 1.4)
    # A bigram counts as often as the reference has it: 1/3 and 1/1.
    assert rouge2(scorer, "the cat the cat", "the cat") == pytest.approx(0.5)
    # Stems: cats -> cat, sitting -> sit.
    assert rouge2(scorer, "cats sitting", "cat sit") == 1.0
    for nothing in ("", "cat", "mat the on sat", "\ud800", "猫"):
        assert rouge2(scorer, nothing, "the cat sat on the mat") == 0.0


def test_task(scorer, write_jsonl):
    task = load_task("cnndm", write_jsonl(records()))
    train, test = task.examples("train"), task.examples("test")
    assert len(train) + len(test) == 30
    assert not {one.prompt[0]["content"] for one in train} & {one.prompt[0]["content"] for one in test}
    assert train[0].prompt[0]["content"].startswith("Summarize this article in three sentences.\n\nStory ")
    assert task.reward("The cat sat on the mat.", train[0]) == 1.0
    assert task.is_correct(0.5) is None
    with pytest.raises(SettingError, match="xsum needs data: .* fields document, summary"):
        load_task("xsum")
    with pytest.raises(SettingError, match="line 1, has no document"):
        load_task("xsum", write_jsonl(records()))


def test_articles_are_cut_at_a_sentence():
    assert shorten("Short. ") == "Short."
    article = "One two three four. " * 400
    assert shorten(article).endswith("four.")
    assert ARTICLE_CHARACTERS - 20 <= len(shorten(article)) <= ARTICLE_CHARACTERS
    assert shorten("word " * 2000).endswith("word")
    assert len(shorten("x" * 9000)) == ARTICLE_CHARACTERS


@pytest.mark.parametrize(("name", "count"), [("cnndm", 200), ("xsum", 300)])
def test_the_real_files(scorer, data_file, name, count):
    task = load_task(name, data_file(f"{name}_sample.jsonl"))
    everything = task.examples("train") + task.examples("test")
    assert count - 5 <= len(everything) <= count
    for one in everything[:10]:
        assert task.reward(one.reference, one) == 1.0
        assert 0.0 <= task.reward(one.prompt[0]["content"], one) < 0.5
