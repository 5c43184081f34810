<?php
// The retrying HTTP client: php send.php URL KEY TRIES. An empty key: one of its own. Prints one JSON object.
declare(strict_types=1);

require __DIR__ . '/../src/autoload.php';

[, $url, $key, $tries] = $argv;
try {
    $answer = (new Idem\RetryingHttp((int)$tries))->send('POST', $url, 'book', [], $key === '' ? null : $key);
    echo json_encode(['status' => $answer->status, 'body' => $answer->body]), "\n";
} catch (Idem\OutcomeUnknown) {
    echo '{"error": "OutcomeUnknown"}', "\n";
} catch (RuntimeException) {
    echo '{"error": "no answer"}', "\n";
}
