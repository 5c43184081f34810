"""The Node client beyond the conformance scenarios: Express, Koa, Fastify, types, transactions, and the code of its pages."""
import os
import re
import subprocess

import pytest

from client_builds import NODE, RUN_NODE, node_packages
from lib import folder
from middleware import SCENARIOS, App, scenario_id
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)
import transactions


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


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def database(request):
    server = request.getfixturevalue(request.param)
    idem("store", "init", server.url)
    return server


@pytest.mark.parametrize("scenario", transactions.SCENARIOS, ids=scenario_id)
def test_work_in_the_callers_own_transaction(database, scenario):
    node_packages()
    transactions.play([*RUN_NODE, os.path.join(NODE, "tests/driver.js")], database, scenario)


def test_the_types_say_what_the_client_does():
    node_packages()
    done = subprocess.run(["node_modules/.bin/tsc", "--noEmit", "--strict", "--preserveSymlinks", "--module", "nodenext", "--target", "es2022", "--types",
                           "node", "tests/types.ts"], cwd=NODE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_types_name_what_the_package_exports():
    with open(os.path.join(NODE, "src/index.d.ts")) as f:
        declared = set(re.findall(r"^export (?:class|function) (\w+)", f.read(), re.M))
    done = subprocess.run(["node", "--input-type=module", "-e", 'console.log(...Object.keys(await import("idem-client")))'], cwd=NODE,
                          capture_output=True, text=True, timeout=60)
    assert declared == set(done.stdout.split()), done
