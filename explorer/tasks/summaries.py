"""News in short: the reward is ROUGE-2 F1 against the reference summary, by the `rouge-score` package.

Articles are cut to `ARTICLE_CHARACTERS`: news tells the main thing first, and a small machine reads slowly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from explorer.errors import SettingError
from explorer.tasks.base import Example, Task, by_hash, user
from explorer.tasks.records import need_data, read_jsonl

ARTICLE_CHARACTERS = 4000
TEST_SHARE = 0.2
# Longer completions are cut before they are scored; an answer of 128 tokens is far shorter.
_MOST_CHARACTERS = 20_000


class Summaries(Task):
    """Reward: F1 of the two-word sequences that summary and reference share, words stemmed."""

    is_graded = True
    article: ClassVar[str]
    summary: ClassVar[str]
    instruction: ClassVar[str]

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:  # noqa: ARG002
        self._scorer = make_scorer()
        fields = {self.article: str, self.summary: str}
        records = read_jsonl(need_data(data, self.name, fields), fields)
        keyed = []
        for record in records:
            prompt = [user(f"{self.instruction}\n\n{shorten(record[self.article])}")]
            keyed.append((record[self.article], Example(prompt, record[self.summary])))
        return by_hash(keyed, TEST_SHARE)

    def reward(self, completion: str, example: Example) -> float:
        """ROUGE-2 F1, in [0, 1]; 0 for fewer than two words.

        Source: Lin (2004), "ROUGE: A Package for Automatic Evaluation of Summaries", section 2.
        """
        return rouge2(self._scorer, completion[:_MOST_CHARACTERS], example.reference)


class CnnDm(Summaries):
    """CNN/DailyMail: three or so highlights."""

    name = "cnndm"
    max_new_tokens = 128
    article = "article"
    summary = "highlights"
    instruction = "Summarize this article in three sentences."


class Xsum(Summaries):
    """XSum: one sentence."""

    name = "xsum"
    max_new_tokens = 64
    article = "document"
    summary = "summary"
    instruction = "Summarize this article in one sentence."


def make_scorer() -> Any:
    """The scorer of the `rouge-score` package, for `rouge2`.

    Raises:
        SettingError: The package is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise SettingError(
            "Summaries are scored by a package that is not installed. Run: pip install rouge-score==0.1.2"
        ) from error
    return RougeScorer(["rouge2"], use_stemmer=True)


def rouge2(scorer: Any, completion: str, reference: str) -> float:
    """ROUGE-2 F1 of an answer, in [0, 1]."""
    return float(scorer.score(reference, completion)["rouge2"].fmeasure)


def shorten(article: str) -> str:
    """The article up to the last whole sentence (or else word) within `ARTICLE_CHARACTERS`."""
    text = article.strip()
    if len(text) <= ARTICLE_CHARACTERS:
        return text
    head = text[:ARTICLE_CHARACTERS]
    end = head.rfind(". ")
    return head[: end + 1] if end > 0 else head.rsplit(maxsplit=1)[0]
