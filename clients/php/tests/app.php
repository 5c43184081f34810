<?php
// The application of clients/conformance/README.md, behind PHP's own web server: php app.php PORT FOLDER URL.
declare(strict_types=1);

use Nyholm\Psr7\Factory\Psr17Factory;
use Nyholm\Psr7\Response;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\RequestHandlerInterface;

if (PHP_SAPI === 'cli') {
    [, $port, $folder, $url] = $argv;
    foreach (['IDEM_APP_FOLDER' => $folder, 'IDEM_SERVER' => $url, 'PHP_CLI_SERVER_WORKERS' => '8'] as $name => $value) {
        putenv("$name=$value");
    }
    pcntl_exec(PHP_BINARY, ['-d', 'display_errors=stderr', '-S', "127.0.0.1:$port", __FILE__]);
}

require __DIR__ . '/../src/autoload.php';
require 'Nyholm/Psr7/autoload.php';

final class Service implements RequestHandlerInterface
{
    public function handle(ServerRequestInterface $request): ResponseInterface
    {
        $path = $request->getUri()->getPath();
        file_put_contents(getenv('IDEM_APP_FOLDER') . '/effects', "$path\n", FILE_APPEND);
        switch (preg_replace('#^/required#', '', $path)) {
            case '/orders':
                $headers = ['Content-Type' => 'application/json', 'Location' => '/orders/7', 'X-Two' => ['a', 'b'], 'Set-Cookie' => 'secret=1'];
                $answer = ['order' => 7, 'got' => (string)$request->getBody(), '名' => '书'];
                return new Response(201, $headers, json_encode($answer, JSON_UNESCAPED_UNICODE));
            case '/slow':
                sleep(3);
                return new Response(200, [], 'slow');
            case '/missing':
                return new Response(404, [], 'no such order');
            case '/throws':
                throw new RuntimeException('the service failed');
            case '/unknown':
                throw new Idem\OutcomeUnknown('the bank did not respond');
            case '/refused':
                throw new Idem\NotExecuted('the bank was not asked');
            case '/limited':
                return new Response(429);
            case '/redirect':
                return new Response(302, ['Location' => '/elsewhere']);
            case '/nothing':
                return new Response(204);
            case '/large':
                return new Response(200, [], str_repeat("\0", 3 << 20));
            case '/large-failure':
                return new Response(500, [], str_repeat("\0", 3 << 20));
            default:
                return new Response(200, [], 'fine');
        }
    }
}

/** What a framework does: the request of this process, and its answer. */
$factory = new Psr17Factory();
$request = $factory->createServerRequest($_SERVER['REQUEST_METHOD'], $_SERVER['REQUEST_URI'], $_SERVER)
    ->withBody($factory->createStreamFromFile('php://input'));
foreach (getallheaders() as $name => $value) {
    $request = $request->withHeader((string)$name, $value);
}
$options = ['deadline' => 2000];
$middleware = str_starts_with($request->getUri()->getPath(), '/required/')
    ? new Idem\Middleware(new Idem\Client(null, $options + ['wait' => 60000, 'mode' => 'loose']), $factory, $factory,
        ['required' => true, 'max_body' => 1000, 'scope' => fn ($request) => $request->getHeaderLine('X-Tenant')])
    : new Idem\Middleware(new Idem\Client(null, $options), $factory, $factory);
$response = $middleware->process($request, new Service());
http_response_code($response->getStatusCode());
header_remove('Content-Type');
foreach ($response->getHeaders() as $name => $values) {
    foreach ($values as $value) {
        header("$name: $value", false);
    }
}
echo $response->getBody();
