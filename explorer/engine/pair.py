"""A target with its drafter and ensemble head, and what a prompt must be for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.engine.models import LanguageModel
from explorer.errors import ModelPairError, SettingError
from explorer.heads.ensemble import EnsembleHead


@dataclass(slots=True)
class ModelPair:
    """A target, whatever drafts for it (None: autoregressive decoding only), and the dynamic rule's head, if any."""

    target: LanguageModel
    drafter: Any | None
    ensemble: EnsembleHead | None = None

    def describe(self, rank: int) -> dict[str, Any]:
        """JSON facts for the trace's first line."""
        target = {
            "name": self.target.name,
            "num_parameters": self.target.num_parameters,
            "fingerprint": self.target.fingerprint,
        }
        return {
            "target": target,
            "drafter": None if self.drafter is None else self.drafter.describe(rank),
            "ensemble": None if self.ensemble is None else self.ensemble.describe(),
            "precision": self.target.precision,
            "device": str(self.target.device),
        }


def check_vocab(target: LanguageModel, drafter: LanguageModel) -> None:
    """Raise `ModelPairError` unless both models read the same tokens under the same ids."""
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    if ours == theirs:
        return
    differing = sum(ours.get(token) != index for token, index in theirs.items()) + len(ours.keys() - theirs.keys())
    raise ModelPairError(
        f"{drafter.name} cannot draft for {target.name}: their tokenizers differ in {differing:,} of {len(ours):,} "
        "tokens. Choose a drafter of the same family, such as Qwen3-0.6B for Qwen3-8B."
    )


def encode_chat(target: LanguageModel, prompt: str | list[dict[str, str]]) -> list[int]:
    """Ids of a user's message, or of a conversation that ends with one, in the model's chat template if it has one.

    Args:
        target: Whose template and tokens are used.
        prompt: The message, or turns of `{"role", "content"}`.

    Raises:
        SettingError: The prompt is empty, or fills the context.
    """
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = "\n".join(turn["content"] for turn in turns)
    if not text.strip():
        raise SettingError("The prompt is empty. Type a question or a text to continue.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise SettingError("The prompt holds bytes that are no text. Give it in UTF-8.")
    tokenizer = target.tokenizer
    if tokenizer.chat_template:
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer(text)["input_ids"]
    check_prompt(target, ids)
    return [int(i) for i in ids]


def check_prompt(target: LanguageModel, ids: list[int]) -> None:
    """Raise `SettingError` unless at least one token can follow the prompt."""
    if not len(ids):
        raise SettingError("The prompt has no tokens. Give at least one.")
    if max(ids) >= min(target.vocab_size, target.num_rows):
        token = target.tokenizer.decode([max(ids)])
        raise SettingError(f"The prompt holds the token {token!r}, which {target.name} cannot read. Leave it out.")
    if len(ids) >= target.context_length:
        raise SettingError(
            f"The prompt has {len(ids):,} tokens; {target.name} reads at most {target.context_length - 1:,} and needs "
            "room for an answer. Shorten the prompt."
        )
