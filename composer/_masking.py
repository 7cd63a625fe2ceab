"""Mask secrets in logs, errors and files: passwords in URIs, tokens, and values of keys such as ``api_key``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, TypeVar, cast

from composer._secret_names import Secrecy, secrecy_of

__all__ = ["MASK", "is_masked", "mask_error", "mask_text", "mask_values", "secrets_in"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


Error = TypeVar("Error", bound=BaseException)

MASK: Final = "***"
"""The text that replaces a secret."""

_MASKED: Final = re.compile(r"(?:^|[\s:/=?&;,'\"(])\*\*\*(?:$|[\s@&;,'\")#])")
# Schemes in which a user name without a password is not a secret: of servers, and of containers in object stores.
_USERS: Final = _words(
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
_NAMED: Final = re.compile(
    r"(?<![\w.\-])(-{0,2}[A-Za-z][\w.\-]*)(=|%3D)(\$\{[^}]*\}|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.|[^'\\])*'|[^\s&;,#'\")\]}]+)"
)
_OPTION: Final = re.compile(r"(?<!\S)(--[A-Za-z][\w.\-]*)(\s+)(\"[^\"]*\"|'[^']*'|[^\s\-]\S*)")
_ENTRY: Final = re.compile(
    r"(?P<q>[\"'])(?P<name>[^\"'\\\n]{1,100})(?P=q)(?P<colon>\s*[:,]\s*)"
    r"(?P<value>b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.|[^'\\])*'|-?\d[\w.+\-]*)"
)
_LINE: Final = re.compile(r"(?m)^([ \t]*(?:- )*)([A-Za-z][\w.\-]*)(:[ \t]+)(\"[^\"\n]*\"|'[^'\n]*'|\S+)[ \t]*$")
_HEADER: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w\-]*(?:key|token))(\s*:\s*)([^'\"\n]+)"
)
_SCHEME: Final = re.compile(
    r"\b(Bearer|bearer|BEARER)(\s+)([\w.~+/\-]{6,}=*)|\b(Basic|Token|token)(\s+)(?=\S*\d)([\w.~+/\-]{12,}=*)"
)
# Query parameters of signed URLs.
_SIGNED: Final = _words(
    """
    awsaccesskeyid code googleaccessid sig signature x-amz-credential x-amz-signature x-amz-security-token
    x-goog-credential x-goog-signature
    """
)
# Prefixes by which services mark their tokens, and webhook addresses, which are secrets themselves.
_SHAPES: Final = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|npm_|pypi-|dckr_pat_|sk-|[sr]k_live_|xox[abeoprs]-|AIza|ya29\.)[\w\-]{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*"
)
_HOOKS: Final = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)[\w/\-]+"
)
_PRIVATE_KEY: Final = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?:.*?(-----END [A-Z ]*PRIVATE KEY-----)|.*)", re.S
)
# A reference to a secret rather than the secret: ``${HF_TOKEN}``; or a special token of a text: ``<pad>``, ``[MASK]``.
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}|\$\w+|[<\[].*[>\]]|")
# Shorter secrets are not searched for in other texts: they would match everywhere.
_SHORTEST: Final = 4
_DEEPEST: Final = 50


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
        text = _NAMED.sub(_masked_argument, text)
    text = _ENTRY.sub(_masked_entry, text)
    if "--" in text:
        text = _OPTION.sub(lambda found: _masked_if(found[1], found, 3), text)
    if ":" in text:
        text = _HEADER.sub(lambda found: f"{found[1]}{found[2]}{MASK}", text)
        text = _LINE.sub(_masked_line, text)
    text = _SCHEME.sub(lambda found: f"{found[1] or found[4]}{found[2] or found[5]}{MASK}", text)
    return _SHAPES.sub(MASK, _HOOKS.sub(lambda found: f"{found[1]}{MASK}", text))


def mask_values(values: Any) -> Any:
    """Return plain values, such as hyperparameters or a configuration, with secrets replaced by ``***``.

    Strings are masked by :func:`mask_text`. A string whose key names a secret (see :func:`.secrecy_of`) is masked
    entirely, at any depth of mappings, lists and objects with attributes. References such as ``${NAME}`` and ``$NAME``
    are kept.

    Args:
        values: Mappings, lists and plain values; not modified.

    >>> mask_values({"loggers": [{"api_key": "abc", "host": "https://me:abc@host"}], "input_key": "image"})
    {'loggers': [{'api_key': '***', 'host': 'https://me:***@host'}], 'input_key': 'image'}
    """
    return _Masking(mask_text).of(values, Secrecy.NONE)


def secrets_in(values: Any) -> frozenset[str]:
    """Return the secrets that :func:`mask_values` would mask, so that they can also be masked in other texts.

    Args:
        values: A URI, or plain values that contain URIs and secrets.

    >>> sorted(secrets_in({"folder": "sftp://me:a%20bc@host/x", "api_key": "defg", "seed": 1}))
    ['a bc', 'a%20bc', 'defg']
    """
    from urllib.parse import unquote

    found: list[str] = []

    def note(text: str) -> str:
        # The difference between the two is what the mask replaces.
        masked = mask_text(text)
        if masked != text:
            pattern = re.escape(masked).replace(re.escape(MASK), "(.+?)")
            if (parts := re.fullmatch(pattern, text, re.S)) is not None:
                found.extend(parts.groups())
        return masked

    _Masking(note, found.append).of(values, Secrecy.NONE)
    return frozenset(one for secret in found for one in (secret, unquote(secret)) if one and one != MASK)


def is_masked(value: object) -> bool:
    """Return whether a value is, or contains, the mask that :func:`mask_values` puts in place of a secret.

    Args:
        value: The value.

    >>> is_masked("***"), is_masked("sftp://me:***@host"), is_masked("layers.***.weight"), is_masked(3)
    (True, True, False, False)
    """
    return isinstance(value, str) and _MASKED.search(value) is not None


def mask_error(error: Error, known: Iterable[str] = ()) -> Error:
    """Mask the arguments and notes of an exception, of its causes and of its context, in place; return it.

    Args:
        error: The exception; modified in place.
        known: As for :func:`mask_text`.

    >>> str(mask_error(FileNotFoundError(2, "No such file", "sftp://me:hunter2@host/x")))
    "[Errno 2] No such file: 'sftp://me:***@host/x'"
    """
    known = frozenset(known)
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[Any]", one).exceptions
        _mask_one(one, known)
    return error


def _mask_one(error: BaseException, known: frozenset[str]) -> None:
    def mask(value: object) -> object:
        return _Masking(lambda text: mask_text(text, known)).of(value, Secrecy.NONE)

    is_group = isinstance(error, BaseExceptionGroup)  # whose own message cannot be changed
    if not is_group:
        error.args = tuple(mask(value) for value in error.args)
    # Some kinds keep what they say beside their arguments too.
    for name in ("filename", "filename2", "msg", "strerror", "text", "__notes__", *vars(error)):
        value = getattr(error, name, None)
        if isinstance(value, (str, bytes, list, dict)) and (masked := mask(value)) != value:
            setattr(error, name, masked)
    shown = str(error)
    if (masked_text := mask_text(shown, known)) != shown and not is_group:
        # It is made of what only the class knows, such as an answer of a server.
        kind = type(error)
        named = {"__str__": lambda self: masked_text, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        error.__class__ = type(kind.__name__, (kind,), named)


class _Masking:
    """Masks nested values recursively.

    Args:
        of_text: Masks a string whose key does not name a secret.
        note: Called with each value that is masked because of its key.
    """

    def __init__(self, of_text: Callable[[str], str], note: Callable[[str], object] | None = None) -> None:
        self._of_text = of_text
        self._note = note
        self._inside: list[int] = []

    def of(self, value: Any, secrecy: Secrecy) -> Any:
        """Return the masked value; ``secrecy`` is that of its key."""
        if isinstance(value, str):
            return self._text(value, secrecy)
        if isinstance(value, bytes):
            decoded = value.decode("utf-8", "surrogateescape")
            masked = self._text(decoded, secrecy)
            return value if masked == decoded else masked.encode("utf-8", "surrogateescape")
        if isinstance(value, PurePath):
            masked = self._text(str(value), secrecy)
            return value if masked == str(value) else masked
        if value is None or isinstance(value, (bool, type)) or callable(value):
            return value
        if isinstance(value, (int, float)):
            return self._hidden(str(value)) if secrecy is Secrecy.ANY else value
        if id(value) in self._inside or len(self._inside) >= _DEEPEST:
            return value
        self._inside.append(id(value))
        try:
            return self._container(value, secrecy)
        finally:
            self._inside.pop()

    def _container(self, value: Any, secrecy: Secrecy) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), secrecy)
        if isinstance(value, (list, tuple, set, frozenset)):
            many = list(cast("Iterable[Any]", value))
            masked = [self.of(entry, max(secrecy, _named_by_neighbor(many, place))) for place, entry in enumerate(many)]
            if all(new is old or new == old for new, old in zip(masked, many, strict=True)):
                return value
            return masked if not isinstance(value, tuple) or hasattr(value, "_fields") else tuple(masked)
        attributes = getattr(value, "__dict__", None)
        if not attributes or hasattr(value, "shape") or type(value).__module__.partition(".")[0] in ("torch", "numpy"):
            return value
        masked = self._mapping(attributes, secrecy)
        changed = any(masked[name] is not entry and masked[name] != entry for name, entry in attributes.items())
        return {"class": type(value).__qualname__, **masked} if changed else value

    def _mapping(self, value: Mapping[Any, Any], secrecy: Secrecy) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, entry in value.items():
            own = secrecy_of(key)
            if key == "class_path":
                own = Secrecy.NONE
            elif secrecy is Secrecy.ANY or (key in ("keys", "tokens") and isinstance(entry, Mapping)):
                own = Secrecy.ANY
            made[key if not isinstance(key, str) else self._of_text(key)] = self.of(entry, own)
        return made

    def _text(self, text: str, secrecy: Secrecy) -> str:
        if secrecy is Secrecy.NONE or _REFERENCE.fullmatch(text):
            return self._of_text(text)
        return self._hidden(text)

    def _hidden(self, text: str) -> str:
        if self._note is not None:
            self._note(text)
        return MASK


def _named_by_neighbor(entries: list[Any], place: int) -> Secrecy:
    """Return the secrecy implied by the preceding entry: ``["--api_key", "abc"]``, ``("Authorization", "abc")``."""
    before = entries[place - 1] if place else None
    if not isinstance(before, str) or re.fullmatch(r"[\w.\-]+", before) is None:
        return Secrecy.NONE
    if not (before.startswith("-") or (len(entries) == 2 and place == 1)):
        return Secrecy.NONE
    # In a pair, only a name that is certainly a secret counts: ["key", "value"] may be the names of two columns.
    found = secrecy_of(before)
    return found if before.startswith("-") or found is Secrecy.ANY else Secrecy.NONE


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
    hidden = scheme not in _USERS and (password in ("", "x-oauth-basic") or _SHAPES.search(user))
    return f"{MASK if hidden and user else user}:{MASK if password or not hidden else ''}@{host}{path}"


def _masked_argument(found: re.Match[str]) -> str:
    name, before = found[1], found.string[: found.start()][-1:]
    if before in ("?", "&", "#") and name.lower() in _SIGNED:
        return f"{name}{found[2]}{_in_quotes(found[3])}"
    return _masked_if(name, found, 3)


def _masked_entry(found: re.Match[str]) -> str:
    secrecy = secrecy_of(found["name"])
    # ["key", "value"] is a list of names rather than a key with its value.
    is_pair = found["name"].startswith("--") or "authorization" in found["name"].lower()
    if secrecy is Secrecy.NONE or ("," in found["colon"] and not is_pair):
        return found[0]
    if found["value"][0] not in "b\"'" and secrecy is not Secrecy.ANY:
        return found[0]
    return f"{found['q']}{found['name']}{found['q']}{found['colon']}{_in_quotes(found['value'])}"


def _masked_line(found: re.Match[str]) -> str:
    # "key: ..." may begin a sentence; "api_key: ..." is a line of YAML.
    compound = len(re.findall(r"[^\W_]+", found[2])) > 1 or secrecy_of(found[2]) is Secrecy.ANY
    if not compound or secrecy_of(found[2]) is Secrecy.NONE or found[4][0] in "[{|>&":
        return found[0]
    return f"{found[1]}{found[2]}{found[3]}{_in_quotes(found[4])}"


def _masked_if(name: str, found: re.Match[str], group: int) -> str:
    value, secrecy = found[group], secrecy_of(name)
    number = re.fullmatch(r"-?\d+(\.\d*)?|True|False|None|true|false|null", value) is not None
    if secrecy is Secrecy.NONE or (number and (secrecy is not Secrecy.ANY or value[0].isalpha())):
        return found[0]
    return f"{found[0][: found.start(group) - found.start()]}{_in_quotes(value)}"


def _in_quotes(value: str) -> str:
    """Return the mask, in the quotes of the value."""
    bare = value.removeprefix("b")
    if len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "'\"":
        inner = bare[1:-1]
        return value if _REFERENCE.fullmatch(inner) else f"{value[: len(value) - len(bare)]}{bare[0]}{MASK}{bare[0]}"
    return value if _REFERENCE.fullmatch(value) else MASK
