"""Small things to decode with: models whose laws are written in a table, random transformers models, tokenizers.

Nothing here needs the network or weights. Everything goes through `LanguageModel`, as in the app.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, lru_cache
from types import SimpleNamespace

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Generator, Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen3Config,
)

from explorer.engine.cache import RowCache
from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.drafters import Draft, ModelDrafter, NgramDrafter, Sequences
from explorer.engine.events import RoundEvent
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair
from explorer.engine.sampling import Sampler

VOCAB = 64
CONTEXT = 64
WINDOW = 7

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


# Tokenizers.


def letter_tokenizer(size: int = VOCAB) -> PreTrainedTokenizerFast:
    """Token i is the character chr(97 + i); no special tokens, no end of text."""
    vocab = {chr(97 + i): i for i in range(size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (emoji are four tokens), three merges that cross characters, four special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    for first, second in MERGES:
        vocab[first + second] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", clean_up_tokenization_spaces=False
    )
    wrapped.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


# In byte-level spelling: " t", "he", and the last byte of one emoji of U+1F600.. with the first byte of the next.
MERGES = (("Ġ", "t"), ("h", "e"), ("Ģ", "ð"))


def fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Like SentencePiece with byte fallback (Llama 2, Gemma): words start with a mark, rare characters are bytes."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in ("▁", "a", "b", "▁a", "▁b"):
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b")], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


# Models whose law is a table.


class _TableConfig(SimpleNamespace):
    def get_text_config(self) -> _TableConfig:
        return self


class TableNet(nn.Module):
    """The law of the next token depends on the last two, the earlier of which is read back from the cache.

    So a wrong row, a stale slot or a wrong position changes the law.
    """

    def __init__(self, table: Tensor, context_length: int, end_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.rows = nn.Embedding.from_pretrained(torch.zeros(table.shape[-1], 1))
        self.table = table
        self.config = _TableConfig(
            num_hidden_layers=1,
            hidden_size=1,
            max_position_embeddings=context_length,
            eos_token_id=list(end_ids),
            _attn_implementation="sdpa",
        )

    def get_input_embeddings(self) -> nn.Module:
        return self.rows

    def get_output_embeddings(self) -> nn.Module:
        return self.rows

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: RowCache,
        logits_to_keep: int,
        **_: object,
    ) -> SimpleNamespace:
        keys = input_ids[:, None, :, None].float()
        seen, _values = cache.update(keys, keys, 0)  # (B, 1, slots, 1)
        before = (position_ids - 1).clamp(min=0)
        earlier = seen[:, 0, :, 0].gather(1, before.clamp(max=seen.shape[2] - 1)).long()
        assert attention_mask[:, 0].gather(2, before.unsqueeze(2).clamp(max=seen.shape[2] - 1)).all()
        earlier = torch.where(position_ids == 0, 0, earlier)
        logits = self.table[earlier, input_ids][:, -logits_to_keep:]
        states = (input_ids.unsqueeze(2).float(),) * 2
        return SimpleNamespace(logits=logits, hidden_states=states)


def table_model(
    table: Tensor, *, context_length: int = 10_000, end_ids: tuple[int, ...] = (), name: str = "table"
) -> LanguageModel:
    """A model with logits table[second last token, last token]; (V, V, V)."""
    size = table.shape[0]
    return LanguageModel(name, TableNet(table, context_length, end_ids), letter_tokenizer(size), "float32")


def random_table(size: int, seed: int, scale: float = 1.0) -> Tensor:
    """(V, V, V) logits."""
    return scale * torch.randn(size, size, size, generator=Generator().manual_seed(seed))


def table_pair(size: int = 3, seed: int = 0, *, mix: float = 0.5, **options: object) -> ModelPair:
    """Two related tables; `mix` is the drafter's share of the target's logits."""
    target, other = random_table(size, seed), random_table(size, seed + 1000)
    drafter = table_model(mix * target + (1 - mix) * other, name="table drafter")
    return ModelPair(table_model(target, **options), ModelDrafter(drafter))


# Random transformers models.


def _config(kind: str, vocab: int, context: int) -> object:
    common = {"vocab_size": vocab, "max_position_embeddings": context, "bos_token_id": None, "eos_token_id": None}
    small = common | {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    mixed = small | {
        "num_hidden_layers": 3,
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
    }
    experts = small | {"num_experts_per_tok": 2}
    match kind:
        case "llama":
            return LlamaConfig(**small)
        # Whole vectors in every layer, as compiled code needs, and no whole group; or whole blocks of 64, as four bits
        # need in bitsandbytes on processors with bfloat16 instructions.
        case "wide_llama" | "even_llama":
            return LlamaConfig(**small | {"hidden_size": 64, "intermediate_size": 112 if kind == "wide_llama" else 128})
        case "mistral":  # every layer slides
            return MistralConfig(**small, sliding_window=WINDOW)
        case "qwen3":  # sliding and full layers
            return Qwen3Config(**mixed, use_sliding_window=True)
        case "gemma3":  # the same, with a rotary base of its own for each, and softcapped attention scale
            return Gemma3TextConfig(**mixed, query_pre_attn_scalar=8)
        case "mixtral":
            return MixtralConfig(**experts, num_local_experts=4, sliding_window=None)
        case "qwen2_moe":
            return Qwen2MoeConfig(
                **experts, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=24
            )
        case "gpt2":  # learned positions
            return GPT2Config(vocab_size=vocab, n_positions=context, n_embd=32, n_layer=2, n_head=4, **_NO_SPECIALS)
        case "opt":  # learned positions with an offset
            return OPTConfig(
                **common, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                word_embed_proj_dim=32, pad_token_id=None, tie_word_embeddings=False,
            )  # fmt: skip
    raise ValueError(kind)


_NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None}
KINDS = ("llama", "gpt2", "opt", "mistral", "qwen3", "gemma3", "mixtral", "qwen2_moe")


def randomise(network: nn.Module, seed: int, spread: float = 0.4) -> None:
    """Fill every weight from a seed, wide enough that laws are peaked and positions matter."""
    generator = Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        is_norm = weight.dim() == 1 and name.endswith("weight")
        weight.data = 1 + 0.1 * noise if is_norm else spread * noise


@lru_cache(maxsize=64)
def random_network(kind: str, seed: int = 0, vocab: int = VOCAB, context: int = CONTEXT) -> nn.Module:
    """A tiny transformers model with float32 weights drawn from `seed`. Shared: do not change it."""
    network = AutoModelForCausalLM.from_config(_config(kind, vocab, context), dtype=torch.float32).eval()
    randomise(network, seed)
    network.generation_config.eos_token_id = None
    return network


def perturbed(network: nn.Module, amount: float, seed: int = 0) -> nn.Module:
    """A copy whose weights are off by `amount` of their spread: a drafter that is right some of the time."""
    twin = copy.deepcopy(network)
    generator = Generator().manual_seed(seed)
    for weight in twin.parameters():
        spread = weight.data.float().std() if weight.numel() > 1 else 1.0
        weight.data += amount * spread * torch.randn(weight.shape, generator=generator, dtype=torch.float32)
    return twin


def language_model(
    network: nn.Module, tokenizer: object = None, *, name: str = "toy", end_ids: tuple[int, ...] = ()
) -> LanguageModel:
    """The network behind the app's interface; `end_ids` replace what its config says."""
    tokenizer = tokenizer or letter_tokenizer(VOCAB)
    model = LanguageModel(name, network, tokenizer, "float32")
    model.end_ids = frozenset(end_ids)
    return model


