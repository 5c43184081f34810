"""The pages of docs/sql for other languages: their code is taken from the page and run against a real PostgreSQL and a
real MariaDB. Six callers with one key have one effect and one answer; a refusal is undone, recorded and replayed; what breaks
leaves nothing behind and may run again; the same key with another body is a mismatch."""
import json
import os
import re
import subprocess

import pytest

from client_builds import node_packages
from lib import ROOT, build_go, folder
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)

LANGUAGES = {"python": "python", "node": "js", "go": "go", "java": "java"}
DATABASES = ["postgres", "mysql"]


def blocks(page):
    """The code of a page, by the database whose chapter it stands in."""
    with open(os.path.join(ROOT, "docs/sql", page + ".md"), encoding="utf-8") as f:
        text = f.read()
    parts = re.split(r"^## (?:PostgreSQL|MariaDB)$", text, flags=re.M)[1:]
    assert len(parts) == 2, page
    return {name: re.findall(r"```%s\n(.*?)```" % LANGUAGES[page], part, re.S) for name, part in zip(DATABASES, parts)}


CODE = {page: blocks(page) for page in LANGUAGES}

# What every program below does, in order: six at once with key one; two, refused after its effect, then again; three, which
# breaks after its effect, then again; one with another body. A busy key, a deadlock and a lock time-out are tried again, as the pages say.

PYTHON = r"""
import concurrent.futures, sys, time
port = int(sys.argv[1])

def connect():
    %(connect)s

def again(seq, business, body=b"body"):
    with connect() as conn:
        while True:
            try:
                return place_order(conn, "python", seq, body, business)
            except Busy as e:
                if str(e) != "busy":
                    return str(e)
            except %(conflict)s:
                pass
            time.sleep(0.02)

def good(seq):
    def business(db):
        db.execute("update guide set n = n - 1 where name = 'python'")
        return {"order": seq}
    return business

def refused(db):
    good("")(db)
    raise Refused("out of stock")

def broken(db):
    good("")(db)
    raise ValueError("broken")

with concurrent.futures.ThreadPoolExecutor(6) as pool:
    for answer in pool.map(lambda _: again("one", good("one")), range(6)):
        print(json.dumps(answer))
print(json.dumps(again("two", refused)))
print(json.dumps(again("two", good("two"))))
try:
    again("three", broken)
except ValueError as e:
    print(e)
print(json.dumps(again("three", good("three"))))
print(again("one", good("one"), b"another body"))
"""

PYTHON_WITH = {
    "postgres": {"connect": 'return psycopg.connect(host="127.0.0.1", port=port, user="idem", dbname="postgres")',
                 "conflict": "(psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)"},
    "mysql": {"connect": 'return pymysql.connect(host="127.0.0.1", port=port, user="idem", password="secret", '
                         'database="shop")',
              "conflict": "pymysql.err.OperationalError"}}

NODE = r"""
const port = Number(process.argv[2]);
const pool = %(pool)s;
const effect = (db) => db.query("update guide set n = n - 1 where name = 'node'");
const good = (seq) => async (db) => { await effect(db); return {order: seq}; };
const refused = async (db) => { await effect(db); throw new Refused('out of stock'); };
const broken = async (db) => { await effect(db); throw new Error('broken'); };
async function again(seq, business, body = 'body') {
  for (;;) {
    try {
      return JSON.stringify(await placeOrder(pool, 'node', seq, body, business));
    } catch (e) {
      if (['broken', 'mismatch'].includes(e.message)) return e.message;
      if (!(e instanceof Busy && e.message === 'busy') && !['40001', '40P01'].includes(e.code) && ![1213, 1205].includes(e.errno))
        throw e;
    }
    await new Promise((go) => setTimeout(go, 20));
  }
}
(async () => {
  for (const answer of await Promise.all([1, 2, 3, 4, 5, 6].map(() => again('one', good('one'))))) console.log(answer);
  console.log(await again('two', refused));
  console.log(await again('two', good('two')));
  console.log(await again('three', broken));
  console.log(await again('three', good('three')));
  console.log(await again('one', good('one'), 'another body'));
  await pool.end();
})();
"""

