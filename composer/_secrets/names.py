"""Classify names: secrets (``api_key``, ``hf_token``) or data (``input_key``, ``pad_token``)."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from composer._text import word_set

__all__ = ["Secrecy", "is_data", "may_have_spaces", "secrecy_of"]


_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Names a secret anywhere in a name.
_STRONG: Final = re.compile(
    r"pass[\W_]*wor[dt]|passwd|pass[\W_]*phrase|passcode|passwrd|seed[\W_]*phrase|secret(?!ar|[\W_]*santa)|credential"
    r"|authorization|webhook|shared[\W_]*access[\W_]*signature|(?:access|unlock)[\W_]*code|session[\W_]*id"
    r"|(?:api|access|account|private|shared|signing|encryption|ssh|license)[\W_]*key|(?:auth|bearer)[\W_]*token"
    r"|conn(?:ection)?[\W_]*str(?:ing)?"
)
_STRONG_WORDS: Final = frozenset({"apikey", "authkey", "bearer", "cookie", "cookies", "cred", "creds", "jwt", "pwd"})
# Names a secret at the end of a name. Words that end in "pass" are listed: "bypass" and "compass" are not secrets.
_LAST_WORDS: Final = word_set(
    """
    adminpass csrf dbpass dbpw dsn kubeconfig mnemonic mypass oauth otp pem pw rootpass sessionid sshpass totp userpass
    xsrf
    """
)
# Names whose secrets may have spaces, commas and the like in them.
_SENTENCES: Final = re.compile(r"pass[\W_]*wor[dt]|passwd|pwd|pass[\W_]*phrase|seed[\W_]*phrase|mnemonic")
_AUTH_HEADER: Final = re.compile(r"auth(?:orization)?[\W_]*headers?$")
# What a mere "key" or "pass" may be when it is data: the name of a column, or of a phase of training.
_WORD: Final = re.compile(r"[a-z]{1,15}(?:_[a-z]{1,15})?")
# The name of a setting about a secret, or of where a secret is: ``key_filename``, ``secret_environ``, ``token_type``.
_ABOUT: Final = word_set(
    """
    algorithm algorithms class column count dim dir directory embedding embeddings enabled endpoint env environ
    environment envvar expiry field file filename files folder format header len length limit manager method mode model
    name names path paths policy provider required scope scopes size store strength timeout type types uri
    url urls variable
    """
)
# Words before "key" that make it a name of data: the columns of a batch, the entries of a dictionary.
_DATA: Final = word_set(
    """
    answer answers array attention attn audio batch bbox boxes cache caption checkpoint choice choices class column
    columns config context data dataset dict document element embed embedding entry epoch eval example examples
    extra feature features field file filter flag foreign frame frames function gradient graph group hash hidden id ids
    ignore image images index input inputs instance item join json key label labels layer length line list log
    logits logs lookup loss map mapping mask masks max meta metadata metric metrics min missing mode model module
    monitor msg name names node num object observation optimizer option order output outputs padding param parameter
    params parent partition patch path pixel pos position prediction predictions primary prompt property query
    question range record resize response result results reward row sample samples score scores
    sequence sort source speaker split src start state step stop storage string sum summary table tag target targets
    task tensor tensors test text texts time timestamp train transform tree type unexpected unique val validation
    value values variable video view weight weights word x y
    """
)
# Words before "token" that make it a token of text: special tokens and counts of tokens.
_SPECIAL: Final = word_set(
    """
    additional audio average begin blank boi bos by cls content count decoder delimiter doc document end eoa eod eoi
    eom eop eos eot extra fim first forced image in init instruction last mask max mean middle min new next no non
    num of on pad padding per prefix previous prompt punctuation query response sample samples sep separator seq
    sequence sot space special speech split start stop sub suffix system target task text thinking timestamp to
    total trigger unk unknown unused video vision vocab word
    """
)
# Words that make "keys" and "tokens" secrets, which are data otherwise.
_OF_ACCESS: Final = word_set(
    """
    access account api app auth aws azure bot client deploy encryption gcs gh git github gitlab google hf host hub
    id license login master oauth openai personal private refresh root s3 secret service session signing slack ssh
    user wandb
    """
)
# Words that may follow "key" or "token" without changing the meaning.
_SUFFIXES: Final = word_set(
    """
    admin b64 backup base64 current default dev hex id live main new old pem primary prod production read ro rw
    secondary staging str string test text user v value write
    """
)
_ANIMALS: Final = ("monkey", "turkey", "donkey", "hockey", "jockey", "whiskey", "hotkey")  # end in "key" by chance
# Words before "pass" that make it one of several over the same data.
_PASSES: Final = word_set("backward final first forward last multi nth one second single third two")


class Secrecy(IntEnum):
    """How certainly a name is that of a secret.

    >>> Secrecy.NONE < Secrecy.TEXT < Secrecy.ANY
    True
    """

    NONE = 0
    TEXT = 1  # only if the value is a string: a number called "key" or "token" is data
    ANY = 2


def secrecy_of(name: object) -> Secrecy:
    """Return how certainly a name (of an argument, a variable or a key of a mapping) is that of a secret.

    Names that contain ``password``, ``secret``, ``credential``, ``api_key`` and the like are, in upper or lower case,
    snake case or camel case. Names with ``key`` or ``token`` are, unless the words next to it mark it as data:
    ``input_key``, ``pad_token``, ``max_tokens``, ``tokenizer``. Names of locations are not: ``key_filename``,
    ``secret_environ``.

    Args:
        name: The name; anything but a string is ``Secrecy.NONE``.

    >>> [
    ...     secrecy_of(name).name
    ...     for name in ("WANDB_API_KEY", "hfToken", "input_key", "max_tokens", "monkey")
    ... ]
    ['ANY', 'TEXT', 'NONE', 'NONE', 'NONE']
    """
    if not isinstance(name, str):
        return Secrecy.NONE
    words = [word.lower() for word in _WORDS.findall(name)]
    lower = name.lower()
    if _AUTH_HEADER.search(lower):
        return Secrecy.ANY
    if not words or words[-1] in _ABOUT:
        return Secrecy.ANY if "webhook" in words else Secrecy.NONE
    if _STRONG.search(lower) or _STRONG_WORDS.intersection(words) or "_".join(words).endswith("api_key"):
        return Secrecy.ANY
    last = [word for word in words if not word.isdecimal()][-1:]  # of oauth2
    if _LAST_WORDS.intersection(last) or (words[-1] == "pat" and len(words) > 1):
        return Secrecy.ANY
    if words[-1] in ("auth", "pass", "sas"):
        return Secrecy.TEXT if len(words) == 1 or words[-2] not in _DATA | _PASSES else Secrecy.NONE
    return Secrecy.TEXT if _names_access(words) else Secrecy.NONE


def is_data(name: str, value: str) -> bool:
    """Return whether a value is data although its name may be that of a secret: ``key: image``, ``pass: train``.

    Args:
        name: The name.
        value: The value.

    >>> is_data("key", "image"), is_data("key", "x7Fq"), is_data("api_key", "image")
    (True, False, False)
    """
    return name.strip("-").lower() in ("key", "pass") and _WORD.fullmatch(value) is not None


def may_have_spaces(name: str) -> bool:
    """Return whether the secret of a name may be several words, as passwords and passphrases may.

    Args:
        name: The name.

    >>> may_have_spaces("db_password"), may_have_spaces("api_key")
    (True, False)
    """
    return _SENTENCES.search(name.lower()) is not None


def _names_access(words: list[str]) -> bool:
    """Return whether the word "key" or "token" in a name means a credential."""
    found = [index for index, word in enumerate(words) if word.endswith(("key", "keys", "token", "tokens"))]
    if not found or words[found[-1]] in _ANIMALS:
        return False
    index = found[-1]
    word, before, after = words[index], words[:index], words[index + 1 :]
    if not all(one in _SUFFIXES or one.isdecimal() for one in after):
        return False
    if word.endswith("s"):
        return bool(_OF_ACCESS.intersection(before)) or word not in ("keys", "tokens")
    if before[-2:] == ["azure", "storage"]:
        return True
    if not before or word not in ("key", "token"):  # "key", or "mykey"
        return True
    return before[-1] not in (_DATA if word == "key" else _SPECIAL)
