"""Find secrets (passwords, API keys, tokens) in a text, and replace them by ``***``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from composer._secrets.names import Secrecy, is_data, may_have_spaces, secrecy_of
from composer._text import word_set

__all__ = ["MASK", "SHAPES", "is_reference", "mask_text"]


MASK: Final = "***"
"""The text that replaces a secret."""

# Schemes in which a user name without a password is not a secret: of servers, and of containers in object stores.
_USERS: Final = word_set(
    """
    abfs abfss adl az azure azure_blobs ftp ftps gs hdfs mysql nfs oci postgres postgresql rsync s3 sftp smb ssh
    svn+ssh git+ssh telnet wasb wasbs
    """
)
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-_]*)://([^\s]+)")
_END_OF_SERVER: Final = re.compile(r"[/?#]")
_PORT: Final = re.compile(r"[^:@]*:\d{0,5}(?:$|[/?#'\"),;\]])")
# A URI without its scheme: ``/user:password@host``.
_LOGIN: Final = re.compile(
    r"(?<![^\s/'\"=(\[,{<])(?!mailto:|\w+://)([^\s/:@'\"=]+):([^\s/@]+)@(?!sha\d+:)(?=[A-Za-z0-9\[])"
)
_CLOCK: Final = re.compile(r"\d{1,2}")  # 12:30@home
_OPTION: Final = re.compile(r"(?<!\S)(--[A-Za-z][\w.\-]*)(\s+)(\"[^\"]*\"|'[^']*'|[^\s\-]\S*)")
_HEADER: Final = re.compile(
    r"(?i)(?<![\w.\-])((?:proxy-)?authorization|(?:set-)?cookie|x-[\w\-]*(?:key|token))(\s*:\s*)([^'\"\n]+)"
)
_SCHEME: Final = re.compile(
    r"\b(Bearer|bearer|BEARER)(\s+)([\w.~+/\-]{6,}=*)|\b(Basic|Token|token)(\s+)(?=\S*\d)([\w.~+/\-]{12,}=*)"
)
# Query parameters of signed URLs.
_SIGNED: Final = word_set(
    """
    awsaccesskeyid code googleaccessid session sid sig signature x-amz-credential x-amz-signature x-amz-security-token
    x-goog-credential x-goog-signature
    """
)
# Prefixes by which services mark their tokens, and webhook addresses, which are secrets themselves.
SHAPES: Final = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|npm_|pypi-|dckr_pat_|sk-|[sr]k_live_|xox[abeoprs]-|AIza|ya29\.)[\w\-]{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*"
)
_HOOKS: Final = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)[\w/\-]+|(api\.telegram\.org/(?:file/)?bot)[\w:\-]+"
)
_PRIVATE_KEY: Final = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?:.*?(-----END [A-Z ]*PRIVATE KEY-----)|.*)", re.S
)
# A reference to a secret rather than the secret. One with a default would have the secret in it.
_REFERENCE: Final = re.compile(r"\$\{(?:oc\.env:)?[A-Z_][A-Z0-9_]*\}|\$[A-Z_][A-Z0-9_]*|")
# Shorter secrets are not searched for in other texts: they would match everywhere.
_SHORTEST: Final = 4

# Where a value begins: after ``name=``, ``'name': `` and ``name: ``.
_ASSIGNED: Final = re.compile(
    r"(?<![\w.\-])(?P<name>-{0,2}[A-Za-z][\w.\-]*)(?P<sign>(?:=|%3D)[ \t]*|[ \t]+=(?!=)[ \t]*)"
)
_ENTRY: Final = re.compile(r"(?P<q>\\*[\"'])(?P<name>[^\"'\\\n]{1,100})(?P=q)(?P<sign>\s*[:,]\s*)")
_COLON: Final = re.compile(
    r"(?<![\w.\-\"'\\])(?P<name>[A-Za-z][\w.\-]*(?:[ ](?i:key|token|password|phrase|secret|code)\b)?)(?P<sign>:[ \t]+)"
)
_ELEMENT: Final = re.compile(r"<(?P<name>[A-Za-z][\w.:\-]*)(?P<sign>(?:\s[^<>]*)?>)([^<>]+)(?=</)")
# What a value looks like, by how it begins.
_QUOTED: Final = re.compile(r"([A-Za-z]{0,2})(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')", re.S)
_ESCAPED: Final = re.compile(r"(\\+[\"'])(.*?)\1", re.S)
_BRACKETS: Final = re.compile(r"(?:[A-Za-z_][\w.]*)?[(\[{]")
_BRACE: Final = re.compile(r"\$\{[^}]*\}")
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.S)
_PLAIN: Final = re.compile(r"[^\s&;,#'\")\]}]+")
# A password extends to the end of the line, unless another argument or option follows.
_SENTENCE: Final = re.compile(r"(?:(?![,;&#\s]\s*-{0,2}[A-Za-z_][\w.\-]*=|\s--?[A-Za-z])[^\n'\")\]}])+")
_CONSTANT: Final = re.compile(r"(?:True|False|None|true|false|null)\b")
_NUMBER: Final = re.compile(r"-?\d+(\.\d*)?(e[+-]?\d+)?")
_PLACEHOLDER: Final = "VALUE"  # in what messages advise: ``--api_key VALUE``


def mask_text(text: object, known: Iterable[str] = ()) -> str:
    """Return a text with its secrets replaced by ``***``.

    Masks passwords and tokens before the ``@`` of URIs, signatures and keys in query parameters, values whose name is
    that of a secret (``api_key='...'``, ``"hf_token": "..."``, ``--password ...``, ``Authorization: ...``), and
    tokens of a known format.

    Args:
        text: A message, URI or path; of other objects, their ``str``.
        known: Known secrets, such as those of :func:`secrets_in`; masked wherever they appear.

    >>> mask_text("cannot read sftp://user:hunter2@host/ep1.pt")
    'cannot read sftp://user:***@host/ep1.pt'
    >>> mask_text("https://host/file?sig=abc&part=1"), mask_text("Logger(api_key='abc', input_key='image')")
    ('https://host/file?sig=***&part=1', "Logger(api_key='***', input_key='image')")
    """
    text = str(text)
    for secret in sorted({one for one in known if len(one) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{MASK}{found[2] or ''}", text)
    if "://" in text:
        text = _URI.sub(lambda found: f"{found[1]}://{_without_login(found[1].lower(), found[2])}", text)
    if "@" in text:
        text = _LOGIN.sub(lambda found: found[0] if _CLOCK.fullmatch(found[2]) else f"{found[1]}:{MASK}@", text)
    if "=" in text or "%3D" in text:
        text = _each(_ASSIGNED, text, _assigned)
    text = _each(_ENTRY, text, _entry)
    if "--" in text:
        text = _OPTION.sub(_option, text)
    if ":" in text:
        text = _HEADER.sub(lambda found: f"{found[1]}{found[2]}{MASK}", text)
        text = _each(_COLON, text, _colon)
    if "</" in text:
        text = _ELEMENT.sub(_element, text)
    text = _SCHEME.sub(lambda found: f"{found[1] or found[4]}{found[2] or found[5]}{MASK}", text)
    return SHAPES.sub(MASK, _HOOKS.sub(lambda found: f"{found[1] or found[2]}{MASK}", text))


def _without_login(scheme: str, rest: str) -> str:
    """Return the part after ``scheme://``, with the secret before the ``@`` masked."""
    end = _END_OF_SERVER.search(rest)
    server, path = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    if "@" not in server:
        # A password that contains a slash, which should have been written as %2F.
        user, colon, _ = server.partition(":")
        if not colon or "@" not in path or _PORT.match(rest):
            return rest
        return f"{user}:{MASK}@{rest.rpartition('@')[2]}"
    login, _, host = server.rpartition("@")
    user, colon, password = login.partition(":")
    if not colon:
        return f"{user if scheme in _USERS else MASK}@{host}{path}"
    # Some services take the token as the user name, with a placeholder as the password.
    hidden = scheme not in _USERS and (password in ("", "x-oauth-basic") or SHAPES.search(user))
    return f"{MASK if hidden and user else user}:{MASK if password or not hidden else ''}@{host}{path}"


