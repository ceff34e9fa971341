"""laws.js against explorer/rules, and the lesson's moments against the trace; evaluated in a real browser."""

import json

import pytest
import torch

from explorer.rules import ensemble, lossy
from explorer.rules.verify import residual
from explorer.ui.tabs.learn import lesson
from explorer.ui.theme import ASSETS

pytestmark = pytest.mark.browser

RULES = (
    {"name": "exact"},
    {"name": "lossy", "lenience": 0.5},
    {"name": "lossy", "lenience": 0.05},
    {"name": "static", "weight": 0.7},
    {"name": "static", "weight": 0.0},
    {"name": "static", "weight": 1.0},
)


@pytest.fixture(scope="module")
def script(browser):
    """A page with nothing but our scripts."""
    from explorer.ui.theme import head

    page = browser.new_page()
    page.set_content(f"<html><head>{head()}</head><body></body></html>")
    yield page
    page.close()


def random_laws(seed):
    """A pair of laws over 2 to 6 tokens; every third pair has zeros, every fifth is equal."""
    generator = torch.Generator().manual_seed(seed)
    size = 2 + seed % 5
    p, q = torch.rand(2, size, generator=generator, dtype=torch.float64)
    if seed % 3 == 0:
        p[0] = q[-1] = 0.0
    p, q = p / p.sum(), q / q.sum()
    return (p, p.clone()) if seed % 5 == 0 else (p, q)


def acceptance(rule, p, q):
    """Of the engine's rules, for every token."""
    if rule["name"] == "lossy":
        return lossy.acceptance(p, q, rule["lenience"])
    return ensemble.acceptance(p, q, rule.get("weight", 1.0))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(map(str, rule.values())))
def test_the_toy_computes_what_the_rules_compute(script, rule):
    """Every draft, both falls of its coin and every replacement, summed: nothing is sampled."""
    pairs = [random_laws(seed) for seed in range(60)]
    laws = [[p.tolist(), q.tolist()] for p, q in pairs]
    found = script.evaluate("([rule, laws]) => laws.map(([p, q]) => SpecView.laws.outcome(rule, p, q))", [rule, laws])

    for (p, q), got in zip(pairs, found, strict=True):
        can_be_drafted = q > 0
        accept = acceptance(rule, p, q.where(can_be_drafted, 1.0))
        replaced_by = residual(p, q)
        emitted = torch.zeros_like(p)
        for token in range(len(q)):
            emitted[token] += q[token] * accept[token]
            emitted += q[token] * (1 - accept[token]) * replaced_by
        for name, expected in {
            "residual": replaced_by,
            "emitted": emitted,
            "overlap": torch.minimum(p, q).sum(),
            "passes": (q * accept).sum(),
            "distance": (emitted - p).abs().sum() / 2,
        }.items():
            torch.testing.assert_close(torch.tensor(got[name], dtype=torch.float64), expected, rtol=0, atol=1e-9)
        shown = torch.tensor(got["accept"], dtype=torch.float64)
        torch.testing.assert_close(shown[can_be_drafted], accept[can_be_drafted], rtol=0, atol=1e-12)
        if rule in ({"name": "exact"}, {"name": "static", "weight": 1.0}):
            assert got["distance"] < 1e-9
        if rule["name"] == "static":
            weight = rule["weight"]
            torch.testing.assert_close(emitted, weight * p + (1 - weight) * q, rtol=0, atol=1e-7)


def test_thrown_coins_approach_the_law_and_a_seed_repeats_them(script):
    throw = """(n) => { const { coins, throwCoins, outcome, distance } = SpecView.laws;
      const rule = { name: 'lossy', lenience: 0.4 }, p = [0.1, 0.3, 0.6], q = [0.5, 0.4, 0.1];
      const counts = throwCoins(rule, p, q, n, coins(1));
      return [counts, distance(counts.map((c) => c / n), outcome(rule, p, q).emitted)]; }"""
    counts, off = script.evaluate(throw, 200_000)
    assert sum(counts) == 200_000
    assert off < 0.005
    assert script.evaluate(throw, 200_000)[0] == counts
    assert script.evaluate(throw, 100)[1] < 0.2


@pytest.mark.parametrize(("law", "index", "value"), [([0.5, 0.3, 0.2], 1, 0.9), ([1, 0], 0, 0.25), ([0, 1, 0], 1, 0)])
def test_moving_one_entry_keeps_a_law_a_law(script, law, index, value):
    found = script.evaluate("([law, i, value]) => SpecView.laws.moved(law, i, value)", [law, index, value])
    assert found[index] == value
    assert sum(found) == pytest.approx(1)
    assert min(found) >= 0


MOMENTS = """(trace) => { const run = SpecView.Trace.read(trace); const found = SpecView.lesson.moments(run);
  return Object.fromEntries(Object.entries(found).map(([name, m]) => [name, m && {
    round: m.round.number, place: m.token && m.token.place, right: m.right, before: m.before, after: m.after,
    first: m.round.firstStep, values: Object.fromEntries(Object.entries(m.values).map(
      ([k, v]) => [k, v !== null && typeof v === 'object' ? v.text : v])),
    keys: m.choices.map((c) => c.key) }])); }"""