# How far each kind's drafter is from its target, so that about half of its drafts are accepted at temperature 0.
AMOUNT = {
    "llama": 0.3,
    "gpt2": 0.6,
    "opt": 0.5,
    "mistral": 0.4,
    "qwen3": 0.6,
    "gemma3": 0.6,
    "mixtral": 0.3,
    "qwen2_moe": 0.3,
}


@lru_cache(maxsize=64)
def _toy_networks(kind: str, seed: int, context: int, padding: int) -> tuple[nn.Module, nn.Module]:
    target = random_network(kind, seed, VOCAB + padding, context)
    if not padding:
        return target, perturbed(target, AMOUNT[kind])
    # Padded vocabularies, unequal between the two; the surplus rows are loud, so that seeing them is noticed.
    drafter = random_network(kind, seed, VOCAB + 2 * padding, context)
    return target, drafter


def toy_pair(
    kind: str = "llama",
    drafter: str = "model",
    *,
    seed: int = 0,
    context: int = CONTEXT,
    end_ids: tuple[int, ...] = (),
    padding: int = 0,
) -> ModelPair:
    """A random target and a drafter: "model" (a perturbed copy), "ngram" or "none"."""
    target, other = _toy_networks(kind, seed, context, padding)
    target = language_model(target, name=f"toy {kind}", end_ids=end_ids)
    drafters = {
        "model": lambda: ModelDrafter(language_model(other, name=f"toy {kind} drafter", end_ids=end_ids)),
        "ngram": NgramDrafter,
        "none": lambda: None,
    }
    return ModelPair(target, drafters[drafter]())


DRAFTERS = ("model", "ngram")


# Running and reading.


def prompts_of(lengths: tuple[int, ...], seed: int = 0, size: int = VOCAB) -> list[list[int]]:
    """Random prompts of these lengths; token id 0 is among them."""
    generator = Generator().manual_seed(seed)
    prompts = [torch.randint(size, (length,), generator=generator).tolist() for length in lengths]
    prompts[0][0] = 0
    return prompts


def texts_of(events: list[RoundEvent], rows: int) -> list[list[int]]:
    """The emitted ids of each row."""
    answers: list[list[int]] = [[] for _ in range(rows)]
    for event in events:
        answers[event.row] += event.emitted_ids
    return answers


def run(pair: ModelPair, prompts: list[list[int]], *, details: bool = False, **settings: object) -> list[RoundEvent]:
    """All events of a decode with these settings."""
    return list(decode(pair, prompts, DecodeConfig(**settings), details=details))


