"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from runtime.errors import RequestError
from runtime.front.input_processor import InputProcessor
from runtime.server.bodies import DetokenizeBody, TokenizeBody
from runtime.server.errors import bad_request
from runtime.server.http import read
from runtime.server.service import Service


async def tokenize(service: Service, request: Request) -> dict[str, Any]:
    body = await read(service, request, TokenizeBody)
    service.check_model(body.model)
    return await service.on_text_thread(_tokens, body, service.inputs)


async def detokenize(service: Service, request: Request) -> dict[str, Any]:
    body = await read(service, request, DetokenizeBody)
    service.check_model(body.model)
    return await service.on_text_thread(_text, body, service.inputs)


def _tokens(body: TokenizeBody, inputs: InputProcessor) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("prompt", "give exactly one of prompt and messages")
    _, ids = inputs.encode(
        body.prompt,
        body.messages,
        None,
        None,
        add_special_tokens=body.add_special_tokens is not False,
        add_generation_prompt=body.add_generation_prompt is not False,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    pieces = inputs.tokenizer.pieces(ids) if body.return_token_strs and inputs.tokenizer else None
    return {
        "count": len(ids),
        "max_model_len": inputs.max_model_len,
        "tokens": ids,
        "token_strs": pieces,
    }


def _text(body: DetokenizeBody, inputs: InputProcessor) -> dict[str, Any]:
    tokenizer = inputs.tokenizer
    if tokenizer is None:
        raise RequestError("tokens", "this model has no tokenizer")
    for position, token_id in enumerate(body.tokens):
        if not 0 <= token_id < tokenizer.num_ids:
            most = tokenizer.num_ids
            raise bad_request(
                "tokens", f"position {position} holds {token_id}; ids are in [0, {most})"
            )
    text = tokenizer.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
    return {"prompt": text}
