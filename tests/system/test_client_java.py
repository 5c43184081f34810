"""The Java client beyond the conformance scenarios: types, annotations, Spring, and the servlet filter in Tomcat 10 and 9."""
import http.client
import json
import os
import re
import subprocess
import xml.etree.ElementTree
import zipfile

import pytest

import middleware
import transactions
from client_builds import build_java
from transactions import database  # noqa: F401 (a fixture)
from lib import ROOT, Process, Server, folder, free_port, wait_until
from middleware import SCENARIOS, App, Play, scenario_id
from test_rights import write_credentials
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)

SOURCE = os.path.join(ROOT, "clients/java")
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]

JDBC = "/usr/share/java/postgresql.jar:/usr/share/java/mariadb-java-client.jar"


def class_path(*names):
    found = []
    for name in names:
        path = os.path.join(build_java(), name)
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
    build_java()


@pytest.fixture(scope="module")
def server():
    with folder() as where:
        server = Server(where, listen=True)
        yield server
        server.stop()


def test_the_client(built, server):
    run("ClientTest", 17, "idem://127.0.0.1:%d" % server.port, "idem+unix:" + server.socket)


def test_the_jar_has_what_others_need(built):
    """A licence, a name as a module, both filters; the pom says the same; every comment is good javadoc."""
    with zipfile.ZipFile(os.path.join(build_java(), "idem-client.jar")) as jar:
        names = set(jar.namelist())
        manifest = jar.read("META-INF/MANIFEST.MF").decode()
        assert "Automatic-Module-Name: idem.client" in manifest
        assert {"META-INF/LICENSE", "idem/IdemClient.class", "idem/jakarta/IdempotencyFilter.class", "idem/javax/IdempotencyFilter.class",
                "idem/spring/IdempotentAdvisor.class"} <= names
    pom = xml.etree.ElementTree.parse(os.path.join(SOURCE, "pom.xml")).getroot()
    say = {e.tag.split("}")[1]: e.text for e in pom}
    assert "Implementation-Version: %s\r" % say["version"] in manifest and pom.find(".//{*}license/{*}name").text == "Apache-2.0"
    sources = [os.path.join(where, f) for where, _, found in os.walk(os.path.join(SOURCE, "src/main")) for f in found]
    jars = ["tomcat10-servlet-api", "spring3-aop", "spring3-core", "aopalliance"]
    with folder() as where:
        done = subprocess.run(["javadoc", "-quiet", "-Xdoclint:all,-missing", "-Werror", "-encoding", "UTF-8", "--release", "11", "-cp",
                               ":".join("/usr/share/java/%s.jar" % j for j in jars), "-d", where, *sources], text=True, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_secret_is_sent(built):
    with folder() as where:
        path = write_credentials(where, "shop s3cret:with%s use java", "other other-secret-1234 use other")
        with Server(where, "--credentials", path, listen=True) as s:
            run("AuthTest", 1, "idem://shop:s3cret:with%%25s@127.0.0.1:%d" % s.port, "idem://shop:wrong@127.0.0.1:%d" % s.port,
                "idem://other:other-secret-1234@127.0.0.1:%d" % s.port, "idem+unix:" + s.socket, IDEM_AUTH="shop:s3cret:with%s")


def test_work_in_the_callers_own_transaction(built, postgres, mariadb):
    for database, jdbc in ((postgres, "jdbc:postgresql://127.0.0.1:%d/postgres"), (mariadb, "jdbc:mariadb://127.0.0.1:%d/shop")):
        idem("store", "init", database.url)
        run("SqlTest", 7, jdbc % database.port)


@pytest.mark.parametrize("scenario", transactions.SCENARIOS, ids=scenario_id)
def test_a_transaction_is_as_in_the_other_languages(built, database, scenario):
    transactions.play([*JAVA, "-cp", class_path("test", "idem-client.jar", "test.path") + ":" + JDBC, "idem.Driver"], database, scenario)


@pytest.fixture(scope="module", params=["10", "9"])
def tomcat(request, built):
    """A Tomcat of that version with the filter in front of a servlet."""
    version, package = request.param, {"10": "jakarta", "9": "javax"}[request.param]
    with folder() as where:
        app = App(where, [*JAVA, "-cp", class_path("test" + version, "idem-client.jar", "tomcat%s.path" % version), "idem.%s.FilterApp" % package])
        yield app
        app.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=scenario_id)
