<?php
// For programs without Composer: require this file.
declare(strict_types=1);

require_once __DIR__ . '/errors.php';
spl_autoload_register(static function (string $class): void {
    if (preg_match('/^Idem\\\\(\w+)$/', $class, $found) && is_file(__DIR__ . "/$found[1].php")) {
        require __DIR__ . "/$found[1].php";
    }
});