NODE_WITH = {
    "postgres": {"pool": "new (require('pg').Pool)({host: '127.0.0.1', port, user: 'idem', database: 'postgres'})"},
    "mysql": {"pool": "require('mysql2/promise').createPool({host: '127.0.0.1', port, user: 'idem', password: 'secret', "
                      "database: 'shop'})"}}

GO_HEAD = """package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	_ "%s"
)

"""

GO = r"""
func again(db *sql.DB, seq, body string, business func(*sql.Tx) ([]byte, error)) string {
	for {
		answer, err := placeOrder(context.Background(), db, "go", seq, []byte(body), business)
		var busy Busy
		if err == nil {
			return string(answer)
		} else if !(errors.As(err, &busy) && busy == "busy") && !strings.Contains(err.Error(), "deadlock") &&
			!strings.Contains(err.Error(), "1213") && !strings.Contains(err.Error(), "1205") {
			return err.Error()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func main() {
	db, err := sql.Open("%(driver)s", fmt.Sprintf("%(url)s", os.Args[1]))
	if err != nil {
		panic(err)
	}
	effect := func(tx *sql.Tx) {
		if _, err := tx.Exec("update guide set n = n - 1 where name = 'go'"); err != nil {
			panic(err)
		}
	}
	good := func(seq string) func(*sql.Tx) ([]byte, error) {
		return func(tx *sql.Tx) ([]byte, error) {
			effect(tx)
			return []byte(fmt.Sprintf(`{"order": "%%s"}`, seq)), nil
		}
	}
	told := make(chan string)
	for i := 0; i < 6; i++ {
		go func() { told <- again(db, "one", "body", good("one")) }()
	}
	for i := 0; i < 6; i++ {
		fmt.Println(<-told)
	}
	fails := func(with error) func(*sql.Tx) ([]byte, error) {
		return func(tx *sql.Tx) ([]byte, error) {
			effect(tx)
			return nil, with
		}
	}
	fmt.Println(again(db, "two", "body", fails(Refused(`{"error": "out of stock"}`))))
	fmt.Println(again(db, "two", "body", good("two")))
	fmt.Println(again(db, "three", "body", fails(errors.New("broken"))))
	fmt.Println(again(db, "three", "body", good("three")))
	fmt.Println(again(db, "one", "another body", good("one")))
}
"""

GO_WITH = {
    "postgres": {"package": "github.com/lib/pq", "driver": "postgres",
                 "url": "postgres://idem@127.0.0.1:%s/postgres?sslmode=disable"},
    "mysql": {"package": "github.com/go-sql-driver/mysql", "driver": "mysql", "url": "idem:secret@tcp(127.0.0.1:%s)/shop"}}

JAVA_HEAD = """import java.security.*;
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import javax.sql.DataSource;

public class Guide {
"""

JAVA = r"""
    static DataSource pool;

    static String again(String seq, String body, Business business) throws Exception {
        for (;;) {
            try {
                return new String(placeOrder(pool, "java", seq, body.getBytes(), business));
            } catch (Busy e) {
                if (!e.getMessage().equals("busy")) return e.getMessage();
            } catch (IllegalStateException e) {
                return e.getMessage();
            } catch (SQLException e) {
                if (!List.of("40001", "40P01").contains(e.getSQLState()) && e.getErrorCode() != 1213
                        && e.getErrorCode() != 1205) throw e;
            }
            Thread.sleep(20);
        }
    }

    static void effect(Connection db) throws SQLException {
        try (var s = db.createStatement()) {
            s.execute("update guide set n = n - 1 where name = 'java'");
        }
    }

    static Business good(String seq) {
        return db -> { effect(db); return ("{\"order\": \"" + seq + "\"}").getBytes(); };
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        %(pool)s
        var crowd = Executors.newFixedThreadPool(6);
        for (var answer : crowd.invokeAll(Collections.nCopies(6, () -> again("one", "body", good("one")))))
            System.out.println(answer.get());
        crowd.shutdown();
        System.out.println(again("two", "body", db -> {
            effect(db);
            throw new Refused("{\"error\": \"out of stock\"}".getBytes());
        }));
        System.out.println(again("two", "body", good("two")));
        System.out.println(again("three", "body", db -> { effect(db); throw new IllegalStateException("broken"); }));
        System.out.println(again("three", "body", good("three")));
        System.out.println(again("one", "another body", good("one")));
    }
}
"""

