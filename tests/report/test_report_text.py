"""Any text can stand in the page, and nothing in it stays unseen."""

import random
from html.parser import HTMLParser

import pytest

from rung.report.text import escape, one_line, visible

NASTY = [
    "<script>alert(1)</script>",
    "</div></details><img src=x onerror=alert(1)>",
    "\" onmouseover='alert(1)' `",
    "<!-- --> <![CDATA[ ]]> &lt;b&gt; &amp;",
    "lone \ud800 surrogates \udfff",
    "\x00 NUL \x1b[31m \x7f \x9f",
    "\u2028 line \u2029 separators",
    "\u202e reversed \u2066 isolated \u200b zero \ufeff width \U000e0041",
    "\r\n\r lone returns \t tabs\v\f",
    "\ufffe \uffff \ufdd0",
    "a" * 5000,
]


class Text(HTMLParser):
    """The text between the tags, and the tags."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("make", [escape, visible, one_line])
def test_no_text_makes_an_element_or_breaks_the_encoding(make, text):
    html = make(text)
    html.encode("utf-8")
    assert set(Text(html).tags) <= {"i"}
    assert not any(ord(character) < 32 and character not in "\t\n" for character in html)
    assert not {"\u2028", "\u2029", "\u202e", "\x7f"} & set(html)


def test_an_attribute_cannot_be_left():
    assert '"' not in escape('" onclick="')
    assert "'" not in escape("' onclick='")


def test_text_without_hidden_characters_comes_back_unchanged():
    """Marks are generated content: what a person copies is what the model wrote."""
    rng = random.Random(0)
    alphabet = "ab <>&\"'\t\n\u00a0é漢😀"
    for _ in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 40)))
        assert Text(visible(text)).text == text


def test_whitespace_is_marked_where_it_would_be_overlooked():
    assert visible("a b") == "a b"
    assert visible(" a") == '<i class="ws over" data-mark="·"> </i>a'
    assert visible("a  b") == 'a<i class="ws over" data-mark="··">  </i>b'
    assert visible("a \nb").startswith(
        'a<i class="ws over" data-mark="·"> </i><i class="ws" data-mark="↵"></i>\n'
    )
    assert visible("a\tb") == 'a<i class="ws over" data-mark="→">\t</i>b'
    assert "⍽" in visible("a\u00a0b")


def test_hidden_characters_are_written_by_number():
    assert visible("a\x00\x00b") == 'a<i class="hid">⟨U+0000×2⟩</i>b'
    assert visible("\ud800") == '<i class="hid">⟨U+D800⟩</i>'
    assert "(empty)" in visible("")


def test_a_long_text_says_how_much_is_missing():
    assert "… 4,000 more characters" in visible("a" * 5000, limit=1000)
