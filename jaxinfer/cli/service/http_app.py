"""The HTTP application of a front end, from settings that came as JSON."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import FastAPI


def make_app(llm: Any, settings: Mapping[str, Any]) -> FastAPI:
    """The application that answers for an engine.

    Args:
        llm: the engine, a `RemoteLLM`.
        settings: fields of `ServerSettings`.
    """
    app = FastAPI()

    @app.get("/health")
    async def health() -> Any:
        from fastapi.responses import Response

        try:
            await llm.check_health()
        except RuntimeError:
            return Response(status_code=503)
        return Response()

    @app.get("/stub/{count}")
    async def stub(count: int) -> Any:
        from fastapi.responses import StreamingResponse

        from jaxinfer.sampling_params import RequestOutputKind, SamplingParams

        async def texts() -> AsyncGenerator[str]:
            params = SamplingParams(
                temperature=0, max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind(1)
            )
            async for output in llm.generate("Once upon a time", params):
                yield output.outputs[0].text + f"[{output.outputs[0].finish_reason}]"

        return StreamingResponse(texts())

    return app
