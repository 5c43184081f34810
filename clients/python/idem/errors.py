"""The errors of the client. Four base classes tell a caller what to do next."""
from typing import Any, Optional


class Error(Exception):
    """Every error of this package."""


class Done(Error):
    """The request was executed before. Do not send it again."""


class NotExecuted(Error):
    """This attempt was not executed. An earlier one with the same key may have been: keep the key.

    Raise it in your work to say: this has certainly not happened.
    """


class InProgress(Error):
    """Another caller is executing the request. Ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 0.0):
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(Error):
    """The request may have been executed. Do not retry blindly: look it up, or settle it.

    Raise it in your work to say: I do not know whether this has happened.
    """


class Failed(Done):
    """The first execution failed, and strict mode keeps that as the answer."""

    def __init__(self, type_: Optional[str], message: str):
        super().__init__("%s: %s" % (type_, message) if type_ else message)
        self.type, self.message = type_, message


class ResultNotKept(Done):
    """The first execution succeeded; its result was not kept: it was too large, or could not be written."""


class Replay(Done):
    """`begin` found the key done: `value` is the stored result."""

    def __init__(self, value: Any):
        super().__init__("done before")
        self.value = value


class TokenUsed(Done):
    """The one-time token was used before."""


class Mismatch(NotExecuted):
    """The key was used before with other arguments."""


class TokenUnknown(NotExecuted):
    """There is no such token for this subject."""


class Unavailable(NotExecuted):
    """The server could not be reached in time, and nothing was executed."""


class Refused(NotExecuted):
    """The server refused the command: a wrong argument, or missing rights."""

    def __init__(self, word: str, text: str):
        super().__init__(text if word == "ERR" else "%s %s" % (word, text))
        self.word = word


class LeaseLost(OutcomeUnknown):
    """The work was done, but its claim had ended before the result was recorded."""


def is_not_executed(error: object) -> bool:
    """The work says that it has certainly not happened. What another call inside of it was told is about that call only."""
    return isinstance(error, NotExecuted) and not isinstance(error, (Mismatch, TokenUnknown, Unavailable, Refused))
