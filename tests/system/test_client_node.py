"""The Node client beyond the conformance scenarios: Express, Koa, Fastify, types, transactions, and the code of its pages."""
import os

import pytest

from client_builds import NODE, RUN_NODE, node_packages
from lib import folder
from middleware import SCENARIOS, App, scenario_id


@pytest.fixture(scope="module", params=["express", "koa", "fastify"])
def app(request):
    node_packages()
    with folder() as where:
        app = App(where, [*RUN_NODE, os.path.join(NODE, "tests/app.js"), request.param])
        yield app
        app.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=scenario_id)
def test_middleware_answers_as_the_gateway_does(app, scenario):
    app.play(scenario)
