"""The public endpoint: a call gives the page's trace, says the page's sentences, and takes turns with everybody."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from ui.driving import until
from ui.fake_pair import FakeBackend, fake_trace

from explorer.engine.config import DecodeConfig
from explorer.engine.trace import read_trace
from explorer.errors import SettingError
from explorer.ui import api
from explorer.ui.app import build_app, launch_options
from explorer.ui.runs import TURNS


@pytest.fixture(scope="module")
def served():
    backend = FakeBackend(round_s=0.005)
    app = build_app(backend)
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield backend, address
    app.close()


@pytest.fixture(scope="module")
def client(served):
    return Client(served[1], verbose=False)


def test_decode_is_the_only_public_endpoint(client):
    found = client.view_api(return_format="dict")
    assert list(found["named_endpoints"]) == ["/decode"]
    assert found["unnamed_endpoints"] == {}
    names = [parameter["parameter_name"] for parameter in found["named_endpoints"]["/decode"]["parameters"]]
    assert names[:5] == ["prompt", "rule", "weight", "lenience", "drafter"]
    assert names[5:] == ["rank", "draft_length", "temperature", "seed", "max_new_tokens"]


def test_a_call_gives_the_trace(client):
    config = DecodeConfig(rule="static", target_weight=0.4, draft_length=5, temperature=0.5, seed=7, rank=72)
    trace = client.predict("Why?", "static", weight=0.4, draft_length=5, temperature=0.5, seed=7, rank=72)
    assert trace == read_trace("".join(fake_trace("Why?", config)))
    assert trace[-1]["kind"] == "end"
    assert client.predict("hard words")[0]["rule"] == "exact"


def test_the_dynamic_rule_takes_the_first_head(client):
    assert client.predict("dynamic", rule="dynamic", temperature=1)[0]["rule"] == "dynamic"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": " "}, "The prompt is empty. Type a question or pick an example, then press Run."),
        ({"prompt": 7}, "prompt is 7; it must be text."),
        ({"rule": "magic"}, "rule is 'magic'; it must be one of "),
        ({"temperature": 3}, r"temperature is 3; it must be in \[0.0, 2.0\] \(0 is greedy\)."),
        ({"temperature": None}, "Temperature is empty; type a number"),
        ({"weight": "x"}, r"target_weight is 'x'; it must be a number"),
        ({"draft_length": 2.5}, r"draft_length is 2.5; it must be a whole number"),
        ({"seed": -1}, r"seed is -1; it must be in \[0, "),
        ({"max_new_tokens": 5000}, r"max_new_tokens is 5000; it must be in \[1, 4096\]"),
        ({"drafter": "/etc"}, "drafter is '/etc'; it must be one of auto, ngram, slow, broken."),
        ({"drafter": ["auto"]}, r"drafter is \['auto'\]; it must be one of auto, ngram, slow, broken."),
        ({"drafter": "broken"}, "The weights of this drafter are missing."),
    ],
)
def test_bad_settings_get_the_sentences_of_the_page(served, client, settings, message):
    opened = served[0].count("open")
    with pytest.raises(AppError, match=message):
        client.predict(**{"prompt": "x", **settings}, api_name="/decode")
    assert served[0].count("open") == opened


def test_calls_take_turns_and_none_ends_another(served, client):
    """Two calls of one client share its session; their rounds alternate."""
    backend = served[0]
    jobs = [client.submit(f"long call {name}", max_new_tokens=60) for name in ("one", "two")]
    traces = [job.result(60) for job in jobs]
    assert [trace[-1]["finish"] for trace in traces] == ["length", "length"]
    order = [prompt for what, prompt, _ in backend.log if what == "enter" and prompt.startswith("long call")]
    first_end = min(len(order) - order[::-1].index(f"long call {name}") for name in ("one", "two"))
    first_begin = max(order.index(f"long call {name}") for name in ("one", "two"))
    together = order[first_begin:first_end]
    assert len(together) > 10
    assert abs(together.count("long call one") - together.count("long call two")) <= 4
    work = [what for what, prompt, _ in backend.log if what in ("enter", "leave")]
    assert work == ["enter", "leave"] * (len(work) // 2), "never two rounds at once"


def test_a_call_that_is_given_up_ends_and_frees_the_engine(served, client):
    backend = served[0]
    job = client.submit("long and given up", max_new_tokens=4000)
    until(lambda: backend.count("enter", "long and given up") > 5, 20)
    job.cancel()
    until(lambda: backend.count("close", "long and given up") == 1, 20)
    until(lambda: TURNS.is_free)


def test_calls_beyond_four_wait_and_beyond_sixteen_are_refused(monkeypatch):
    monkeypatch.setattr(api, "SIGN_OF_LIFE_S", 0.01)
    calls, begun = api.Calls(), []

    def endless(number):
        begun.append(number)
        while True:
            yield [{"number": number}]

    def two_steps(number):
        call = calls.admitted(endless(number))
        return call, [next(call), next(call)]

    running = [two_steps(number) for number in range(4)]
    waiting = [two_steps(number) for number in range(4, 16)]
    assert [steps for _, steps in running] == [[[], [{"number": number}]] for number in range(4)]
    assert [steps for _, steps in waiting] == [[[], []]] * 12
    with pytest.raises(SettingError, match="16 calls are under way or waiting, which is the most. Try again later."):
        next(calls.admitted(endless(16)))
    assert begun == [0, 1, 2, 3]

    waiting.pop()[0].close()  # given up while waiting: makes room to wait, not to run
    assert two_steps(17)[1] == [[], []]
    running[2][0].close()
    assert next(waiting[0][0]) == [{"number": 4}]
    assert begun == [0, 1, 2, 3, 4]


def test_a_waiting_load_blocks_nobody(served, client):
    backend = served[0]
    client.predict("loads the bundled drafter")
    slow = threading.Thread(target=client.predict, args=("slow one",), kwargs={"drafter": "slow"}, daemon=True)
    slow.start()
    until(lambda: backend.count("prepare", "slow") == 1)
    assert client.predict("quick one")[-1]["kind"] == "end"
    assert backend.count("open", "slow one") == 0
    slow.join(30)


def test_an_assistant_can_call_it(served):
    pytest.importorskip("mcp", reason="gradio's mcp extra is not installed")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def talk():
        async with (
            streamablehttp_client(f"{served[1]}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            answer = await session.call_tool(tools[0].name, {"prompt": "hard words", "draft_length": 3})
            refusal = await session.call_tool(tools[0].name, {"prompt": "x", "temperature": 9})
            return tools, answer, refusal

    # In a thread of its own: playwright keeps a loop in this one while the whole suite runs.
    with ThreadPoolExecutor(1) as pool:
        tools, answer, refusal = pool.submit(asyncio.run, talk()).result(60)
    assert [tool.name for tool in tools] == ["decode"]
    assert "request" not in tools[0].inputSchema["properties"]
    assert "Answer a prompt by speculative decoding" in tools[0].description
    assert tools[0].inputSchema["properties"]["temperature"]["description"] == "0 to 2; 0 is greedy."
    wanted = read_trace("".join(fake_trace("hard words", DecodeConfig(draft_length=3))))
    assert not answer.isError
    assert read_trace(answer.content[0].text) == wanted, "the text of a trace file, not Python's list"
    assert refusal.isError
    assert "temperature is 9; it must be in [0.0, 2.0]" in refusal.content[0].text
