<?php
declare(strict_types=1);

namespace Idem;

/** @internal */
final class Json
{
    private const FLAGS = JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES;

    public static function dump(mixed $value): string
    {
        return json_encode($value, self::FLAGS | JSON_PRESERVE_ZERO_FRACTION);
    }

    public static function load(string $json): mixed
    {
        return json_decode($json, true, 512, JSON_THROW_ON_ERROR);
    }

    /** As a failure is stored. */
    public static function failure(\Throwable $error): string
    {
        return (string)json_encode(['error' => (new \ReflectionClass($error))->getShortName(), 'message' => $error->getMessage()],
            JSON_UNESCAPED_UNICODE | JSON_INVALID_UTF8_SUBSTITUTE);
    }

    /** JSON that two languages write alike: see clients/README.md. An empty array is a list; an empty map is an object. */
    public static function canonical(mixed $value): string
    {
        if ($value instanceof \JsonSerializable) {
            $value = $value->jsonSerialize();
        } elseif ($value instanceof \BackedEnum) {
            $value = $value->value;
        } elseif ($value instanceof \DateTimeInterface) {
            $value = $value->format(DATE_RFC3339_EXTENDED);
        }
        if (is_array($value) && array_is_list($value)) {
            return '[' . implode(',', array_map(self::canonical(...), $value)) . ']';
        }
        if (is_array($value) || is_object($value)) {
            return self::members(is_object($value) ? self::properties($value) : $value);
        }
        return json_encode($value, self::FLAGS | JSON_UNESCAPED_LINE_TERMINATORS);
    }

    /** @return array<mixed> */
    private static function properties(object $value): array
    {
        $found = get_object_vars($value);
        if ($found === [] && !$value instanceof \stdClass) {
            throw new \InvalidArgumentException('a ' . $value::class . " has no public properties: choose what makes the request the "
                . "same one with 'arguments'");
        }
        return $found;
    }

    /** @param array<mixed> $members */
    private static function members(array $members): string
    {
        uksort($members, fn ($a, $b) => strcmp((string)$a, (string)$b));
        $parts = [];
        foreach ($members as $name => $member) {
            $parts[] = self::canonical((string)$name) . ':' . self::canonical($member);
        }
        return '{' . implode(',', $parts) . '}';
    }
}
