"""What monitoring/ ships: promtool accepts it, its alerts fire when they should, and it names only metrics that exist."""
import json
import os
import re
import subprocess
import time
import urllib.request

from lib import IDEM, ROOT, Process, free_port

MONITORING = os.path.join(ROOT, "monitoring")


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def promtool(*argv, **kw):
    done = subprocess.run(["promtool", *argv], cwd=MONITORING, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_promtool_accepts_the_rules_and_their_tests():
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "idem.rules.test.yml")


def alerts():
    return re.findall(r"^      - alert: (\w+)", text("monitoring/idem.rules.yml"), re.M)


def test_each_alert_is_tested_and_explained_in_both_languages():
    assert len(alerts()) > 10
    fired = re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- ", text("monitoring/idem.rules.test.yml"))
    quiet = re.findall(r"alertname: (\w+), exp_alerts: \[\]", text("monitoring/idem.rules.test.yml"))
    assert fired == alerts() and quiet == alerts()
    for page in ("docs/alerts.md", "docs/alerts.zh-CN.md"):
        assert re.findall(r"^## (\w+)", text(page), re.M) == alerts()


def test_the_pages_show_the_expression_of_each_alert():
    """Once in the table, which has the time and the severity too, and once under the heading."""
    rules = re.findall(r"- alert: (\w+)\n +expr: (.*)\n(?: +for: (\w+)\n)? +labels: \{severity: (\w+)\}", text("monitoring/idem.rules.yml"))
    assert [name for name, *_ in rules] == alerts()
    for page in ("docs/alerts.md", "docs/alerts.zh-CN.md"):
        rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| `(.*)` \| (.*) \| (\w+) \|$", text(page), re.M)
        assert rows == [(name, expression, time or "–", severity) for name, expression, time, severity in rules]
        assert re.findall(r"^## (\w+)\n\n\w+[:：] ?`(.*)`$", text(page), re.M) == [rule[:2] for rule in rules]


def test_the_rules_and_the_dashboard_name_metrics_that_exist():
    known = set(re.findall(r"^\| `(\w+)`", text("docs/metrics.md"), re.M)) | {"up"}
    dashboard = json.loads(text("monitoring/grafana-dashboard.json"))
    expressions = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    expressions += re.findall(r"expr: (.*)", text("monitoring/idem.rules.yml"))
    named = set(re.findall(r"\b((?:idem|process)_\w+)", " ".join(expressions)))
    unknown = {n for n in named if n not in known and re.sub(r"_(bucket|sum|count)$", "", n) not in known}
    assert len(named) > 15 and not unknown


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_a_doubt_fires_the_alert_in_a_real_prometheus(tmp_path):
    """kill -9 of a worker, as Prometheus sees it: the alert names the server."""
    http, port = free_port(), free_port()
    config = text("monitoring/prometheus.yml").replace("127.0.0.1:7399", "127.0.0.1:%d" % http).replace("15s", "1s")
    rules = text("monitoring/idem.rules.yml").replace("idem_oldest_doubt_seconds > 60", "idem_oldest_doubt_seconds > 1")
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / "idem.rules.yml").write_text(rules)
    socket = str(tmp_path / "s")
    with Process([IDEM, "serve", "--store", "memory:", "--socket", socket, "--http", "127.0.0.1:%d" % http], ready=http):
        promtool("check", "metrics", input=get("http://127.0.0.1:%d/metrics" % http))
        begun = subprocess.run([IDEM, "begin", "--server", socket, "shop", "pay-7", "--lease", "100ms"], text=True, stdout=subprocess.PIPE)
        assert begun.stdout.startswith("started")
        with Process(["prometheus", "--config.file", str(tmp_path / "prometheus.yml"), "--storage.tsdb.path", str(tmp_path / "db"),
                      "--web.listen-address", "127.0.0.1:%d" % port], ready=port):
            deadline, firing = time.monotonic() + 90, []
            while time.monotonic() < deadline and not firing:
                time.sleep(0.5)
                told = json.loads(get("http://127.0.0.1:%d/api/v1/alerts" % port))["data"]["alerts"]
                firing = [a for a in told if a["labels"]["alertname"] == "IdemDoubt" and a["state"] == "firing"]
            assert firing and firing[0]["labels"]["instance"] == "127.0.0.1:%d" % http
