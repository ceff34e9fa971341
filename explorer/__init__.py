"""Speculative decoding, seen token by token.

Layers, each importing only those to its left:
`rules`, `heads`, `tasks` <- `engine` <- `training`, `benchmarks` <- `ui`.
`engine.decode.decode` is the one loop: the page streams its events, the terminal prints them, training exhausts them.
"""

import os

# GNU OpenMP, which torch brings, must read this before torch is loaded. Its threads wait for each other thousands of
# times a second; by default they spin for milliseconds, and with any other work on the processor a token then takes ten
# times as long. A short spin costs nothing on a quiet machine (23 tokens/s either way on two hardware threads).
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
