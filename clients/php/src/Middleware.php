<?php
declare(strict_types=1);

namespace Idem;

use Psr\Http\Message\ResponseFactoryInterface;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Message\StreamFactoryInterface;
use Psr\Http\Message\UploadedFileInterface;
use Psr\Http\Server\MiddlewareInterface;
use Psr\Http\Server\RequestHandlerInterface;

/**
 * Speaks Idempotency-Key for the handlers behind it (PSR-15), with the statuses and problems of the gateway (docs/gateway.md).
 *
 *     $app->add(new Idem\Middleware($client, $psr17, $psr17, ['scope' => fn ($request) => $request->getAttribute('user')]));
 *
 * Options: scope (a function of the request that says who asks; without one it is a digest of the Authorization header; a request for which
 * it gives nothing is not guarded), required (false), methods (POST and PATCH), max_body (1 MiB). The handler finds its Claim in the
 * request's attribute 'idem.claim'.
 */
final class Middleware implements MiddlewareInterface
{
    /** @var array<string, mixed> */
    private readonly array $options;

    /** @param array<string, mixed> $options */
    public function __construct(
        private readonly Client $client,
        private readonly ResponseFactoryInterface $responses,
        private readonly StreamFactoryInterface $streams,
        array $options = [],
    ) {
        $known = ['scope' => self::caller(...), 'required' => false, 'methods' => ['POST', 'PATCH'], 'max_body' => 1 << 20];
        if ($wrong = array_diff_key($options, $known)) {
            throw new \InvalidArgumentException('there is no option ' . implode(', ', array_keys($wrong)));
        }
        $this->options = $options + $known;
        foreach ($this->options['methods'] as $method) { // a request would never match it, and pass unguarded
            if ($method !== strtoupper($method)) {
                throw new \InvalidArgumentException('methods are written in capitals: ' . strtoupper($method) . ", not $method");
            }
        }
    }

    private static function caller(ServerRequestInterface $request): string
    {
        return $request->hasHeader('Authorization')
            ? 'caller-' . substr(hash('sha256', $request->getHeaderLine('Authorization')), 0, 40) : 'anonymous';
    }

    public function process(ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        $keys = $request->getHeader('Idempotency-Key');
        if (!in_array($request->getMethod(), $this->options['methods'], true) || !$keys && !$this->options['required']) {
            return $handler->handle($request);
        }
        if (!$keys) {
            return $this->response(HttpAnswer::problem('key-missing'));
        }
        try {
            $key = count($keys) === 1 ? HttpAnswer::key($keys[0]) : throw new \InvalidArgumentException('The key was sent twice.');
        } catch (\InvalidArgumentException $e) {
            return $this->response(HttpAnswer::problem('key-malformed', detail: $e->getMessage()));
        }
        $who = $this->options['scope']($request);
        $who = $who === null || $who === false ? '' : Client::checkScope($who);
        if ($who !== '') {
            return $this->guard($key, $who, $request, $handler);
        }
        return $this->options['required'] ? $this->response(HttpAnswer::problem('scope-missing')) : $handler->handle($request);
    }

    private function guard(string $key, string $who, ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        $digest = '';
        // A browser sends a multipart body with another boundary at every try: it stays out of the fingerprint.
        if (!str_starts_with(strtolower($request->getHeaderLine('Content-Type')), 'multipart/')) {
            $body = $this->body($request);
            if ($body === null) {
                return $this->response(HttpAnswer::problem('body-too-large'));
            }
            $digest = hash('sha256', $body);
            $request = $request->withBody($this->streams->createStream($body));
        } elseif (self::isCut($request)) {
            return $this->response(new HttpAnswer(400, ['Content-Type' => ['text/plain; charset=utf-8']], "The body ended early.\n"));
        }
        try {
            $got = $this->client->claim($key, ['scope' => $who, 'arguments' => [$request->getMethod(), $request->getRequestTarget(), $digest]]
                + $this->client->options);
        } catch (Error $e) {
            return $this->response(self::refused($e));
        }
        if ($got instanceof Stored) {
            return $this->response(self::replay($got));
        }
        $abort = ignore_user_abort(true); // a client that goes away does not stop the work
        try {
            return $this->run($got, $request, $handler);
        } finally {
            ignore_user_abort((bool)$abort);
        }
    }

