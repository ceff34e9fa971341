"""Verification rules: which drafted tokens live. Pure functions of probabilities; no model, cache, tokenizer or clock.

Every rule is an acceptance probability; they all share one residual (`verify.residual`), because the excess of any
verifier `w p + (1 - w) q` over q is w times that of p. This module imports nothing, so that names cost nothing.
"""

RULES = {
    "ar": "Autoregressive: no drafts, one token per target pass",
    "exact": "Exact: the target's own law, accept with min(1, p/q)",
    "lossy": "Lossy: lenience l, accept with min(1, p/(l q))",
    "static": "Static ensemble: verifier w p + (1-w) q with one fixed w",
    "dynamic": "Dynamic ensemble: verifier w p + (1-w) q with a learned w for every token",
}
