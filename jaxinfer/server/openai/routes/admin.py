"""Administration routes, which change the engine; off by default, always behind a key."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import AdapterNotFoundError, JaxinferError
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.errors import ApiError, ErrorAnswer, client_errors, invalid, with_routes
from jaxinfer.server.openai.front import Front, front_of
from jaxinfer.server.openai.protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from jaxinfer.server.openai.protocol.answers import Status
from jaxinfer.server.openai.protocol.experts import RebalanceBody, Rebalanced
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)

Mode = Literal["abort", "wait", "keep"]
Tag = Literal["weights", "kv_cache", "scheduling"]
_DONE: dict[int | str, dict[str, Any]] = {200: {"model": Status}}
_OR_CONFLICT = {**_DONE, 409: {"model": ErrorAnswer}}
_BY_STATISTICS = RebalanceBody(load=None)


@router.post("/reset_prefix_cache", response_model=None, responses=_DONE)
async def reset_prefix_cache(request: Request) -> Response:
    """Empty the prefix cache."""
    await front_of(request).engine.reset_prefix_cache()
    return json_answer({"status": "ok"})


@router.post("/sleep", response_model=None, responses=_OR_CONFLICT)
async def sleep(
    request: Request, level: Annotated[int, Query(ge=0, le=2)] = 1, mode: Mode = "abort"
) -> Response:
    """Release the device memory until `/wake_up`."""
    return await _call(front_of(request), "sleep", level=level, mode=mode)


@router.post("/wake_up", response_model=None, responses=_OR_CONFLICT)
async def wake_up(request: Request, tags: Annotated[list[Tag] | None, Query()] = None) -> Response:
    """Take the device memory back after `/sleep`."""
    return await _call(front_of(request), "wake_up", tags=tags)


@router.get("/is_sleeping", response_model=None, responses=_DONE)
async def is_sleeping(request: Request) -> Response:
    """True if `/sleep` was called and `/wake_up` not yet."""
    return json_answer({"is_sleeping": await _fact(front_of(request), "is_sleeping")})


@router.post("/pause", response_model=None, responses=_OR_CONFLICT)
async def pause(
    request: Request,
    mode: Mode = "abort",
    clear_cache: bool = True,
    refuse: bool = False,
) -> Response:
    """Run no step until `/resume`; requests that come meanwhile wait, or are refused."""
    front = front_of(request)
    await _call(front, "pause", mode=mode, refuse=refuse)
    if clear_cache:
        await front.engine.reset_prefix_cache()
    return json_answer({"status": "paused"})


@router.post("/resume", response_model=None, responses=_OR_CONFLICT)
async def resume(request: Request) -> Response:
    """Go on after `/pause`."""
    await _call(front_of(request), "resume")
    return json_answer({"status": "resumed"})


@router.get("/is_paused", response_model=None, responses=_DONE)
async def is_paused(request: Request) -> Response:
    """True if no step runs, be it by `/pause` or by `/sleep`."""
    return json_answer({"is_paused": await _fact(front_of(request), "is_paused")})


@router.post("/start_profile", response_model=None, responses=_OR_CONFLICT)
async def start_profile(request: Request) -> Response:
    """Record a profile of host and devices into the operator's directory."""
    front = front_of(request)
    directory = front.settings.profile_directory
    if directory is None:
        raise ApiError(501, "profiling is off; start the server with --profiler-dir")
    try:
        await _conflicts(lambda: front.engine.start_profile(directory))
    except ValueError as error:  # the operator's mistake, not the client's
        raise ApiError(500, str(error)) from None
    return json_answer({"status": "ok"})


@router.post("/stop_profile", response_model=None, responses=_OR_CONFLICT)
async def stop_profile(request: Request) -> Response:
    """End the recording and write it."""
    await _conflicts(front_of(request).engine.stop_profile)
    return json_answer({"status": "ok"})


@router.post(
    "/rebalance_experts",
    response_model=None,
    responses={**_OR_CONFLICT, 200: {"model": Rebalanced}},
)
async def rebalance_experts(request: Request, body: RebalanceBody = _BY_STATISTICS) -> Response:
    """Move experts between devices by their load, while no request is unfinished."""
    found = await _result(front_of(request), "rebalance_experts", load=body.load)
    return json_answer(dataclasses.asdict(found))


@router.post("/v1/load_lora_adapter", response_model=None, responses=_DONE)
async def load_lora_adapter(body: LoadAdapterBody, request: Request) -> Response:
    """Load a LoRA adapter, whose name requests may then give as their model."""
    front, name = front_of(request), body.lora_name
    if name in front.settings.served_model_names:
        raise invalid(f"lora_name: {name!r} is the model's own name", "lora_name")
    replaces = bool(body.load_inplace) and name in front.adapters
    call = "update_adapter" if replaces else "load_adapter"
    return await _call(front, call, name=name, source=body.lora_path)


@router.post("/v1/unload_lora_adapter", response_model=None, responses=_DONE)
async def unload_lora_adapter(body: UnloadAdapterBody, request: Request) -> Response:
    """Forget a LoRA adapter; requests that run with it go on."""
    try:
        return await _call(front_of(request), "unload_adapter", name=body.lora_name)
    except AdapterNotFoundError as error:
        raise ApiError(404, str(error), param="lora_name", code="adapter_not_found") from None


async def _fact(front: Front, name: str) -> bool:
    """An engine's value, by a property or a method."""
    value = getattr(front.engine, name, False)
    value = value() if callable(value) else value
    return bool(await value if inspect.isawaitable(value) else value)


async def _conflicts[T](work: Callable[[], Awaitable[T]]) -> T:
    try:
        return await work()
    except JaxinferError:  # such as the engine's end
        raise
    except RuntimeError as error:
        raise ApiError(409, with_routes(str(error)), code="conflict") from None


async def _call(front: Front, name: str, /, **arguments: Any) -> Response:
    """Call a method that not every engine has."""
    await _result(front, name, **arguments)
    return json_answer({"status": "ok"})


async def _result(front: Front, name: str, /, **arguments: Any) -> Any:
    """What a method returns that not every engine has."""
    method = getattr(front.engine, name, None)
    if method is None:
        raise ApiError(501, f"this engine has no {name}")

    async def work() -> Any:
        with client_errors(arguments):
            result = method(**arguments)
            return await result if inspect.isawaitable(result) else result

    return await _conflicts(work)
