"""`make demo` tells its story, and leaves nothing behind."""
import os
import signal
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_demo_plays_its_story_and_cleans_up():
    done = subprocess.run([os.path.join(ROOT, "scripts/demo"), "--once"], cwd=ROOT, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "IDEM_DEMO_PORT": "0"})
    assert done.returncode == 0, done.stdout
    assert "/console (log in as: ops" in done.stdout
    assert "replayed: 199" in done.stdout and "refused with 503 while the engine was away" in done.stdout


def test_the_demo_removes_its_folder_if_it_is_told_twice_to_stop(tmp_path):
    """As when make and the demo get the signal, and make passes it on."""
    demo = subprocess.Popen([os.path.join(ROOT, "scripts/demo")], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, "IDEM_DEMO_PORT": "0", "TMPDIR": str(tmp_path)})
    try:
        for line in demo.stdout:
            if line.startswith("Running until"):
                break
        assert os.listdir(tmp_path)
        for _ in range(2):
            demo.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert os.listdir(tmp_path) == []
