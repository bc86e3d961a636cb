"""Strict JSON (RFC 8259): what two readers could understand differently is refused.

Python's and most other parsers take the last of two equal keys, and accept NaN. For an act that cannot be undone that
is too much: the caller, a proxy and this service must read the same request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

MAX_INLINE_BYTES = 16 << 10
"""Larger bodies are parsed in a thread, so that they hold up no other request."""
MAX_MEMBERS = 64
"""Members of one object, several times what any request has. Each unknown one would be an error of its own."""
TOO_MANY_MEMBERS = f"an object has more than {MAX_MEMBERS} members"
DUPLICATE_KEY = "an object has the same key twice; send each key once"
NOT_FINITE = "NaN and Infinity are not JSON; send finite numbers"


class StrictRoute(APIRoute):
    """Route whose JSON body is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        has_body = self.body_field is not None

        async def answer(request: Request) -> Response:
            return await handle(await _with_strict_body(request) if has_body else request)

        return answer


class StrictRequest(Request):
    """Request with a body that is already parsed."""

    parsed: Any = None

    async def json(self) -> Any:
        return self.parsed


def read_json(content: bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raise ValidationError, which repeats nothing of the text."""
    try:
        return DECODER.decode(content.decode())
    except _Refused as error:
        raise _invalid(str(error)) from None
    except json.JSONDecodeError as error:
        raise _invalid(f"not valid JSON at character {error.pos + 1}") from None
    except UnicodeDecodeError:
        raise _invalid("not valid UTF-8") from None
    except RecursionError:
        raise _invalid("nested too deeply") from None
    except ValueError:
        raise _invalid("a number has too many digits") from None


class _Refused(ValueError):
    """Valid for Python, but not for us."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise _Refused(TOO_MANY_MEMBERS)
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Refused(DUPLICATE_KEY)
    return members


def _refuse_constant(_: str) -> NoReturn:
    raise _Refused(NOT_FINITE)


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)


def _invalid(reason: str) -> ValidationError:
    error = PydanticCustomError("json_invalid", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data("JSON", [InitErrorDetails(type=error, loc=(), input=None)])


async def _with_strict_body(request: Request) -> StrictRequest:
    strict = StrictRequest(request.scope, request.receive)
    content = await strict.body()
    try:
        if len(content) > MAX_INLINE_BYTES:
            strict.parsed = await run_in_threadpool(read_json, content)
        elif content:
            strict.parsed = read_json(content)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in items]) from None
    return strict
