package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	keyMax     = 255
	headersMax = 100
	headMax    = 64 << 10
	lookMax    = 64 << 10
)

// problemURI is the URI of a problem. The default is a name without a page.
func problemURI(name string) string {
	if base := os.Getenv("IDEM_PROBLEM_BASE"); base != "" {
		return base + name
	}
	return "urn:idem:problems/" + name
}

// answer is what a client of the service gets.
type answer struct {
	status int
	header http.Header
	body   []byte
}

type problemType struct {
	status        int
	class         string
	retryable     bool
	title, detail string
}

// The problems of docs/problems.md that middleware answers: the gateway's names, statuses and classes.
var problems = map[string]problemType{
	"key-missing": {400, "not executed", false, "An idempotency key is needed",
		"Send a key (by default the header Idempotency-Key) that is unique for this request, for instance a UUID, and the same key again with every retry of it."},
	"key-malformed": {400, "not executed", false, "The idempotency key is malformed", "Send the key as a quoted string of printable ASCII, at most 255 bytes, for instance \"order-7\"."},
	"in-progress": {409, "in progress", true, "The first request with this key is still running",
		"Send the same request again after a while: it will not run twice."},
	"mismatch": {422, "not executed", false, "This key was used for a different request",
		"This key was used for a request with another method, path, query or body. If this is a retry, send exactly the first request again: with a new key it could run twice. Use a new key only for a new request."},
	"outcome-unknown": {409, "outcome unknown", false, "It is not known whether this request was done",
		"The first request with this key was started and its outcome was lost. It will not be run again."},
	"settled": {409, "failed for good", false, "This request was settled as failed", "It was declared failed and will not be run."},
	"failed": {409, "failed for good", false, "This request failed before and will not be run again",
		"The first request with this key failed. It will not be run again."},
	"not-replayable": {410, "done", false, "It was done, but its response was not kept",
		"The request was done before. Its response was too large to keep."},
	"not-executed": {503, "not executed", true, "This attempt was not executed",
		"idem could not record this attempt, so it was not executed. An earlier one with the same key may have been: keep the key."},
	"body-too-large": {413, "not executed", false, "The request's body is too large",
		"The body is over the limit for requests with an idempotency key: send a smaller one."},
	"scope-missing": {400, "not executed", false, "The request does not say who sends it",
		"A key belongs to the caller who uses it. What names the caller here is missing or empty."},
	"scope-refused": {403, "not executed", false, "The caller's name cannot be used",
		"The value that names the caller is too long, or holds bytes that it must not."},
}

// problem makes an answer; status 0, detail "" and retryAfter 0 stand for what the problem has anyway.
func problem(name string, status int, detail string, retryAfter int64) *answer {
	p := problems[name]
	if status == 0 {
		status = p.status
	}
	if detail == "" {
		detail = p.detail
	}
	uri := problemURI(name)
	body, _ := json.Marshal(struct {
		Type          string `json:"type"`
		Title         string `json:"title"`
		Status        int    `json:"status"`
		Detail        string `json:"detail"`
		Retryable     bool   `json:"retryable"`
		Class         string `json:"class"`
		Documentation string `json:"documentation"`
	}{uri, p.title, status, detail, p.retryable, p.class, uri})
	header := http.Header{"Content-Type": {"application/problem+json"}, "Link": {"<" + uri + `>; rel="describedby"`}, "Cache-Control": {"no-store"}}
	if retryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(retryAfter, 10))
	}
	return &answer{status, header, append(body, '\n')}
}

// parseKey reads the Idempotency-Key header: "abc" as the IETF draft writes it, or bare. An error is a sentence for the client.
func parseKey(header string) (string, error) {
	text := strings.Trim(header, " \t")
	quoted := strings.HasPrefix(text, `"`)
	key, err := text, error(nil)
	if quoted {
		key, err = unquote(text[1:])
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("The key is empty: send a value that is unique for this request, for instance a UUID.")
	case len(key) > keyMax:
		return "", errors.New("The key is longer than 255 bytes: send a shorter one, for instance a UUID.")
	case key[0] == ' ' || key[len(key)-1] == ' ':
		return "", errors.New("The key begins or ends with a space: remove the space.")
	case !quoted && strings.IndexFunc(key, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' }) >= 0:
		return "", errors.New("The key has a character that needs quotes, or that is not ASCII: send printable ASCII, in double quotes if it has a space, comma or quote.")
	case !quoted && strings.Contains(key, ","):
		return "", errors.New("The key has a comma, as if the header had been sent twice: send it once, or put it in double quotes if it is one key.")
	}
	return key, nil
}

func unquote(text string) (string, error) {
	var key strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' && i+1 < len(text):
			return "", errors.New("Something follows the key's closing quote: remove it.")
		case c == '"':
			return key.String(), nil
		case c < ' ' || c > '~':
			return "", errors.New("The key has a character that is not printable ASCII: send another key, for instance a UUID.")
		case c == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errors.New(`The key has an escape that is neither \" nor \\.`)
			}
		}
		key.WriteByte(text[i])
	}
	return "", errors.New("The key's closing quote is missing: add it, or send the key without quotes.")
}

// Headers of one connection, and those that only the first caller may see.
var notStored = map[string]bool{"Content-Length": true, "Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Date": true,
	"Set-Cookie": true, "Www-Authenticate": true}

// write gives an answer as it is stored with kind "http" (docs/results.md), or nil if its head is too large for that. Headers that were
// set before the service ran are left out.
func (a *answer) write(before http.Header) []byte {
	out := bytes.NewBufferString(strconv.Itoa(a.status) + "\n")
	count := 0
	for _, name := range sorted(a.header) {
		if notStored[name] || fmt.Sprint(a.header[name]) == fmt.Sprint(before[name]) {
			continue
		}
		for _, value := range a.header[name] {
			if !strings.ContainsAny(value, "\r\n\x00") {
				fmt.Fprintf(out, "%s: %s\n", name, value)
				count++
			}
		}
	}
	out.WriteByte('\n')
	if count > headersMax || out.Len() > headMax {
		return nil
	}
	return append(out.Bytes(), a.body...)
}

func readAnswer(stored []byte) (*answer, error) {
	head, body, complete := bytes.Cut(stored, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	status, err := strconv.Atoi(lines[0])
	if err != nil || !complete {
		return nil, errors.New("not an answer as docs/results.md describes it")
	}
	a := &answer{status, http.Header{}, body}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		a.header.Add(name, strings.TrimPrefix(value, " "))
	}
	return a, nil
}

// settledAnswer is a success that was recorded without an HTTP answer: an operator settled it, or a service finished it itself.
func settledAnswer(result []byte) *answer {
	if len(result) == 0 {
		return &answer{http.StatusNoContent, http.Header{}, nil}
	}
	kind := "application/octet-stream"
	if len(result) > lookMax || !utf8.Valid(result) {
	} else if (result[0] == '{' || result[0] == '[') && json.Valid(result) {
		kind = "application/json"
	} else if bytes.IndexFunc(result, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' && r != '\n' }) < 0 {
		kind = "text/plain; charset=utf-8"
	}
	return &answer{http.StatusOK, http.Header{"Content-Type": {kind}}, result}
}