def answers(pair: ModelPair, prompts: list[list[int]], **settings: object) -> list[list[int]]:
    """The emitted ids of each row of a decode with these settings."""
    return texts_of(run(pair, prompts, **settings), len(prompts))


def generated(model: LanguageModel, prompt: list[int], max_new_tokens: int, **options: object) -> list[int]:
    """What transformers' own greedy `generate` writes after a prompt."""
    ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        output = model.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens, **options
        )
    return output[0, len(prompt) :].tolist()


# Drafters with a script.


class ScriptDrafter:
    """Proposes, at position i of row b, the token texts[b][i]: drafts exactly where and what a test wants."""

    kind = "script"
    name = "script"
    features: tuple[int, ...] = ()
    rank_choices: tuple[int, ...] = ()

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> ScriptSession:
        return ScriptSession(self.texts)

    def describe(self, rank: int) -> dict[str, object]:
        return {"kind": self.kind, "name": self.name, "rank": None, "num_parameters": 0}


class ScriptSession:
    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts

    def select(self, rows: Tensor) -> None:
        self.texts = [self.texts[row] for row in rows.tolist()]

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        found = [
            text[length : length + draft_length]
            for text, length in zip(self.texts, sequences.lengths.tolist(), strict=True)
        ]
        counts = torch.tensor([len(ids) for ids in found])
        return Draft(ids=torch.tensor([ids + [0] * (draft_length - len(ids)) for ids in found]), lengths=counts)


# Laws, computed plainly.


def plain_law(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """The law of one row of logits, token by token: another way to compute what `Sampler` does."""
    law = (logits.double() / temperature).softmax(-1).tolist()
    order = sorted(range(len(law)), key=lambda i: -law[i])
    if top_k:
        order = order[:top_k]
    total, mass, kept = sum(law[i] for i in order), 0.0, []
    for index in order:
        if mass >= top_p * total:
            break
        kept.append(index)
        mass += law[index]
    return [law[i] / mass if i in kept else 0.0 for i in range(len(law))]


Law = dict[tuple[int, ...], float]
LawOf = Callable[[tuple[int, ...]], list[float]]
DraftLawOf = Callable[[tuple[int, ...], tuple[int, ...], int], list[float] | None]


def table_laws(model: LanguageModel, **sampling: float) -> LawOf:
    """Prefix -> law of the next token, read off a table model's table."""
    table = model.model.table

    def law(prefix: tuple[int, ...]) -> list[float]:
        earlier = prefix[-2] if len(prefix) > 1 else 0
        return plain_law(table[earlier, prefix[-1]], **sampling)

    return law


class AnswerLaw:
    """Law of the first tokens of speculative decoding, by recursion over every draft, verdict and replacement.

    Args:
        target: Prefix -> p.
        draft: (prefix at the round's start, prefix, K) -> q, or None where nothing is drafted.
        accept: The rule: (p, q) of a token -> its chance to pass.
    """

    def __init__(self, target: LawOf, draft: DraftLawOf, accept: Callable[[float, float], float]) -> None:
        self.target, self.draft, self.accept = target, draft, accept

    def of(self, prompt: tuple[int, ...], draft_length: int, num_tokens: int) -> Law:
        """The law of the first `num_tokens` tokens after the prompt, K = `draft_length`."""
        self.law: Law = {}
        self.first, self.draft_length, self.num_tokens = len(prompt), draft_length, num_tokens
        self._round(prompt, 1.0)
        return self.law

    def _round(self, prefix: tuple[int, ...], mass: float) -> None:
        emitted = prefix[self.first :]
        if len(emitted) == self.num_tokens:
            self.law[emitted] = self.law.get(emitted, 0.0) + mass
        elif mass:
            self._test(prefix, prefix, min(self.draft_length, self.num_tokens - len(emitted) - 1), mass)

    def _test(self, begin: tuple[int, ...], prefix: tuple[int, ...], left: int, mass: float) -> None:
        p = self.target(prefix)
        q = self.draft(begin, prefix, self.draft_length) if left else None
        if q is None:
            self._follow(prefix, p, mass)
            return
        passed = [b * self.accept(a, b) if b else 0.0 for a, b in zip(p, q, strict=True)]
        for token, prob in enumerate(passed):
            if prob:
                self._test(begin, (*prefix, token), left - 1, mass * prob)
        excess = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        if 1 - sum(passed) > 1e-12:
            self._follow(prefix, [part / sum(excess) for part in excess], mass * (1 - sum(passed)))

    def _follow(self, prefix: tuple[int, ...], probs: list[float], mass: float) -> None:
        for token, prob in enumerate(probs):
            self._round((*prefix, token), mass * prob)


def accept_of(rule: str, amount: float = 1.0) -> Callable[[float, float], float]:
    """The chance to pass by a rule's formula; `amount` is w or l."""
    if rule == "lossy":
        return lambda p, q: min(1.0, p / (amount * q))
    return lambda p, q: min(1.0, 1 - amount + amount * p / q)
