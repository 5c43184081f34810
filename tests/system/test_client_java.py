"""The Java client beyond the conformance scenarios: types, annotations, Spring, and the servlet filter in Tomcat 10 and 9."""
import http.client
import json
import os
import re
import subprocess
import threading

import pytest

from lib import ROOT, Process, Server, folder, free_port, wait_until
from test_rights import write_credentials
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)

BUILD = os.path.join(ROOT, "build/clients/java-tests")
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]

JDBC = "/usr/share/java/postgresql.jar:/usr/share/java/mariadb-java-client.jar"


def class_path(*names):
    found = []
    for name in names:
        path = os.path.join(BUILD, name)
        if name.endswith(".path"):
            with open(path) as f:
                path = f.read().strip()
        found.append(path)
    return ":".join(found)


def run(program, passed, *args, **env):
    """Run a test program of src/test: one JVM for all of its tests."""
    done = subprocess.run([*JAVA, "-cp", class_path("test", "idem-client.jar", "test.path") + ":" + JDBC, "idem." + program, *args],
                          capture_output=True, text=True, encoding="utf-8", timeout=300, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == passed, done.stdout


@pytest.fixture(scope="module")
def built():
    subprocess.run([os.path.join(ROOT, "clients/java/build"), "--tests", BUILD], check=True)


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        server = Server(where, listen=True)
        yield server
        server.stop()


def test_the_client(built, server):
    run("ClientTest", 10, "idem://127.0.0.1:%d" % server.port, "idem+unix:" + server.socket)


def test_a_secret_is_sent(built):
    with folder() as where:
        path = write_credentials(where, "shop s3cret:with%s use java", "other other-secret-1234 use other")
        with Server(where, "--credentials", path, listen=True) as s:
            run("AuthTest", 1, "idem://shop:s3cret:with%%25s@127.0.0.1:%d" % s.port, "idem://shop:wrong@127.0.0.1:%d" % s.port,
                "idem://other:other-secret-1234@127.0.0.1:%d" % s.port, "idem+unix:" + s.socket, IDEM_AUTH="shop:s3cret:with%s")


def test_work_in_the_callers_own_transaction(built, postgres, mariadb):
    for database, jdbc in ((postgres, "jdbc:postgresql://127.0.0.1:%d/postgres"), (mariadb, "jdbc:mariadb://127.0.0.1:%d/shop")):
        idem("store", "init", database.url)
        run("SqlTest", 6, jdbc % database.port)


@pytest.fixture(scope="module", params=["10", "9"])
def tomcat(request, built, server):
    """A Tomcat of that version with the filter in front of a servlet."""
    with folder() as where:
        app = Tomcat(where, request.param, "idem://127.0.0.1:%d" % server.port)
        app.idem = server
        yield app
        app.process.stop()


class Tomcat:
    def __init__(self, where, version, url):
        self.effects, self.version = os.path.join(where, "effects"), version
        self.port = free_port()
        package = {"10": "jakarta", "9": "javax"}[version]
        self.process = Process([*JAVA, "-cp", class_path("test" + version, "idem-client.jar", "tomcat%s.path" % version),
                                "idem.%s.FilterApp" % package, str(self.port), where, url], ready=self.port)

    def ask(self, path, key=None, body="x", method="POST", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        if key is not None:
            headers["Idempotency-Key"] = key
        connection.request(method, path, body.encode(), headers)
        answer = connection.getresponse()
        answer.body = answer.read()
        connection.close()
        return answer

    def ran(self, path):
        if not os.path.exists(self.effects):
            return 0
        with open(self.effects) as f:
            return f.read().split().count(path)

    def key(self, name):
        return '"%s-%s"' % (name, self.version)


def problem(answer, status, name):
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    told = json.loads(answer.body)
    assert told["type"] == "https://idem.example/problems/" + name
    assert told["status"] == status
    return told


def test_a_repeat_gets_the_same_answer_byte_for_byte(tomcat):
    first = tomcat.ask("/orders", tomcat.key("orders"), "book")
    again = tomcat.ask("/orders", tomcat.key("orders").strip('"'), "book")
    assert first.status == again.status == 201
    assert first.body == again.body and json.loads(first.body)["got"] == "book"
    assert first.headers["Idempotent-Replayed"] is None and again.headers["Idempotent-Replayed"] == "true"
    for name in ("Content-Type", "Location", "Content-Length"):
        assert first.headers[name] == again.headers[name]
    assert again.headers.get_all("X-Two") == first.headers.get_all("X-Two") == ["a", "b"]
    assert first.headers["Set-Cookie"] and again.headers["Set-Cookie"] is None
    assert tomcat.ran("/orders") == 1
    with tomcat.idem.client() as c:
        record = c("GET", "anonymous", "orders-" + tomcat.version)
    assert "http" in record and "succeeded" in record


def test_another_request_under_the_same_key_is_refused(tomcat):
    assert tomcat.ask("/other", tomcat.key("mismatch"), "one").status == 200
    assert problem(tomcat.ask("/other", tomcat.key("mismatch"), "two"), 422, "mismatch")["retryable"] is False
    problem(tomcat.ask("/other?q=1", tomcat.key("mismatch"), "one"), 422, "mismatch")
    problem(tomcat.ask("/other", tomcat.key("mismatch"), "one", method="PATCH"), 422, "mismatch")
    assert tomcat.ask("/other", tomcat.key("mismatch"), "two", Authorization="Bearer bob").status == 200
    assert tomcat.ran("/other") == 2


def test_what_is_not_guarded_passes(tomcat):
    for _ in range(2):
        assert tomcat.ask("/passes", None).status == 200
        assert tomcat.ask("/passes", tomcat.key("get"), method="GET").status == 200
    assert tomcat.ran("/passes") == 4


@pytest.mark.parametrize("key", ["", '"', "a b", '""', "x" * 256])
def test_a_malformed_key_is_refused(tomcat, key):
    assert problem(tomcat.ask("/malformed", key), 400, "key-malformed")["class"] == "not executed"
    assert tomcat.ran("/malformed") == 0


def test_a_route_may_require_keys_limit_bodies_and_name_the_caller(tomcat):
    problem(tomcat.ask("/required/x"), 400, "key-missing")
    problem(tomcat.ask("/required/x", tomcat.key("big"), "x" * 1001, X_Tenant="a"), 413, "body-too-large")
    problem(tomcat.ask("/required/x", tomcat.key("tenant")), 400, "scope-missing")
    problem(tomcat.ask("/required/x", tomcat.key("tenant"), X_Tenant="x" * 201), 403, "scope-refused")
    for tenant in ("a", "a", "b"):
        assert tomcat.ask("/required/x", tomcat.key("tenant"), X_Tenant=tenant).status == 200
    assert tomcat.ran("/required/x") == 2


def test_a_duplicate_is_told_to_wait_or_waits(tomcat):
    started = []
    threads = [threading.Thread(target=lambda path=path: started.append(tomcat.ask(path, tomcat.key("slow"), X_Tenant="a")))
               for path in ("/slow", "/required/slow")]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: tomcat.ran("/slow") == 1 and tomcat.ran("/required/slow") == 1)
    busy = tomcat.ask("/slow", tomcat.key("slow"))
    assert problem(busy, 409, "in-progress")["retryable"] is True
    assert int(busy.headers["Retry-After"]) >= 1
    waited = tomcat.ask("/required/slow", tomcat.key("slow"), X_Tenant="a")
    assert (waited.status, waited.body, waited.headers["Idempotent-Replayed"]) == (200, b"slow", "true")
    for thread in threads:
        thread.join()
    assert [a.body for a in started] == [b"slow", b"slow"]
    assert tomcat.ran("/required/slow") == 1


@pytest.mark.parametrize("path,status", [("/missing", 404), ("/throws", 500), ("/redirect", 302), ("/async", 500)])
def test_failures_are_answers_in_strict_mode_and_are_tried_again_in_loose_mode(tomcat, path, status):
    key = tomcat.key("failure-" + path[1:])
    first, again = tomcat.ask(path, key), tomcat.ask(path, key)
    assert first.status == again.status == status
    assert first.body == again.body
    assert first.headers["Location"] == again.headers["Location"]
    assert tomcat.ran(path) == 1
    for _ in range(2):
        assert tomcat.ask("/required" + path, key, X_Tenant="a").status == status
    assert tomcat.ran("/required" + path) == (2 if status >= 400 else 1)


def test_a_servlet_can_say_that_it_did_nothing_or_does_not_know(tomcat):
    for n in (1, 2):
        refused = tomcat.ask("/refused", tomcat.key("refused"))
        assert problem(refused, 503, "not-executed")["retryable"] is True
        assert tomcat.ran("/refused") == n
    problem(tomcat.ask("/unknown", tomcat.key("unknown")), 504, "outcome-unknown")
    problem(tomcat.ask("/unknown", tomcat.key("unknown")), 409, "in-progress")  # until the lease is over
    assert tomcat.ran("/unknown") == 1


def test_too_many_requests_frees_the_key(tomcat):
    assert [tomcat.ask("/limited", tomcat.key("limited")).status for _ in range(2)] == [429, 429]
    assert tomcat.ran("/limited") == 2


def test_an_answer_that_is_too_large_is_done_and_not_replayed(tomcat):
    assert len(tomcat.ask("/large", tomcat.key("large")).body) == 3 << 20
    assert problem(tomcat.ask("/large", tomcat.key("large")), 410, "not-replayable")["class"] == "done"
    assert tomcat.ran("/large") == 1


def test_a_form_is_read_by_the_servlet_as_well(tomcat):
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    answer = tomcat.ask("/form?q=1%202", tomcat.key("form"), "name=%E4%B9%A6+x&q=3", **form)
    assert answer.body.decode() == "书 x 1 2"


def test_what_was_settled_or_is_in_doubt_is_told(tomcat):
    with tomcat.idem.client() as c:
        c("SETTLE", "anonymous", "settled-" + tomcat.version, "REASON", "cancelled")
        c("BEGIN", "anonymous", "doubt-" + tomcat.version, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", "doubt-" + tomcat.version)[0] == "doubt")
    assert problem(tomcat.ask("/settled", tomcat.key("settled")), 409, "settled")["class"] == "done"
    unknown = tomcat.ask("/doubt", tomcat.key("doubt"))
    assert problem(unknown, 409, "outcome-unknown")["class"] == "outcome unknown"
    assert unknown.headers["Retry-After"] is None


def test_a_client_retries_until_there_is_an_answer(tomcat):
    key = "retry-doubt-" + tomcat.version
    with tomcat.idem.client() as c:
        c("BEGIN", "anonymous", key, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", key)[0] == "doubt")
        before = tomcat.ran("/slow")
        run("HttpTest", 4, "http://127.0.0.1:%d" % tomcat.port, key)
        assert tomcat.ran("/slow") == before + 1
        c("FORGET", "anonymous", 'retried "e"')


def test_without_a_server_nothing_runs(built):
    with folder() as where:
        app = Tomcat(where, "10", "idem://127.0.0.1:%d" % free_port())
        try:
            away = app.ask("/orders", '"away"')
            assert problem(away, 503, "not-executed")["retryable"] is True
            assert away.headers["Retry-After"] == "1"
            assert app.ask("/orders").status == 201
            assert app.ran("/orders") == 1
        finally:
            app.process.stop()


PAGE_HEAD = """
import java.net.*; import java.net.http.*; import java.nio.file.*; import java.sql.*; import java.time.*; import java.util.*;
import java.util.concurrent.atomic.*; import javax.sql.DataSource; import jakarta.servlet.*; import jakarta.servlet.http.*;
import org.apache.catalina.startup.Tomcat; import org.springframework.aop.framework.autoproxy.*;
import org.springframework.context.annotation.*; import com.fasterxml.jackson.databind.ObjectMapper;
import idem.*; import idem.jakarta.IdempotencyFilter; import idem.spring.IdempotentAdvisor;

public class Page {
    static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
    }
"""
# What has to be there before the statements of the page run, and what must be so after them.
PAGE_MAIN = """
    static class Service extends HttpServlet {
        static final AtomicInteger runs = new AtomicInteger();
        protected void doPost(HttpServletRequest request, HttpServletResponse response) throws java.io.IOException {
            response.getWriter().print("run " + runs.incrementAndGet());
        }
    }

    public static void main(String[] args) {
        try {
            page(args);
            System.exit(0);
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1); // Tomcat's threads would go on
        }
    }

    static void page(String[] args) throws Exception {
        var tomcat = new Tomcat();
        tomcat.setBaseDir(args[1]);
        tomcat.setPort(%(http)d);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var context = tomcat.addContext("", null);
        context.addApplicationListener(Web.class.getName());
        Tomcat.addServlet(context, "app", new Service()).addMapping("/");
        tomcat.start();
        var pool = new org.postgresql.ds.PGSimpleDataSource();
        pool.setURL(args[0]);
        try (var db = pool.getConnection(); var s = db.createStatement()) {
            s.execute("create table orders (item text, count int)");
        }
        %(statements)s
        equal(order, client.once("order-7", Order.class, client.options().arguments(cart), () -> new Order("another", 0)));
        equal(second.total(), 20);
        equal(new String(answer.body()), "run 1");
        equal(new String(http.send(request, "order-10").body()), "run 1");
        try (var beans = new AnnotationConfigApplicationContext(Config.class)) {
            equal(beans.getBean(Orders.class).place(cart), orders.place(cart));
        }
        tomcat.stop();
        System.out.println("the page works");
    }
}
"""


def blocks(page):
    with open(os.path.join(ROOT, "clients/java", page), encoding="utf-8") as f:
        return re.findall(r"```java\n(.*?)```", f.read(), re.S)


def test_the_code_of_the_pages_works(built, server, postgres):
    code = blocks("README.md")
    assert code == blocks("README.zh-CN.md")
    members = [c for c in code if re.match(r"record|interface|static|public static", c)]
    assert 3 < len(members) < len(code)
    port = free_port()
    source = (PAGE_HEAD + "\n".join(members) + PAGE_MAIN % {"http": port, "statements": "".join(c for c in code if c not in members)})
    source = source.replace("127.0.0.1:6390", "127.0.0.1:%d" % server.port).replace("127.0.0.1:8080", "127.0.0.1:%d" % port)
    idem("store", "init", postgres.url)
    path = class_path("idem-client.jar", "test.path", "tomcat10.path") + ":" + JDBC
    with folder() as where:
        with open(os.path.join(where, "Page.java"), "w", encoding="utf-8") as f:
            f.write(source)
        subprocess.run(["javac", "-encoding", "UTF-8", "-parameters", "-cp", path, "-d", where, f.name], check=True, timeout=120)
        done = subprocess.run([*JAVA, "-cp", where + ":" + path, "Page",
                               "jdbc:postgresql://127.0.0.1:%d/postgres?user=idem&password=secret" % postgres.port, where],
                              env={**os.environ, "PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"]},
                              capture_output=True, text=True, encoding="utf-8", timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "重复调用" in done.stdout and "the page works" in done.stdout, done.stdout + done.stderr


def test_the_bank_gives_the_answers_of_the_other_bank():
    """examples/bank in C and clients/java/example in Java are asked the same."""
    with folder() as where:
        url = "sqlite:" + os.path.join(where, "bank.db")
        idem("store", "init", url)
        ports = free_port(), free_port()
        banks = [Process([os.path.join(ROOT, "build/examples/bank"), str(ports[0]), url], ready=ports[0]),
                 Process([os.path.join(ROOT, "clients/java/example/run"), str(ports[1])], ready=ports[1])]
        try:
            told = [story(port) for port in ports]
        finally:
            for bank in banks:
                bank.stop()
    assert told[1] == told[0]
    assert told[1][:5] == [(200, "正常调用")] + [(200, "重复调用")] * 4


def story(port):
    def ask(method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        said = answer.status, answer.read().decode()
        connection.close()
        return said

    def transfer(seq, amount, to="bob", **more):
        return ask("POST", "/transfers", {"source": "s", "seq": seq, "from": "ann", "to": to, "amount": amount, **more})

    token, other = (ask("GET", "/token")[1] for _ in range(2))
    told = [ask("POST", "/test", token=token) for _ in range(5)]
    told += [ask("POST", "/test", token="made-up"), ask("POST", "/test"), ask("POST", "/test", token=other, person="somebody-else"),
             ask("POST", "/test", token=other)]
    for amount in (300, 701, 700):  # 1000 are there: the second is refused
        status, ticket = ask("POST", "/tickets")
        told += [status] + [ask("PUT", "/accounts/ann/" + json.loads(ticket)["ticket"], {"amount": amount}) for _ in range(3)]
    told.append(ask("PUT", "/accounts/ann/no-such-ticket", {"amount": 1}))
    told += [transfer("1", 5), transfer("1", 5)]  # ann has nothing left
    told += [ask("POST", "/transfers", {"source": "s", "seq": "2", "from": "bob", "to": "ann", "amount": 7}) for _ in range(2)]
    told += [transfer("3", 5), transfer("3", 5), transfer("4", 1, to="nobody"), transfer("5", 2, mode="loose"), transfer("6", 1, mode="loose")]
    told += [transfer("6", 1, mode="loose"), transfer("6", 2, mode="loose")]  # the last one is another request under the same key
    wrong = [transfer("7", 0), transfer("", 1), ask("PUT", "/accounts/ann/x", {"amount": "much"}), ask("POST", "/nothing")]
    return told + [status for status, _ in wrong]
