"""Speculative decoding, seen token by token.

Layers, each importing only those to its left:
`rules`, `heads`, `tasks` <- `engine` <- `training`, `benchmarks` <- `ui`.
`engine.decode.decode` is the one loop: the page streams its events, the terminal prints them, training exhausts them.
"""
