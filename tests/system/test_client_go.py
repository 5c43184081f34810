"""The Go client beyond the conformance scenarios: net/http, database/sql, retries, and the code of its pages."""
import pytest

from client_builds import build_go
from lib import folder
from middleware import SCENARIOS, App, scenario_id
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)
import transactions


@pytest.fixture(scope="module")
def app():
    with folder() as where:
        app = App(where, [build_go("tests/app", "go-tests/app")])
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
    transactions.play([build_go("tests/driver", "go-tests/driver")], database, scenario)
