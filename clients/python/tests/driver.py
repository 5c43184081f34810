"""The conformance driver of the Python client: see clients/conformance/README.md."""
import json
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import idem  # noqa: E402

CLASSES = [(idem.Done, "done"), (idem.NotExecuted, "not_executed"), (idem.InProgress, "in_progress"),
           (idem.OutcomeUnknown, "unknown")]
output = threading.Lock()


def add_line(path, text):
    with open(path, "a") as f:
        f.write("%s\n" % text)


def work(steps, ran):
    ran.append(True)
    for step in steps:
        if "append" in step:
            fence = idem.current().fence if idem_runs() else 0
            add_line(step["append"], fence)
        elif "sleep_ms" in step:
            time.sleep(step["sleep_ms"] / 1000)
        elif "await_loss_ms" in step:
            lost = idem.current().lost.wait(step["await_loss_ms"] / 1000)
            add_line(step["file"], "lost" if lost else "kept")
        elif "die" in step:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "return" in step:
            return step["return"]
        elif "return_text" in step:
            return "x" * step["return_text"]
        elif "raise" in step:
            name, message = step["raise"]
            raise type(name, (Exception,), {})(message)
        elif "not_executed" in step:
            raise idem.NotExecuted("nothing happened")
        elif "unknown" in step:
            raise idem.OutcomeUnknown("who knows")
    return None


def idem_runs():
    try:
        return idem.current() is not None
    except RuntimeError:
        return False


def once(client, command):
    o, ran, answer = command.get("options", {}), [], {}
    options = {k[:-3]: o[k] / 1000 for k in ("lease_ms", "ttl_ms", "wait_ms", "deadline_ms") if k in o}
    options.update({k: o[k] for k in ("mode", "fail_open") if k in o}, token=command.get("token", False))
    if "arguments" in command:
        options["arguments"] = command["arguments"]
    try:
        answer["value"] = client.once(command["key"], lambda: work(command["work"], ran), scope=command["scope"], **options)
        answer["class"] = "done"
    except Exception as e:
        answer.update(told(e))
    return {**answer, "ran": bool(ran)}


def told(e):
    answer = {"class": next((name for kind, name in CLASSES if isinstance(e, kind)), "error"), "error": type(e).__name__,
              "type": type(e).__name__, "message": str(e)}
    if isinstance(e, idem.Failed):
        answer.update(type=e.type, message=e.message)
    return answer


def perform(client, command):
    try:
        if command["op"] == "once":
            answer = once(client, command)
        elif command["op"] == "issue":
            answer = {"class": "done", "value": client.issue(command["subject"])}
        elif command["op"] == "redeem":
            client.redeem(command["token"], command["subject"])
            answer = {"class": "done", "value": "redeemed"}
        else:
            answer = {"class": "done", "value": idem.fingerprint(command["arguments"])}
    except Exception as e:
        answer = told(e)
    with output:
        print(json.dumps({"id": command["id"], **answer}), flush=True)


def main():
    client = idem.Client(sys.argv[1])
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=perform, args=(client, json.loads(line))))
        threads[-1].start()
    for thread in threads:
        thread.join()


main()