JAVA_WITH = {
    "postgres": {"pool": 'var p = new org.postgresql.ds.PGSimpleDataSource(); p.setURL("jdbc:postgresql://127.0.0.1:" + '
                         'port + "/postgres?user=idem"); pool = p;'},
    "mysql": {"pool": 'pool = new org.mariadb.jdbc.MariaDbDataSource("jdbc:mariadb://127.0.0.1:" + port + '
                      '"/shop?user=idem&password=secret");'}}

JARS = "/usr/share/java/postgresql.jar:/usr/share/java/mariadb-java-client.jar"


def write(where, name, text):
    path = os.path.join(where, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def python(where, database):
    return ["/usr/bin/python3", write(where, "guide.py", CODE["python"][database][0] + PYTHON % PYTHON_WITH[database])]


def node(where, database):
    return ["node", write(where, "guide.cjs", CODE["node"][database][0] + NODE % NODE_WITH[database])]


def go(where, database):
    with_ = GO_WITH[database]
    return [build_go(write(where, "guide.go", GO_HEAD % with_["package"] + CODE["go"][database][0] + GO % with_))]


def java(where, database):
    code = CODE["java"]["postgres"][0]
    if database == "mysql":  # the page says: the same, but for two methods
        code, gone = re.subn(r"^static (?:Begun begin|void finish)\(.*?^}\n", "", code, flags=re.M | re.S)
        assert gone == 2
        code += CODE["java"]["mysql"][0]
    source = write(where, "Guide.java", JAVA_HEAD + code + JAVA % JAVA_WITH[database])
    subprocess.run(["javac", "-d", where, "-cp", JARS, source], check=True, timeout=120)
    return ["java", "-Xshare:auto", "-cp", where + ":" + JARS, "Guide"]


@pytest.fixture(params=DATABASES)
def database(request):
    server = request.getfixturevalue({"mysql": "mariadb"}.get(request.param, request.param))
    idem("store", "init", server.url)
    server.name = request.param
    return server


def play(argv, database, language, **env):
    database.sql("create table if not exists guide (name varchar(20) primary key, n int not null)")
    database.sql("delete from guide where name = '%s'" % language)
    database.sql("delete from %s where scope = '%s'" % (
        "idem.idem_record" if database.name == "postgres" else "idem_record", language))
    database.sql("insert into guide values ('%s', 100)" % language)
    done = subprocess.run([*argv, str(database.port)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=120, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines(), 100 - int(database.sql("select n from guide where name = '%s'" % language))


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_the_page_does_what_it_says(database, language):
    with folder() as where:
        argv = {"python": python, "node": node, "go": go, "java": java}[language](where, database.name)
        lines, effects = play(argv, database, language, NODE_PATH=node_packages())
    assert len(lines) == 11, lines
    assert [json.loads(line)["order"] for line in lines[:6]] == ["one"] * 6, lines
    assert [json.loads(line) for line in lines[6:8]] == [{"error": "out of stock"}] * 2, lines
    assert lines[8] == "broken" and json.loads(lines[9]) == {"order": "three"} and lines[10] == "mismatch", lines
    assert effects == 2
    for seq, state, answer in (("one", "succeeded", {"order": "one"}), ("two", "failed", {"error": "out of stock"}),
                               ("three", "succeeded", {"order": "three"})):
        got = idem("get", language, seq, "--store", database.url)
        assert state in got and json.loads(re.search(r"{.*}", got).group(0)) == answer, got
