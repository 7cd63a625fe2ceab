"""Elements of HTML: text is escaped and secrets are masked, unless it is markup already."""

from __future__ import annotations

from typing import Any

from composer._html.tables import escaped

__all__ = ["Html", "markup", "tag"]

_VOID = frozenset({"br", "hr", "img", "link", "meta"})


class Html(str):
    """Text that is HTML already, and is not escaped again.

    >>> tag("p", Html("a<br>b"))
    '<p>a<br>b</p>'
    """

    __slots__ = ()


def markup(*content: object) -> Html:
    """Return values one after the other: :class:`Html` as it is, everything else escaped; None is left out.

    Args:
        *content: The values.

    >>> markup("1 < 2", tag("br"), None)
    '1 &lt; 2<br>'
    """
    shown = (str(each) if isinstance(each, Html) else escaped(each) for each in content if each is not None)
    return Html("".join(shown))


def tag(name: str, /, *content: object, **attributes: Any) -> Html:
    """Return an element.

    Args:
        name: Name of the element.
        *content: What it contains, see :func:`markup`.
        **attributes: Its attributes: ``class_`` is written ``class``, and ``aria_label``
            ``aria-label``. True is an attribute without a value; None and False leave it out.

    >>> tag("a", "<x>", href='"quoted"', class_="link", aria_label="x", hidden=True)
    '<a href="&quot;quoted&quot;" class="link" aria-label="x" hidden>&lt;x&gt;</a>'
    """
    told = [
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    start = f"<{name}{''.join(told)}>"
    return Html(start if name in _VOID else f"{start}{markup(*content)}</{name}>")
