<?php
// The errors of the client. Four base classes tell a caller what to do next.
declare(strict_types=1);

namespace Idem;

class Error extends \RuntimeException {}

/** The request was executed before. Do not send it again. */
class Done extends Error {}

/**
 * This attempt was not executed. An earlier one with the same key may have been: keep the key.
 * Throw it in your work to say: this has certainly not happened.
 */
class NotExecuted extends Error {}

/** The request may have been executed. Throw it in your work to say: I do not know whether this has happened. */
class OutcomeUnknown extends Error {}

/** Another caller is executing the request. Ask again after so many milliseconds. */
class InProgress extends Error
{
    public function __construct(string $message, public readonly int $retryAfterMs)
    {
        parent::__construct($message);
    }
}

/** The first execution failed, and strict mode keeps that as the answer. */
class Failed extends Done
{
    public function __construct(public readonly ?string $type, public readonly string $text)
    {
        parent::__construct($type === null ? $text : "$type: $text");
    }
}

/** The first execution succeeded; its result was not kept: it was too large, or could not be written. */
class ResultNotKept extends Done {}

/** The one-time token was used before. */
class TokenUsed extends Done {}

/** The key was used before with other arguments. */
class Mismatch extends NotExecuted {}

/** There is no such token for this subject. */
class TokenUnknown extends NotExecuted {}

/** The server could not be reached in time, and nothing was executed. */
class Unavailable extends NotExecuted {}

/** The server refused the command: a wrong argument, or missing rights. */
class Refused extends NotExecuted
{
    public function __construct(public readonly string $word, string $text)
    {
        parent::__construct($word === 'ERR' ? $text : "$word $text");
    }
}

/** The work was done, but its claim had ended before the result was recorded. */
class LeaseLost extends OutcomeUnknown {}

/** The connection failed; the server may have got the command if it was sent. Callers do not see this one. */
final class Broken extends \RuntimeException
{
    public function __construct(string $message, public readonly bool $sent)
    {
        parent::__construct($message);
    }
}
