"""Toys for the tests of `bench speed`: models in two precisions, drafters, and a llama.cpp that answers at once."""

from __future__ import annotations

import copy
import sys
from types import ModuleType, SimpleNamespace

import torch
from toys import language_model, perturbed, random_network

from explorer.benchmarks.contestants import Prompt, Written
from explorer.engine.models import LanguageModel

TEXTS = ["abcabc", "hello", "zz", "quiz"]


def toy_target(precision: str = "float32", end_ids: tuple[int, ...] = ()) -> LanguageModel:
    """A small Llama, the same weights in every precision."""
    network = random_network("llama", 3)
    if precision == "bfloat16":
        network = copy.deepcopy(network).bfloat16()
    model = language_model(network, name="toy llama", end_ids=end_ids)
    model.precision = precision
    return model


def toy_assistant(precision: str = "float32") -> LanguageModel:
    """A model whose drafts are right some of the time."""
    network = perturbed(random_network("llama", 3), 0.3)
    model = language_model(network.bfloat16() if precision == "bfloat16" else network, name="toy assistant")
    model.precision = precision
    return model


def prompt_of(model: LanguageModel, text: str) -> Prompt:
    return Prompt(text, model.tokenizer(text)["input_ids"])


def written(tokens: int, seconds: float, ids: tuple[tuple[int, ...], ...] = (), rounds: int = 0) -> Written:
    return Written(tokens, seconds, ids, rounds)


class FakeServer:
    """What `xllamacpp.Server` does, as far as it is used; remembers what it was asked."""

    asked: list[dict]
    settings: SimpleNamespace

    def __init__(self, settings: SimpleNamespace) -> None:
        if "broken" in settings.model.path:
            raise RuntimeError("failed to load model\nand much more")
        FakeServer.settings, FakeServer.asked = settings, []

    def handle_completions(self, request: dict) -> dict:
        self.asked.append(request)
        if request["prompt"][0] == 63:
            return {"code": 500, "message": "no room"}
        return {"usage": {"completion_tokens": request["max_tokens"]}}


def fake_xllamacpp(monkeypatch) -> None:
    module = ModuleType("xllamacpp")
    module.CommonParams = lambda: SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace())
    module.Server = FakeServer
    monkeypatch.setitem(sys.modules, "xllamacpp", module)


class FakeLlama:
    """What `llama_cpp.Llama` does, as far as it is used."""

    made: FakeLlama

    def __init__(self, path: str, **settings: object) -> None:
        self.path, self.settings, self.calls = path, settings, []
        FakeLlama.made = self

    def reset(self) -> None:
        self.calls.append("reset")

    def create_completion(self, prompt: list[int], **settings: object) -> dict:
        self.calls.append((prompt, settings))
        return {"usage": {"completion_tokens": 3}}


def fake_llama_cpp(monkeypatch) -> None:
    without_llama_cpp(monkeypatch)
    module = ModuleType("llama_cpp")
    module.Llama = FakeLlama
    monkeypatch.setitem(sys.modules, "llama_cpp", module)


def without_llama_cpp(monkeypatch) -> None:
    """As if neither package were installed."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)


def threads() -> int:
    return torch.get_num_threads()
