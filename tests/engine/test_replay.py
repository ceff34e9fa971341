"""A replay as text: which scripts are in it, and that no token can become markup."""

import json
from html.parser import HTMLParser

import pytest

from explorer.engine.replay import ASSETS, SCRIPTS, embed_snippet, harmless_json, replay_page
from explorer.errors import TraceError

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<!-- <script> ",
    "--> <!--trace-->",
    "]]> & &amp; &lt;",
    "\u2028\u2029\u0000\u0007\u007f\u0085\ufeff",
    "\u202edrawkcab\u2066 \U0001f642 日本 \\u003c \\ \" '",
    "\ud800 half a pair",
)


def trace_of(*texts):
    next_ = [{"id": i, "text": text, "fate": "bonus"} for i, text in enumerate(texts)]
    meta = {"kind": "meta", "version": 1, "prompt": str(texts[0]), "rule": "ar", "temperature": 0, "seed": 0}
    records = [meta, *({"kind": "round", "drafts": [], "next": token} for token in next_)]
    return "".join(json.dumps(record) + "\n" for record in records)


class Markup(HTMLParser):
    """The tags of a page with their attributes, and what its data element holds."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data, self._is_data = [], "", False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))
        self._is_data = ("id", "trace") in attrs

    def handle_endtag(self, tag):
        self._is_data = False

    def handle_data(self, data):
        if self._is_data:
            self.data += data


def test_every_script_is_loaded_once():
    from explorer.ui.theme import PAGE_SCRIPTS

    assert sorted((*SCRIPTS, *PAGE_SCRIPTS)) == sorted(path.name for path in (ASSETS / "js").glob("*.js"))


@pytest.mark.parametrize("text", HOSTILE)
def test_token_text_is_data_and_nothing_else(text):
    trace = trace_of(text)
    page = Markup(replay_page(trace))

    assert page.tags == Markup(replay_page(trace_of("harmless"))).tags
    assert json.loads(page.data) == trace


@pytest.mark.parametrize("text", HOSTILE)
def test_the_data_is_plain_ascii_without_markup(text):
    data = harmless_json(text)
    assert data.isascii()
    assert data.isprintable()
    assert not set("<>&") & set(data)
    assert json.loads(data) == text


def test_the_page_names_no_address():
    page = replay_page(trace_of("a"))
    assert "default-src 'none'" in page
    for words in ("http:", "https:", "@import", "url(", "src=", "import("):
        found = [line for line in page.splitlines() if words in line and "www.w3.org/2000/svg" not in line]
        assert [line for line in found if "<iframe src=" not in line] == [], words


def test_what_is_no_trace_is_refused():
    with pytest.raises(TraceError, match="Line 2 of the trace has a token without text or with an unknown fate"):
        replay_page(trace_of(7))


def test_a_file_name_cannot_leave_the_snippet():
    assert embed_snippet('a"b&c.html').startswith('<iframe src="a&quot;b&amp;c.html" title=')
