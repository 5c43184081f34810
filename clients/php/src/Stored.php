<?php
declare(strict_types=1);

namespace Idem;

/** What was done before. */
final class Stored
{
    public function __construct(
        /** "succeeded" or "failed" */
        public readonly string $state,
        /** "raw", "http" or "exec": docs/results.md */
        public readonly ?string $kind,
        /** null: it was not kept */
        public readonly ?string $result,
    ) {
    }

    /** @param array<string, mixed> $options */
    public function value(string $key, array $options): mixed
    {
        $where = "{$options['scope']}/$key";
        if ($this->state === 'failed') {
            $told = json_decode((string)$this->result, true);
            throw isset($told['error'], $told['message']) ? new Failed($told['error'], $told['message'])
                : new Failed(null, (string)$this->result);
        }
        if ($this->result === null) {
            throw new ResultNotKept("$where was done; its result was not kept: it was too large, or could not be written");
        }
        try {
            return $options['load']($this->result);
        } catch (\Throwable $e) {
            throw new Done("$where was done; its result cannot be read: {$e->getMessage()}", 0, $e);
        }
    }
}