    /** PHP has read an upload before the program starts: it says of a file that it arrived in part. */
    private static function isCut(ServerRequestInterface $request): bool
    {
        $files = $request->getUploadedFiles();
        $cut = false;
        array_walk_recursive($files, function (UploadedFileInterface $file) use (&$cut): void {
            $cut = $cut || $file->getError() === UPLOAD_ERR_PARTIAL;
        });
        return $cut;
    }

    private function body(ServerRequestInterface $request): ?string
    {
        $stream = $request->getBody();
        if ($stream->isSeekable()) {
            $stream->rewind();
        }
        $body = '';
        while (!$stream->eof() && strlen($body) <= $this->options['max_body']) {
            $body .= $stream->read(65536);
        }
        return strlen($body) > $this->options['max_body'] ? null : $body;
    }

    private static function refused(Error $e): HttpAnswer
    {
        if ($e instanceof NotExecuted && !$e instanceof Mismatch) {
            error_log("idem: a request was not executed: {$e->getMessage()}");
        }
        return match (true) {
            $e instanceof Mismatch => HttpAnswer::problem('mismatch'),
            $e instanceof InProgress => HttpAnswer::problem('in-progress', retryAfter: max(1, (int)ceil($e->retryAfterMs / 1000))),
            // The key was checked: what is left is the scope.
            $e instanceof Refused && $e->word === 'ERR' => HttpAnswer::problem('scope-refused'),
            $e instanceof NotExecuted => HttpAnswer::problem('not-executed', retryAfter: 1),
            default => HttpAnswer::problem('outcome-unknown'),
        };
    }

    private static function replay(Stored $found): HttpAnswer
    {
        return match (true) {
            $found->result !== null && $found->kind === 'http' => HttpAnswer::replayed($found->result),
            $found->state === 'failed' => HttpAnswer::problem($found->kind === 'http' ? 'failed' : 'settled'),
            $found->result === null => HttpAnswer::problem('not-replayable'),
            default => HttpAnswer::settled($found->result),
        };
    }

    private function run(Claim $claim, ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        try {
            $response = $handler->handle($request->withAttribute('idem.claim', $claim));
            $answer = new HttpAnswer($response->getStatusCode(), $response->getHeaders(), (string)$response->getBody());
            $response = $this->complete($response, $answer->body);
        } catch (OutcomeUnknown $e) {
            return $this->recorded($claim, fn () => $this->client->abandon($claim),
                HttpAnswer::problem('outcome-unknown', 504, 'The service does not know whether the request was done.'));
        } catch (\Throwable $e) {
            if (Client::isNotExecuted($e)) {
                return $this->recorded($claim, fn () => $this->client->release($claim), HttpAnswer::problem('not-executed', retryAfter: 1));
            }
            error_log("idem: the service failed; that is recorded as its answer: $e");
            $answer = new HttpAnswer(500, ['Content-Type' => ['text/plain; charset=utf-8']], "status 500\n");
            $response = $answer;
        }
        $status = $answer->status;
        $free = $status === 425 || $status === 429 || $claim->options['mode'] === 'loose' && $status >= 400;
        return $this->recorded($claim, fn () => $free ? $this->client->release($claim)
            : $this->client->finish($claim, $status >= 400 ? 'FAILED' : 'SUCCEEDED', $answer->stored(), 'http'), $response);
    }

    private function recorded(Claim $claim, \Closure $record, HttpAnswer|ResponseInterface $answer): ResponseInterface
    {
        try {
            $record();
        } catch (Error $e) {
            error_log("idem: the answer to $claim could not be recorded: {$e->getMessage()}");
            $answer = HttpAnswer::problem('outcome-unknown', 504,
                'The request was executed and its answer could not be recorded. Do not repeat it with another key.');
        }
        return $answer instanceof HttpAnswer ? $this->response($answer) : $answer;
    }

    private function response(HttpAnswer $answer): ResponseInterface
    {
        $response = $this->responses->createResponse($answer->status);
        foreach ($answer->headers as $name => $values) {
            $response = $response->withHeader((string)$name, $values);
        }
        return $this->complete($response, $answer->body);
    }

    /** With its body, which was read once and may not be readable twice, and its length. */
    private function complete(ResponseInterface $response, string $body): ResponseInterface
    {
        $response = $response->withoutHeader('Transfer-Encoding')->withBody($this->streams->createStream($body));
        return in_array($response->getStatusCode(), [204, 304], true) ? $response->withoutHeader('Content-Length')
            : $response->withHeader('Content-Length', (string)strlen($body));
    }
}
