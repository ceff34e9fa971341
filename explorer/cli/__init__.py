"""The command line: one module per command, each with HELP, add_arguments(parser) and run(flags).

Torch and transformers are imported inside these functions only, so that `python -m explorer --help` answers at once.
"""