def recorded():
    """The run of the lesson: its text, and its rounds."""
    trace = json.loads(lesson(ASSETS))["trace"]
    return trace, [record for record in map(json.loads, trace.splitlines()) if record["kind"] == "round"]


def test_every_right_answer_is_what_the_recorded_run_did(script):
    trace, rounds = recorded()
    found = script.evaluate(MOMENTS, trace)
    assert list(found) == [step["id"] for step in json.loads(lesson(ASSETS))["lesson"]["steps"]]
    assert all(found.values()), "the recorded run has a moment for every step"
    assert all(moment["right"] in moment["keys"] for moment in found.values())

    at = {name: rounds[moment["round"]] for name, moment in found.items()}
    slower = "pass" if at["draft"]["verify_ms"] > at["draft"]["draft_ms"] else "drafts"
    assert found["draft"]["right"] == slower
    assert found["draft"]["values"]["verify_ms"] == f"{at['draft']['verify_ms']:.1f}"

    verify = at["verify"]["drafts"]
    assert found["verify"]["right"] == str(sum(draft["fate"] == "accepted" for draft in verify))
    assert found["verify"]["values"]["passing"] == sum(draft["u"] < draft["a"] for draft in verify)
    assert found["verify"]["values"]["passing"] > int(found["verify"]["right"]), "the trap is in it"

    accept = at["accept"]["drafts"][found["accept"]["place"]]
    assert found["accept"]["right"] == accept["fate"] == "rejected"
    assert accept["u"] >= accept["p"] / accept["q"], "the exact rule says the same"
    assert found["accept"]["values"]["exact"] == pytest.approx(accept["p"] / accept["q"])

    residual_ = found["residual"]
    excess = {str(id_): p - (q or 0) for id_, _, p, q, *_ in at["residual"]["next"]["top"]}
    excess |= {str(id_): p - (q or 0) for id_, _, p, q, *_ in accept["top"]}
    assert residual_["right"] == max(excess, key=excess.get)
    assert residual_["values"]["tv"] == pytest.approx(1 - accept["overlap"])

    bonus = at["bonus"]
    assert bonus["next"]["fate"] == "bonus"
    assert found["bonus"]["right"] == str(len(bonus["drafts"]) + 1)

    weight = at["weight"]["drafts"][found["weight"]["place"]]
    assert weight["fate"] == "accepted"
    assert weight["u"] >= weight["p"] / weight["q"], "a gift"
    most = found["weight"]["values"]["most"]
    assert 1 - most + most * weight["p"] / weight["q"] == pytest.approx(weight["u"], abs=1e-4)
    kept = [draft for record in rounds for draft in record["drafts"] if draft["fate"] == "accepted"]
    gifts = [draft for draft in kept if draft["u"] >= draft["p"] / draft["q"]]
    assert (found["weight"]["values"]["gifts"], found["weight"]["values"]["kept"]) == (len(gifts), len(kept))


def test_the_playhead_hides_what_is_asked(script):
    trace, _ = recorded()
    states = """(trace) => { const run = SpecView.Trace.read(trace); const found = SpecView.lesson.moments(run);
      const at = (m, head) => m.round.tokens.map((t) => run.stateAt(t, head));
      return Object.fromEntries(Object.entries(found).map(([n, m]) => [n, [at(m, m.before), at(m, m.after)]])); }"""
    found = script.evaluate(states, trace)
    assert found["draft"][0] == found["verify"][0] == ["pending"] * 4 + ["hidden"]
    assert found["verify"][1][-1] == "residual"
    for name in ("accept", "weight"):
        place = script.evaluate(MOMENTS, trace)[name]["place"]
        assert found[name][0][place] == "pending"
        assert found[name][1][place] in ("accepted", "rejected")
    assert found["residual"][0][-1] == found["bonus"][0][-1] == "hidden"
    assert found["bonus"][0][:-1] == ["accepted"] * 4


def test_a_run_without_such_moments_asks_nothing(script):
    trace, _ = recorded()
    first = trace.splitlines()[0]
    assert script.evaluate(MOMENTS, first) == dict.fromkeys(script.evaluate(MOMENTS, trace))
    greedy = json.dumps(json.loads(first) | {"temperature": 0})
    assert set(script.evaluate(MOMENTS, greedy + "\n" + "\n".join(trace.splitlines()[1:])).values()) == {None}


def test_the_accept_question_needs_a_verdict_that_the_exact_rule_shares(script):
    """With a coin of 0 the exact rule keeps every draft that the target gives any chance."""
    trace, _ = recorded()
    lines = [json.loads(line) for line in trace.splitlines()]
    for line in lines[1:-1]:
        for draft in line["drafts"]:
            draft["u"] = 0.0
    found = script.evaluate(MOMENTS, "\n".join(map(json.dumps, lines)))
    assert found["accept"] is None
    assert found["residual"] is None
    assert found["weight"] is None
    assert found["bonus"] is not None


def test_without_its_trace_the_lesson_takes_another(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "learn.json").write_text('{"trace": "gone.ndjson"}', "utf-8")
    assert json.loads(lesson(tmp_path))["trace"] == ""
    (tmp_path / "traces" / "other.ndjson").write_text("other", "utf-8")
    assert json.loads(lesson(tmp_path))["trace"] == "other"
