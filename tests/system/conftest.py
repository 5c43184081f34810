"""Let a test file find the helpers in tests/support when pytest is called by hand."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
