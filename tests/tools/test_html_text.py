"""Pages become text: what people read of them, and nothing that a page can hold us up with."""

from __future__ import annotations

import pytest

from openclaw.tools.web import read_page

URL = "https://example.org/a/"


@pytest.mark.parametrize(
    ("source", "markdown", "text"),
    [
        ("<h2>Head</h2><p>one<p>two", "## Head\n\none\n\ntwo", "Head\n\none\n\ntwo"),
        (
            'see <a href="/x?a=1&amp;b=2">the\n page</a>.',
            "see [the page](https://example.org/x?a=1&b=2).",
            "see the page.",
        ),
        ("<a href='javascript:x()'>x</a> <a>y</a>", "x y", "x y"),
        ("<ul><li>one<li>two</ul>", "- one\n- two", "- one\n- two"),
        ("<b>bold</b> and <code>code</code>", "**bold** and `code`", "bold and code"),
        ("<pre>def f():\n    return 1</pre>", "```\ndef f():\n    return 1\n```", "def f():\n    return 1"),
        ("a<br>b   c", "a\nb c", "a\nb c"),
        ("<table><tr><td>1<td>2</table>", "| 1 | 2", "1 2"),
        ("3 < 4 &amp; 5 &gt; 4 &#x41;", "3 < 4 & 5 > 4 A", "3 < 4 & 5 > 4 A"),
        ("x<script>if (a<b) '<p>no</p>'</SCRIPT>y<style>p{}</style>z", "xyz", "xyz"),
        ("x<!-- <p>no</p> -->y<!-- open", "xy", "xy"),
        ('<div style="display: none">no</div><p hidden>no<p>yes', "yes", "yes"),
        ("<span aria-hidden='true'>no<span>no</span></span>yes", "yes", "yes"),
        ("<svg><text>no</text></svg><noscript>no</noscript>yes", "yes", "yes"),
        ('<a title="a > b" href=/c>d</a>', "[d](https://example.org/c)", "d"),
        ("<p", "", ""),
        ("&#" + "9" * 5000, "&#" + "9" * 5000, "&#" + "9" * 5000),
    ],
)
def test_a_page_becomes_markdown_or_text(source: str, markdown: str, text: str) -> None:
    assert read_page(source, URL).text == markdown
    assert read_page(source, URL, "text").text == text


def test_only_the_main_part_is_read_unless_all_is_wanted() -> None:
    main = "word " * 60
    source = f"<title>T &amp; t</title><nav>menu</nav><div>around</div><main><p>{main}</main><footer>foot</footer>"
    assert read_page(source, URL) == ("T & t", main.strip())
    assert read_page(source, URL, main_part=False).text.split("\n\n") == ["menu", "around", main.strip(), "foot"]
    assert read_page("<article>tiny</article><p>The page itself.", URL).text.endswith("The page itself.")


HOSTILE = {
    "open tags": "<a",
    "open quotes": '<a "',
    "mixed quotes": "<a '\"",
    "comments": "<!--",
    "scripts": "<script>",
    "links": "<a href=x>",
    "whole links": "<a href=x>y</a>",
    "elements": "<div>",
    "hidden elements": "<p hidden>",
    "ends": "</a></main>",
    "brackets": "<",
    "declarations": '<!doctype "',
    "main parts": "<main>x</main>",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_a_large_page_of_nonsense_is_read_to_its_end(piece: str) -> None:
    """Work that grew with the square of the page would not come back within minutes."""
    end = "</script>--></p>\"'><p>end of the page"
    text = read_page(piece * (300_000 // len(piece)) + end * 2, URL, main_part=False).text
    assert text.endswith("end of the page")
