"""The page: `python app.py`, or `python app.py --help` for host, port, models and precision."""

from argparse import ArgumentParser

from explorer.ui.app import build_app, launch_options
from explorer.ui.backend import PairBackend
from explorer.ui.jobs import Jobs


def main() -> None:
    """Serve the page; the models are loaded in the background meanwhile."""
    parser = ArgumentParser(description="The speculative decoding explorer, as a web page.")
    parser.add_argument("--host", help="0.0.0.0 lets other machines in (default: this machine only)")
    parser.add_argument("--port", type=int, help="default: the first free one from 7860")
    parser.add_argument("--target", default="default", help="Hub id, folder or GGUF file (default: the bundled pair's)")
    parser.add_argument("--drafter", default="auto", help="auto, hybrid, ngram, Hub id or folder (default: auto)")
    parser.add_argument("--precision", default="auto", help="auto, float32, float16, bfloat16, int8 or nf4")
    parser.add_argument("--share", action="store_true", help="open a public link through gradio's relay")
    flags = parser.parse_args()
    backend = PairBackend(flags.target, flags.drafter, flags.precision, Jobs.in_cache())
    build_app(backend, preload=True).launch(**launch_options(flags.host, flags.port, share=flags.share))


if __name__ == "__main__":
    main()
