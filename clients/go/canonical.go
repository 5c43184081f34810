package idem

import (
	"fmt"
	"sort"
	"strings"
)

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