def is_reference(value: str) -> bool:
    """Return whether a value names an environment variable that has the secret: ``${NAME}`` or ``$NAME``.

    Args:
        value: The value.

    >>> is_reference("${HF_TOKEN}"), is_reference("$hunter2"), is_reference("${HF_TOKEN:-hunter2}")
    (True, False, False)
    """
    return _REFERENCE.fullmatch(value) is not None


def _each(pattern: re.Pattern[str], text: str, masked: Callable[[re.Match[str]], tuple[int, str] | None]) -> str:
    """Replace the values that follow the matches of a pattern: ``masked`` returns the end and the replacement."""
    made: list[str] = []
    done = position = 0
    while (found := pattern.search(text, position)) is not None:
        position = found.end()
        if (replaced := masked(found)) is not None:
            made += [text[done:position], replaced[1]]
            done = position = replaced[0]
    return "".join([*made, text[done:]])


def _assigned(found: re.Match[str]) -> tuple[int, str] | None:
    name, text, start = found["name"], found.string, found.end()
    if text[: found.start()][-1:] in ("?", "&", "#") and name.lower() in _SIGNED:
        secrecy = Secrecy.ANY
    elif (secrecy := secrecy_of(name)) is Secrecy.NONE:
        return None
    end = _end(text, start, may_have_spaces(name))
    value = text[start:end]
    # Of "a key = value pair" only the sign is that of an assignment.
    is_spaced = found["sign"].strip() != found["sign"]
    if is_spaced and secrecy is not Secrecy.ANY and name.isalpha() and not (_is_quoted(value) or _is_opaque(value)):
        return None
    return _replaced(name, secrecy, value, end)


