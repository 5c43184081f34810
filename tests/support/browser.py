"""A real Chromium, driven over WebDriver (which is JSON over HTTP: no library needed)."""
import base64
import json
import re
import tempfile
import time
import urllib.error
import urllib.request

from lib import Process, free_port

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that the standard gives it


class Browser(Process):
    def __init__(self):
        self.port = free_port()
        self.profile = tempfile.TemporaryDirectory(prefix="idem-chromium-", ignore_cleanup_errors=True)
        super().__init__(["/usr/bin/chromedriver", "--port=%d" % self.port], ready=self.port)
        self.session = ""
        options = {"binary": "/usr/bin/chromium", "args": [*FLAGS, "--user-data-dir=" + self.profile.name]}
        made = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = "/session/" + made["sessionId"]
        self.ask("POST", "/timeouts", {"script": 50000})

    def ask(self, method, path, body=None):
        request = urllib.request.Request("http://127.0.0.1:%d%s%s" % (self.port, self.session, path), method=method,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode(errors="replace")[:1000])

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def back(self):
        self.ask("POST", "/back", {})

    def reload(self):
        self.ask("POST", "/refresh", {})

    def new_tab(self):
        """Another tab takes the place of this one, which is closed."""
        made = self.ask("POST", "/window/new", {"type": "tab"})
        self.ask("DELETE", "/window")
        self.ask("POST", "/window", {"handle": made["handle"]})

    def url(self):
        return self.ask("GET", "/url")

    def run(self, script, *args):
        """What a function with this body returns."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(args)})

    def click(self, selector, times=1):
        """The mouse, as a hand would: down and up, so many times in a row."""
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        press = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.ask("POST", "/actions", {"actions": [{
            "type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": [{"type": "pointerMove", "x": 0, "y": 0, "origin": {ELEMENT: found[ELEMENT]}}] + press * times}]})

    def element(self, selector):
        return "/element/" + self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def type(self, selector, text):
        """The keyboard, into an element that is emptied before, as soon as it can be used."""
        end = time.monotonic() + 20
        while True:
            try:
                found = self.element(selector)
                self.ask("POST", found + "/clear", {})
                break
            except AssertionError as error:  # a dialog opens, or is drawn again
                if time.monotonic() > end or not re.search("not interactable|stale element|no such element", str(error)):
                    raise
                time.sleep(0.05)
        self.ask("POST", found + "/value", {"text": text})

    def choose(self, selector, value):
        self.ask("POST", self.element("%s option[value='%s']" % (selector, value)) + "/click", {})

    def keys(self, text):
        """The keyboard, wherever the focus is."""
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": [
            {"type": kind, "value": c} for c in text for kind in ("keyDown", "keyUp")]}]})

    def size(self, width, height):
        """Of the page, as a phone of that width has it."""
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}})

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.ask("GET", "/screenshot")))

    def complaints(self):
        """What the browser wrote to its console since we last asked, but for what scripts say on purpose."""
        return [e["message"] for e in self.ask("POST", "/se/log", {"type": "browser"}) if e["level"] in ("SEVERE", "WARNING")]

    def stop(self, *args):
        if self.session and self.process.poll() is None:
            self.ask("DELETE", "")
            self.session = ""
        code = super().stop(*args)
        self.profile.cleanup()
        return code
