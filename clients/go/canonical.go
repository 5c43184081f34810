package idem

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// Fingerprint is 64 hex digits over what was asked.
func Fingerprint(arguments any) (string, error) {
	var out strings.Builder
	data, err := json.Marshal(arguments)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var plain any
	if err := decoder.Decode(&plain); err != nil {
		return "", err
	}
	canonical(&out, plain)
	sum := sha256.Sum256([]byte(out.String()))
	return hex.EncodeToString(sum[:]), nil
}

// canonical writes JSON that two languages write alike: see clients/README.md.
func canonical(out *strings.Builder, value any) {
	switch v := value.(type) {
	case map[string]any:
		out.WriteByte('{')
		for i, name := range sorted(v) {
			if i > 0 {
				out.WriteByte(',')
			}
			quote(out, name)
			out.WriteByte(':')
			canonical(out, v[name])
		}
		out.WriteByte('}')
	case []any:
		out.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			canonical(out, item)
		}
		out.WriteByte(']')
	case string:
		quote(out, v)
	case nil:
		out.WriteString("null")
	default:
		fmt.Fprint(out, v)
	}
}

// sorted gives the names of a map in the order of their bytes, which is Go's order of strings.
func sorted[V any, M ~map[string]V](m M) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

var escapes = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

func quote(out *strings.Builder, text string) {
	out.WriteByte('"')
	for _, c := range text {
		if escape, is := escapes[c]; is {
			out.WriteString(escape)
		} else if c < 0x20 {
			fmt.Fprintf(out, `\u%04x`, c)
		} else {
			out.WriteRune(c)
		}
	}
	out.WriteByte('"')
}
