"""What the server says of itself."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from runtime import __version__
from runtime.server.service import Service


async def models(service: Service, _: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_card(service)]}


async def model(service: Service, request: Request) -> dict[str, Any]:
    service.check_model(request.path_params["name"])
    return _card(service)


async def health(service: Service, _: Request) -> dict[str, Any]:
    """Raises ApiError: 503 where no request would be served."""
    service.check_alive()
    return {"status": "ok"}


async def version(_: Service, __: Request) -> dict[str, Any]:
    return {"version": __version__}


async def load(service: Service, _: Request) -> dict[str, Any]:
    """Requests that run or wait, as vLLM counts them."""
    return {"server_load": service.gate.num_requests}


async def metrics(service: Service, _: Request) -> Response:
    text = service.metrics.exposition(await service.runtime.stats())
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "stepgraph",
        "max_model_len": service.inputs.max_model_len,
    }