def _entry(found: re.Match[str]) -> tuple[int, str] | None:
    name, text, start = found["name"], found.string, found.end()
    secrecy = secrecy_of(name)
    # ["key", "value"] is a list of names rather than a key with its value.
    is_pair = name.startswith("--") or "authorization" in name.lower()
    if secrecy is Secrecy.NONE or ("," in found["sign"] and not is_pair):
        return None
    end = _end(text, start, sentence=False)
    value = text[start:end]
    if not _is_quoted(value):
        if secrecy is not Secrecy.ANY:
            # Names in a dict are checked separately; the strings in a list are the secrets.
            if not value or value[0] not in "([":
                return None
            return end, _STRING.sub(lambda inner: _in_quotes(name, inner[0]), value)
        if _BRACKETS.match(value) is None and not (_NUMBER.match(value) or text[end : end + 1] in ("", ",", "}", "\n")):
            return None
    return _replaced(name, secrecy, value, end)


def _colon(found: re.Match[str]) -> tuple[int, str] | None:
    name, text, start = found["name"], found.string, found.end()
    secrecy = secrecy_of(name)
    # "key: ..." may begin a sentence; "api_key: ..." is a line of YAML.
    if secrecy is Secrecy.NONE or not (len(re.findall(r"[^\W_]+", name)) > 1 or secrecy is Secrecy.ANY):
        return None
    if text[start : start + 1] in tuple("{|>&"):
        return None
    end = _end(text, start, sentence=False)
    value = text[start:end]
    # "api_key: the secret is missing" says something about it.
    is_alone = re.match(r"[ \t]*(?:$|[\n,;})\]])", text[end:]) is not None
    if not (is_alone or _is_quoted(value) or _is_opaque(value)):
        return None
    return _replaced(name, secrecy, value, end)


def _element(found: re.Match[str]) -> str:
    return found[0] if secrecy_of(found["name"]) is Secrecy.NONE else f"<{found['name']}{found['sign']}{MASK}"


def _option(found: re.Match[str]) -> str:
    secrecy = secrecy_of(found[1])
    if secrecy is Secrecy.NONE or found[3] == _PLACEHOLDER:
        return found[0]
    replaced = _replaced(found[1], secrecy, found[3], 0)
    return found[0] if replaced is None else f"{found[1]}{found[2]}{replaced[1]}"


def _replaced(name: str, secrecy: Secrecy, value: str, end: int) -> tuple[int, str] | None:
    """Return the end and the replacement of a value, or None if it is not a secret."""
    if not value or _CONSTANT.match(value) or (secrecy is not Secrecy.ANY and _NUMBER.fullmatch(value)):
        return None
    return end, _in_quotes(name, value)


def _end(text: str, start: int, sentence: bool) -> int:
    """Return the end of the value that begins at ``start``."""
    for pattern in (_BRACE, _ESCAPED, _QUOTED):
        if (found := pattern.match(text, start)) is not None:
            return found.end()
    line = text.find("\n", start)
    line = len(text) if line < 0 else line
    if text[start : start + 1] in ("'", '"') and text[start + 1 : line].strip(" ,;)]}"):
        return line  # the text was cut
    end = start
    if _BRACKETS.match(text, start) is not None:
        end = _closed(text, start, line)
    found = (_SENTENCE if sentence else _PLAIN).match(text, end)
    return end if found is None else found.end()


def _closed(text: str, start: int, line: int) -> int:
    """Return the position after the bracket that closes the first one, or the end of the line if none does."""
    depth, position = 0, start
    while position < len(text):
        if (string := _STRING.match(text, position)) is not None:
            position = string.end()
            continue
        depth += (text[position] in "([{") - (text[position] in ")]}")
        position += 1
        if depth == 0 and text[position - 1] in ")]}":
            return position
    return line


def _is_quoted(value: str) -> bool:
    return (_QUOTED.fullmatch(value) or _ESCAPED.fullmatch(value)) is not None


def _is_opaque(value: str) -> bool:
    """Return whether a value looks unlike a word of a sentence."""
    return any(one.isdecimal() for one in value) or sum(one.isupper() for one in value) > 1


def _in_quotes(name: str, value: str) -> str:
    """Return the mask in the quotes of the value, or the value itself if it is not a secret."""
    found = _ESCAPED.fullmatch(value)
    if found is not None:
        before, after, inner = found[1], found[1], found[2]
    elif (found := _QUOTED.fullmatch(value)) is not None:
        before, after, inner = f"{found[1]}{found[2][0]}", found[2][0], found[2][1:-1]
    else:
        before, after, inner = "", "", value
    return value if is_reference(inner) or is_data(name, inner) else f"{before}{MASK}{after}"
