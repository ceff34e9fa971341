"""Rows of llama.cpp on the same GGUF file, through xllamacpp or llama-cpp-python if one of them is installed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from explorer.benchmarks.contestants import SAMPLERS, Contestant, Prompt, Write, Written
from explorer.engine import download, weights
from explorer.engine.loading import DEFAULT_TARGET
from explorer.engine.sampling import Sampler
from explorer.errors import ModelPairError, SettingError

NAME = "llama.cpp"


class AbsentError(Exception):
    """Why there are no such rows; the text is the reason, with what to do."""


def gguf_contestants(pair: str, gguf: str, num_positions: int) -> list[Contestant]:
    """A row for every way to draw tokens, one answer at a time.

    Args:
        pair: The target's name.
        gguf: File asked for, or "".
        num_positions: Tokens of the longest prompt and its answer.

    Raises:
        AbsentError: There is no such file, or neither package.
        SettingError: The file that was asked for is not there.
        ModelPairError: llama.cpp cannot read it.
    """
    return list(_rows(find_file(pair, gguf), num_positions))


def find_file(pair: str, gguf: str) -> Path:
    """The GGUF file with the target's weights; raises like `gguf_contestants`."""
    if gguf:
        if not Path(gguf).is_file():
            raise SettingError(f"gguf is {gguf!r}, and no such file is there. Give a GGUF file of the pair's target.")
        return Path(gguf)
    if pair == DEFAULT_TARGET:
        found = [weights.default_cache() / download.GGUF_NAME, download.in_hub_cache()]
        paths = [path for path in found if path is not None and path.is_file()]
        if not paths:
            raise AbsentError(f"{download.GGUF_NAME} is in no cache. Fetch it: python -m explorer pull")
        return paths[0]
    if Path(pair).suffix == ".gguf" and Path(pair).is_file():
        return Path(pair)
    raise AbsentError(f"{pair} is no GGUF file. Give one of the same weights with --gguf")


def _rows(path: Path, num_positions: int) -> Iterator[Contestant]:
    package, module = _installed()
    try:
        model = module(path, num_positions)
    except Exception as error:  # whatever the package raises: its errors share no base class
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelPairError(f"{package} cannot read {path}: {first} Give another file with --gguf.") from error
    for sampler in SAMPLERS:
        yield Contestant(f"{NAME} ({package})", path.suffix[1:], sampler, _writer(model, sampler))


def _installed() -> tuple[str, Any]:
    """Name of a package that runs llama.cpp, and its adapter."""
    for name, adapter in (("xllamacpp", _XLlama), ("llama_cpp", _LlamaCpp)):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return name, adapter
    raise AbsentError("neither xllamacpp nor llama_cpp can be imported. Install one: pip install xllamacpp")


def _writer(model: Any, sampler: Sampler) -> Write:
    def write(prompts: Sequence[Prompt], seed: int, tokens: int) -> Written:
        (prompt,) = prompts
        # Spelled out, because both packages cut the law by default: 40 best tokens, nucleus, smallest probability.
        settings = {
            "max_tokens": tokens,
            "temperature": sampler.temperature,
            "top_k": 0,
            "top_p": sampler.top_p,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "seed": seed % 2**31,
        }
        began = time.perf_counter()
        answer = model.answer(prompt.ids, settings)
        seconds = time.perf_counter() - began
        try:
            return Written(int(answer["usage"]["completion_tokens"]), seconds)
        except (KeyError, TypeError) as error:
            raise ModelPairError(f"llama.cpp gave no answer: {str(answer)[:200]} Give another --gguf.") from error

    return write


class _XLlama:
    """xllamacpp: llama.cpp's own server, inside this process."""

    def __init__(self, path: Path, num_positions: int) -> None:
        import xllamacpp

        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx = num_positions
        settings.n_parallel = 1
        settings.cpuparams.n_threads = torch.get_num_threads()
        settings.verbosity = -1
        self.server = xllamacpp.Server(settings)

    def answer(self, ids: list[int], settings: dict[str, Any]) -> Any:
        """The completion of a prompt; nothing is kept of the one before."""
        return self.server.handle_completions({"prompt": ids, "cache_prompt": False, **settings})


class _LlamaCpp:
    """llama-cpp-python."""

    def __init__(self, path: Path, num_positions: int) -> None:
        import llama_cpp

        threads = torch.get_num_threads()
        self.model = llama_cpp.Llama(
            str(path), n_ctx=num_positions, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def answer(self, ids: list[int], settings: dict[str, Any]) -> Any:
        """The completion of a prompt; nothing is kept of the one before."""
        self.model.reset()
        return self.model.create_completion(ids, **settings)
