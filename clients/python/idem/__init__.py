"""Run a piece of work once, and give every caller the same result: a client of `idem serve`."""
from .claim import Claim, fingerprint
from .client import AsyncClient, Client, Replay, begin, current, default_client, once
from .errors import (Done, Error, Failed, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, ResultNotKept,
                     TokenUnknown, TokenUsed, Unavailable)

__all__ = ["AsyncClient", "Claim", "Client", "Done", "Error", "Failed", "InProgress", "LeaseLost", "Mismatch", "NotExecuted",
           "OutcomeUnknown", "Refused", "Replay", "ResultNotKept", "TokenUnknown", "TokenUsed", "Unavailable", "begin", "current",
           "default_client", "fingerprint", "once"]
