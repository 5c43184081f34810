"""Run a piece of work once, and give every caller the same result: a client of `idem serve`."""
from .claim import Claim, Options, Stored, fingerprint
from .client import AsyncClient, Client, begin, current, default_client, once
from .errors import (Done, Error, Failed, InProgress, LeaseLost, Mismatch, NotExecuted, OutcomeUnknown, Refused, Replay,
                     ResultNotKept, TokenUnknown, TokenUsed, Unavailable)

__all__ = ["AsyncClient", "Claim", "Client", "Done", "Error", "Failed", "InProgress", "LeaseLost", "Mismatch", "NotExecuted",
           "Options", "OutcomeUnknown", "Refused", "Replay", "ResultNotKept", "Stored", "TokenUnknown", "TokenUsed", "Unavailable",
           "begin", "current", "default_client", "fingerprint", "once"]
