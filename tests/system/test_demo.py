"""`make demo` tells its story, and leaves nothing behind."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_demo_plays_its_story_and_cleans_up():
    done = subprocess.run([os.path.join(ROOT, "scripts/demo"), "--once"], cwd=ROOT, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "IDEM_DEMO_PORT": "0"})
    assert done.returncode == 0, done.stdout
    assert "/console (log in as: ops" in done.stdout
    assert "replayed: 199" in done.stdout and "refused with 503 while the engine was away" in done.stdout
