"""The Go client beyond the conformance scenarios: net/http, database/sql, retries, and the code of its pages."""
import os
import re
import subprocess

import pytest

from client_builds import CLIENTS, build_go, go
from lib import ROOT, Server, folder, free_port
from middleware import App, scenario_id, test_a_client_that_goes_away_does_not_stop_the_work, test_a_request_whose_body_ends_early_does_not_run, test_an_upload_that_ends_early_can_be_sent_again, test_middleware_answers_as_the_gateway_does  # noqa: F401
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)
import transactions
from transactions import database  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def app():
    with folder() as where:
        app = App(where, [build_go("tests/app", "go-tests/app")])
        yield app
        app.close()


@pytest.mark.parametrize("scenario", transactions.SCENARIOS, ids=scenario_id)
def test_work_in_the_callers_own_transaction(database, scenario):
    transactions.play([build_go("tests/driver", "go-tests/driver")], database, scenario)


PAGE_HEAD = """package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/lib/pq"

	"idem"
)

func check(good bool, err error, what ...any) {
	if !good || err != nil {
		fmt.Println(append([]any{"failed:", err}, what...)...)
		os.Exit(1)
	}
}

"""
# What has to be there before the statements of the page run, and what must be so after them.
PAGE_MAIN = """
func main() {
	ctx := context.Background()
	db, _ := sql.Open("postgres", os.Args[1])
	maria, _ := sql.Open("mysql", os.Args[2])
	%s
	again, err := idem.Do(ctx, client, "order-7", func(context.Context) (Order, error) { return Order{99}, nil }, idem.Arguments(cart))
	check(again == order && order.Total == 20, err, again)
	for key, with := range map[string]error{"slow": io.ErrUnexpectedEOF, "no": declined{"poor"}, "away": &os.SyscallError{"connect", syscall.ECONNREFUSED}} {
		work := func(ctx context.Context) (Order, error) {
			return pay(ctx, func(context.Context, Cart) (Order, error) { return Order{}, with }, cart)
		}
		_, first := idem.Do(ctx, client, key, work)
		_, second := idem.Do(ctx, client, key, work)
		var failed *idem.Failed
		check(key != "slow" || errors.Is(first, idem.ErrOutcomeUnknown) && errors.Is(second, idem.ErrInProgress), nil, first, second)
		check(key != "no" || first == with && errors.As(second, &failed), nil, first, second)
		check(key != "away" || errors.Is(first, idem.ErrNotExecuted) && errors.Is(second, idem.ErrNotExecuted), nil, first, second)
	}
	fine, err := idem.Do(ctx, client, "away", func(context.Context) (Order, error) { return order, nil })
	check(fine == order, err, fine)
	check(errors.Is(client.Redeem(ctx, token, "ann"), idem.ErrTokenUsed), nil)
	data, err := io.ReadAll(answer.Body)
	check(answer.StatusCode == 200 && string(data) == "{\\"Total\\":20}\\n", err, string(data))
	answer, err = sender.Send(request, "order-11")
	check(answer.Header.Get("Idempotent-Replayed") == "true", err, answer)
	twice, err := idem.DoDB(ctx, db, "order-9", func(context.Context, *sql.Tx) (Order, error) { return Order{99}, nil }, idem.Scope("shop"), idem.Arguments(cart))
	check(twice == paid && paid.Total == 20, err, twice)
	for _, one := range []*sql.DB{db, maria} {
		count := 0
		err = one.QueryRow("select count(*) from orders").Scan(&count)
		check(count == 1, err, count)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{"TestAnOrderIsPlacedOnce", TestAnOrderIsPlacedOnce}}, nil, nil)
}
"""


def blocks(page):
    with open(os.path.join(CLIENTS, "go", page), encoding="utf-8") as f:
        return re.findall(r"```go\n(.*?)```", f.read(), re.S)


def test_the_code_of_the_pages_works(postgres, mariadb):
    code = blocks("README.md")
    assert code == blocks("README.zh-CN.md")
    members = [c for c in code if re.match(r"type|func", c)]
    assert 2 < len(members) < len(code)
    for database in (postgres, mariadb):
        idem("store", "init", database.url)
        database.sql("create table orders (item varchar(20), count int)")
    statements = "\tcheck(true, err)\n".join(c for c in code if c not in members)
    port = free_port()
    with folder() as where, Server(where, listen=True) as server:
        source = PAGE_HEAD + "\n".join(members) + PAGE_MAIN % statements
        for old, new in (("127.0.0.1:6390", "127.0.0.1:%d" % server.port), ("127.0.0.1:8080", "127.0.0.1:%d" % port)):
            assert old in source
            source = source.replace(old, new)
        with open(os.path.join(where, "page.go"), "w", encoding="utf-8") as f:
            f.write(source)
        go("build", "-o", where + "/page", where + "/page.go")
        done = subprocess.run([where + "/page", postgres.url + "?sslmode=disable", "idem:secret@tcp(127.0.0.1:%d)/shop" % mariadb.port], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                              env={**os.environ, "PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"]})
        assert done.returncode == 0 and "PASS" in done.stdout and "Here is the order" in done.stdout, done.stdout


def test_the_module_is_installed_as_the_page_says():
    """In module mode, without a network."""
    with open(os.path.join(CLIENTS, "go/README.md")) as f:
        command = re.search(r"\$ (go mod edit .*)", f.read()).group(1).replace("/path/to/idem", ROOT)
    with folder() as where:
        with open(os.path.join(where, "main.go"), "w") as f:
            f.write('package main\n\nimport "idem"\n\nfunc main() {\n\tif _, err := idem.Open(""); err == nil {\n\t\tprintln("fine")\n\t}\n}\n')
        env = {**os.environ, "GO111MODULE": "on", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOCACHE": os.path.join(ROOT, "build/gocache")}
        done = subprocess.run("go mod init shop && %s && go vet idem && go run ." % command, shell=True, cwd=where, env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        assert done.returncode == 0 and "fine" in done.stdout, done.stdout


def test_the_code_is_formatted():
    done = subprocess.run(["gofmt", "-l", os.path.join(CLIENTS, "go")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr


def test_the_package():
    with folder() as where, Server(where) as server:
        assert "ok" in go("test", "-count=1", "idem", IDEM_SERVER="idem+unix:" + server.socket)
