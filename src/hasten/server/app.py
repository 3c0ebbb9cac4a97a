"""The ASGI application: routes, error handlers and the middleware around them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from hasten.config import parse_size
from hasten.errors import HastenError
from hasten.server import routes, routes_info
from hasten.server.auth import ApiKeys
from hasten.server.errors import AnyError, on_client_gone, on_hasten_error, on_http_error
from hasten.server.limits import BodyLimit
from hasten.server.origin import OwnPagesOnly, is_loopback
from hasten.server.state import ServerState


def create_app(state: ServerState) -> Starlette:
    """The application for `state`, which routes find as `request.app.state.server`."""
    config = state.server_config
    middleware = [
        Middleware(AnyError),
        Middleware(ApiKeys, keys=state.api_keys),
        Middleware(BodyLimit, max_body_bytes=parse_size(config.max_body)),
    ]
    if not state.api_keys:  # a page does not know the key
        middleware.insert(1, Middleware(OwnPagesOnly, origins=config.cors, is_local=is_loopback(config.host)))
    if config.cors:
        # outermost: a browser's preflight carries no key, and errors need the headers too
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(config.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
        middleware.insert(0, cors)
    app = Starlette(
        routes=[*routes.ROUTES, *routes_info.ROUTES],
        middleware=middleware,
        exception_handlers={
            HastenError: on_hasten_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_gone,
        },
    )
    app.state.server = state
    app.middleware_stack = app.build_middleware_stack()  # now: what is wrong with it must not wait for the first request
    return app