def test_the_filter_answers_as_the_gateway_does(tomcat, scenario):
    tomcat.play(scenario)


def test_a_guarded_request_is_not_handled_asynchronously(tomcat):
    play = Play(tomcat)
    assert [play.send({"path": "/async", "key": "async"}).status for _ in range(2)] == [500, 500]
    assert play.ran("/async") == 1


def test_a_form_is_read_by_the_servlet_as_well(tomcat):
    answer = Play(tomcat).send({"path": "/form?q=1%202", "key": "form", "body": "name=%E4%B9%A6+x&q=3", "type": "application/x-www-form-urlencoded"})
    assert answer.body.decode() == "书 x 1 2"


def test_a_client_that_goes_away_does_not_stop_the_work(tomcat):
    middleware.test_a_client_that_goes_away_does_not_stop_the_work(tomcat)


def test_a_request_whose_body_ends_early_does_not_run(tomcat):
    middleware.test_a_request_whose_body_ends_early_does_not_run(tomcat)


@pytest.mark.parametrize("path", ["/upload", "/upload?stream"])
def test_an_upload_that_ends_early_can_be_sent_again(tomcat, path):
    middleware.test_an_upload_that_ends_early_can_be_sent_again(tomcat, path)


def test_a_client_retries_until_there_is_an_answer(tomcat):
    key, play = "retry-doubt", Play(tomcat)
    with tomcat.server.client() as c:
        c("BEGIN", "anonymous", key, "LEASE", "100")
        assert wait_until(lambda: c("BEGIN", "anonymous", key)[0] == "doubt")
    run("HttpTest", 4, tomcat.url, key)
    assert play.ran("/slow") == 1


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
        var seen = new ArrayList<String>();
        record Mail(String id, String body) implements Message {
            static List<String> seen;
            public void acknowledge() { seen.add("acknowledged"); }
            public void putBack() { seen.add("put back"); }
            public void moveTo(String queue) { seen.add(queue); }
        }
        Mail.seen = seen;
        client.begin("m-3", client.options().scope("orders/shop").lease(Duration.ofMillis(1)));
        client.begin("m-4", client.options().scope("orders/shop"));
        Thread.sleep(100);
        for (var mail : List.of(new Mail("m-1", "a"), new Mail("m-1", "a"), new Mail("m-1", "b"), new Mail("m-3", "a"), new Mail("m-4", "a")))
            onMessage(client, mail);
        equal(seen, List.of("acknowledged", "acknowledged", "orders.dead", "orders.doubt", "put back"));
        for (var repeat : List.of(IdemException.InProgress.class, IdemException.NotExecuted.class, IdemException.Failed.class)) {
            var paid = repeat.getSimpleName();
            Bank bank = (reference, asked) -> {
                equal(reference, paid);
                if (repeat == IdemException.InProgress.class) throw new SocketTimeoutException();
                if (repeat == IdemException.Failed.class) throw new Declined();
                new Socket("127.0.0.1", 1);
                return null;
            };
            for (int i = 0; i < 2; i++)
                try {
                    client.once(paid, Order.class, () -> pay(bank, paid, cart));
                    throw new AssertionError(paid);
                } catch (Declined | IdemException e) {
                    equal(e.getClass(), i == 1 || repeat == IdemException.NotExecuted.class ? repeat
                        : repeat == IdemException.Failed.class ? Declined.class : IdemException.OutcomeUnknown.class);
                }
        }
        equal(client.once("NotExecuted", Order.class, () -> pay((reference, asked) -> order, "NotExecuted", cart)), order);
        equal(order, client.once("order-7", Order.class, client.options().arguments(cart), () -> new Order("another", 0)));
        equal(second.total(), 20);
        equal(new String(answer.body()), "run 1");
        equal(new String(http.send(request, "order-10").body()), "run 1");
        try (var beans = new AnnotationConfigApplicationContext(Config.class)) {
            equal(beans.getBean(Orders.class).place("7", cart), orders.place("7", cart));
        }
        tomcat.stop();
        System.out.println("the page works");
    }
}
"""


def page_text(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as f:
        return f.read()


def blocks(page):
    return re.findall(r"```java\n(.*?)```", page_text(page), re.S)


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
