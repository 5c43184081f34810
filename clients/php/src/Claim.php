<?php
declare(strict_types=1);

namespace Idem;

/** Work that is yours to do. */
final class Claim
{
    /** @param array<string, mixed> $options */
    public function __construct(
        public readonly string $scope,
        public readonly string $key,
        /** Grows with every execution of a key: hand it to what the work changes. */
        public readonly int $fence,
        public readonly array $options,
        private readonly float $ends = INF,
        private readonly ?Keeper $keeper = null,
    ) {
    }

    /** Was the lease lost? Ask now and then in long work, and stop if it was. */
    public function lost(): bool
    {
        return $this->keeper !== null ? $this->keeper->lost($this) : Connection::now() >= $this->ends;
    }

    /** Throw LeaseLost if it was. */
    public function check(): void
    {
        if ($this->lost()) {
            throw new LeaseLost("the lease of $this is over");
        }
    }

    public function __toString(): string
    {
        return "{$this->scope}/{$this->key}";
    }
}
