"""The files for containers: that they parse, and say what keeps a server safe. `make image-check` runs the image."""
import os
import re
import subprocess

import pytest
import yaml

from lib import IDEM, ROOT, Server, folder

WHERE = os.path.join(ROOT, "packaging/containers")
MANIFESTS = ["kubernetes-shared.yaml", "kubernetes-journal.yaml"]


def load(name):
    with open(os.path.join(WHERE, name)) as f:
        return [part for part in yaml.safe_load_all(f) if part]


def image(name):
    """A constant of scripts/image."""
    with open(os.path.join(ROOT, "scripts/image")) as f:
        return re.search(r"^%s = (.*?)(?:  # .*)?$" % name, f.read(), re.M).group(1)


def version():
    with open(os.path.join(ROOT, "include/idem/idem.h")) as f:
        return re.search(r'#define IDEM_VERSION "(.*)"', f.read()).group(1)


def options():
    said = subprocess.run([IDEM, "serve", "--help"], text=True, check=True, stdout=subprocess.PIPE).stdout
    return {"IDEM_" + o.upper().replace("-", "_") for o in re.findall(r"^ +(?:-\w, )?--([\w-]+)", said, re.M)}


def test_the_health_check_tells_whether_a_server_answers():
    """Also one that wants a name and a secret: who can open its own socket needs none."""
    check = image("HEALTH").strip('"')
    with folder() as where:
        with open(os.open(where + "/credentials", os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("shop a-secret-of-the-shop use\n")
        env = {**os.environ, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"], "IDEM_SERVER": "unix:" + where + "/s"}
        with Server(where, "--credentials", where + "/credentials", "--trust-socket"):
            assert subprocess.run(["sh", "-c", check], env=env).returncode == 0
        assert subprocess.run(["sh", "-c", check], env=env, stderr=subprocess.DEVNULL).returncode != 0


def test_compose_starts_the_image_as_it_is_meant_to_run():
    compose, = load("compose.yaml")
    idem = compose["services"]["idem"]
    assert idem["image"] == "localhost/idem:" + version()
    assert idem["user"] == "%s:%s" % (image("USER"), image("USER"))
    assert idem["read_only"] and idem["cap_drop"] == ["ALL"] and "no-new-privileges:true" in idem["security_opt"]
    assert idem["healthcheck"]["test"] == ["CMD-SHELL", image("HEALTH").strip('"').replace("$", "$$")]
    assert set(idem["environment"]) <= options()
    assert idem["environment"]["IDEM_CREDENTIALS"] == "/run/secrets/credentials" and "credentials" in compose["secrets"]
    assert "records:/var/lib/idem" in idem["volumes"] and "records" in compose["volumes"]
    assert seconds(idem["stop_grace_period"]) > drain()


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def drain():
    """The default of drain-timeout, in which a server answers what is in flight after SIGTERM."""
    said = subprocess.run([IDEM, "serve", "--help"], text=True, check=True, stdout=subprocess.PIPE).stdout
    return seconds(re.search(r"--drain-timeout TIME.*?\(default\s+(\d+s)\)", said, re.S).group(1))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_confines_the_server_and_lets_it_drain(name):
    parts = {part["kind"]: part for part in load(name)}
    work = parts.get("Deployment") or parts["StatefulSet"]
    pod = work["spec"]["template"]["spec"]
    idem, = pod["containers"]
    user = int(image("USER"))
    assert all(part["apiVersion"] == {"Secret": "v1", "Service": "v1", "PodDisruptionBudget": "policy/v1"}.get(part["kind"], "apps/v1")
               for part in parts.values())
    assert idem["image"] == "localhost/idem:" + version()
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert idem["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert {e["name"] for e in idem["env"]} <= options()
    # Probes ask what needs no credentials, by the name of a port that there is.
    probes = {kind: idem[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == \
        {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    ports = {port["name"]: port["containerPort"] for port in idem["ports"]}
    assert all(probe["port"] in ports for probe in probes.values())
    assert {port["targetPort"] for port in parts["Service"]["spec"]["ports"]} == set(ports)
    listens = {e["name"]: e.get("value", "").rpartition(":")[2] for e in idem["env"]}
    assert (listens["IDEM_LISTEN"], listens["IDEM_HTTP"]) == (str(ports["resp"]), str(ports["http"]))
    pause = int(idem["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + drain()
    # All of them mean the same pods, and every volume is mounted somewhere.
    labels = work["spec"]["template"]["metadata"]["labels"]
    assert work["spec"]["selector"]["matchLabels"] == parts["Service"]["spec"]["selector"] == labels
    claims = [c["metadata"]["name"] for c in work["spec"].get("volumeClaimTemplates", [])]
    assert {m["name"] for m in idem["volumeMounts"]} == {v["name"] for v in pod["volumes"]} | set(claims)
    assert {m["mountPath"] for m in idem["volumeMounts"]} >= {"/run/idem", "/etc/idem"}
    if work["kind"] == "Deployment":
        budget = parts["PodDisruptionBudget"]["spec"]
        assert budget["selector"]["matchLabels"] == labels and budget["minAvailable"] < work["spec"]["replicas"]
    else:
        assert work["spec"]["replicas"] == 1 and "records" in claims and "PodDisruptionBudget" not in parts
