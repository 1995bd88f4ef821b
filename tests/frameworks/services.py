"""One service in several frameworks: `POST /v1/payments` is answered with `X-Handled`, as the framework routes it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from aiohttp import web

# Behind the others: what both have is taken from the environment of the tests.
sys.path.append(str(Path(sys.prefix) / "frameworks"))

HANDLED = {"X-Handled": "payments"}


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Says nothing."""


def _serve_wsgi(app: Any, port: int) -> None:
    make_server("127.0.0.1", port, app, handler_class=_Quiet).serve_forever()


def django(port: int) -> None:
    import_module("django.conf").settings.configure(
        ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="k", INSTALLED_APPS=["rest_framework"],
        MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
        REST_FRAMEWORK={
            "UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_PERMISSION_CLASSES": [],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
    )  # fmt: skip
    import_module("django").setup()
    response = import_module("rest_framework.response").Response

    def payments(_: Any, format: str | None = None) -> Any:  # noqa: A002 - its name there
        return response({}, headers=HANDLED)

    view = import_module("rest_framework.decorators").api_view(["POST"])(payments)
    patterns = [import_module("django.urls").path(path, view) for path in ("v1/payments", "v1/payments/")]
    globals()["urlpatterns"] = import_module("rest_framework.urlpatterns").format_suffix_patterns(patterns)
    _serve_wsgi(import_module("django.core.wsgi").get_wsgi_application(), port)


def flask(port: int) -> None:
    app = import_module("flask").Flask("service")
    app.add_url_rule(
        "/v1/payments", view_func=lambda: ("{}", 200, HANDLED), methods=["POST"], strict_slashes=False, endpoint="pay"
    )
    _serve_wsgi(app, port)


def fastapi(port: int) -> None:
    response = import_module("fastapi").Response("{}", headers=HANDLED)
    app = import_module("fastapi").FastAPI()
    app.add_api_route("/v1/payments", lambda: response, methods=["POST"])
    import_module("uvicorn").run(app, host="127.0.0.1", port=port, log_level="warning")


def aiohttp(port: int) -> None:
    async def payments(_: web.Request) -> web.Response:
        return web.Response(text="{}", headers=HANDLED)

    middleware = web.normalize_path_middleware(append_slash=False, remove_slash=True)
    app = web.Application(middlewares=[middleware])
    app.router.add_post("/v1/payments", payments)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    {"django": django, "flask": flask, "fastapi": fastapi, "aiohttp": aiohttp}[sys.argv[1]](int(sys.argv[2]))
