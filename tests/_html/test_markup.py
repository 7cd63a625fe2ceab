"""Elements: text is escaped, markup is not, secrets are masked."""

from __future__ import annotations

from composer._html import Html, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Html("<i>x</i>"), None, 3) == "<p>&lt;b&gt;<i>x</i>3</p>"
    assert tag("p", tag("b", "&")) == "<p><b>&amp;</b></p>"


def test_attributes_are_escaped_and_renamed() -> None:
    made = tag("a", href='" onclick="x', class_="one", aria_label="<", hidden=True, title=None, draggable=False)
    assert made == '<a href="&quot; onclick=&quot;x" class="one" aria-label="&lt;" hidden></a>'


def test_secrets_are_masked() -> None:
    assert "hunter2" not in tag("p", "sftp://me:hunter2@host/x", title="sftp://me:hunter2@host/x")
