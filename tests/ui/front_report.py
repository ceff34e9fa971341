"""A hand-made report of `bench pareto`: round numbers, every kind of row."""

import json


def row(label, rule, knob, acceptance, reward, **more):
    """A row with intervals of 0.02 around acceptance and 0.04 around reward."""
    distance = more.pop("distance", 0.5)
    rejection = more.pop("rejection", 0.4)
    K = more.pop("draft_length", 5)
    return {
        "label": label,
        "rule": rule,
        "knob": knob,
        "draft_length": K,
        "temperature": more.pop("temperature", 1.0),
        "reward": [reward, round(reward - 0.04, 4), round(reward + 0.04, 4)],
        "acceptance": None if acceptance is None else [acceptance, acceptance - 0.02, acceptance + 0.02],
        "acceptance_in_correct": None if acceptance is None else acceptance + 0.01,
        "tau": [2.0, 1.9, 2.1],
        "accepted_per_round": 0.0 if rule == "ar" else 1.0,
        "expected_per_round": 0.0 if rule == "ar" else 1.1,
        "rejection": rejection,
        "bias": None if rejection is None else round(distance - rejection, 4),
        "distance": distance,
        "tokens_per_s": 20.0,
        "ratio_to_ar": 1.25,
        "num_answers": 80,
        **more,
    }


def dynamic(label, knob, acceptance, reward, above_static, above_time_sharing, **more):
    gains = {"above_static": above_static, "above_time_sharing": above_time_sharing}
    return row(label, "dynamic", knob, acceptance, reward, **gains, **more)


ABOVE, ZERO, BELOW = [0.1, 0.05, 0.15], [0.01, -0.02, 0.04], [-0.1, -0.15, -0.05]


def report(*, heads=(("arithmetic-head", ABOVE, ZERO),), places=((5, 1.0),), **fields):
    rows = []
    for K, temperature in places:
        at = {"draft_length": K, "temperature": temperature}
        rows += [
            row("autoregressive", "ar", None, None, 0.6, distance=None, rejection=None, **at),
            row("exact", "exact", None, 0.2, 0.6, rejection=0.5, **at),
            row("static 1", "static", 1.0, 0.2, 0.61, rejection=0.5, **at),
            row("static 0.5", "static", 0.5, 0.5, 0.4, rejection=0.25, **at),
            row("static 0", "static", 0.0, 1.0, 0.1, rejection=0.0, **at),
            row("lossy 0.3", "lossy", 0.3, 0.4, 0.5, rejection=None, **at),
            dynamic("sure where H(p) < 1", 1.0, 0.6, 0.3, BELOW, BELOW, **at),
        ]
        for place, (name, above, shared) in enumerate(heads):
            rows.append(dynamic(name, None, 0.4 + 0.1 * place, 0.55, above, shared, **at))
    made = {
        "kind": "bench pareto",
        "task": "arithmetic",
        "rows": rows,
        "num_prompts": 20,
        "num_answers": 80,
        "target": "SmolLM2-135M-Instruct",
        "drafter": "auto",
        "seed": 0,
        "precision": "float16",
        "device": "cpu",
    }
    return made | fields


def write(folder, name, made):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(made) + "\n", "utf-8")
    return path
